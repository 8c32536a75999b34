"""`Learner`: acting and learning in a loop of the user's own."""

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.core.spaces import Box, Discrete
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from tests.messages import refused
from tests.programs import SMALL_CARTPOLE, TINY

T, E = 16, 4
BOX = Box(-1.0, 1.0, (3,))
CONFIG = SMALL_CARTPOLE.replace(env_args={"max_steps_in_episode": 6})


def recorded(rollout):
    """(environment, chunk) of the rollout's episodes, as a program outside would have them."""
    (steps,) = rollout.recorded.groups
    rows = jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0, :, 0], steps)
    done = np.asarray(rollout.recorded.episode_done)
    for e in range(E):
        ends = [*(np.flatnonzero(done[:, e]) + 1), T]
        for begin, end in zip([0, *ends], ends, strict=False):
            if begin == end:
                continue
            part = jax.tree.map(lambda leaf, b=begin, n=end, e=e: leaf[b:n, e], rows)
            chunk = SingleAgentEpisode(
                observations=np.concatenate([part.obs, part.reached[-1:]]),
                actions=part.action,
                rewards=part.reward,
                terminated=bool(part.terminated[-1]),
                truncated=bool(part.truncated[-1]),
                extra_model_outputs=part.outputs,
                len_lookback_buffer=0,
            )
            yield e, chunk


SETTINGS = {
    "plain": {},
    "memory": {"use_gru": True, "max_seq_len": 8},
    "intrinsic rewards": {"model": "tests.probes:Curious"},
}


@pytest.mark.long
@pytest.mark.parametrize("which", SETTINGS)
def test_recorded_episodes_are_learned_from_as_the_rollout_that_they_come_from(which):
    config = CONFIG.replace(**SETTINGS[which])
    algorithm, learner = config.build(), jaxrl.Learner(config)
    key = jax.random.key(config.seed, impl="threefry2x32")
    runner = jax.jit(algorithm.init)(key)
    for found_leaf, other in zip(
        jax.tree.leaves(learner.runner.learners), jax.tree.leaves(runner.learners), strict=True
    ):
        np.testing.assert_array_equal(found_leaf, other)
    _, rollout = jax.jit(algorithm.recording(E).collect)(runner)
    learner.add(chunk for _, chunk in recorded(rollout))
    assert learner.ready and learner.num_waiting == T * E
    (wanted,), (found,) = rollout.trajectories, learner._rollout().trajectories
    ends = np.asarray(wanted.done)
    cut = ends.copy()
    cut[-1] = True  # the batch ends there for both, whoever says so
    np.testing.assert_array_equal(found.done, cut)
    for name in ("obs", "action", "reward", "active", "terminated"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    for name in ("value", "distribution", "carry", "next_obs"):
        for found_leaf, other in zip(
            jax.tree.leaves(getattr(found, name)),
            jax.tree.leaves(getattr(wanted, name)),
            strict=True,
        ):
            np.testing.assert_allclose(found_leaf, other, rtol=1e-5, atol=1e-6)
    read = ~np.asarray(wanted.terminated)
    np.testing.assert_allclose(
        np.asarray(found.next_value)[read], np.asarray(wanted.next_value)[read], rtol=1e-4
    )
    np.testing.assert_allclose(
        found.log_prob, wanted.distribution.log_prob(wanted.action), rtol=1e-5
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "settings", [{}, {"observation_filter": "MeanStdFilter", "normalize_returns": True}]
)
def test_updates_on_recorded_steps_give_the_weights_of_the_training_that_they_come_from(settings):
    config = CONFIG.replace(env_args={"max_steps_in_episode": 30}, **settings)
    algorithm, learner = config.build(), jaxrl.Learner(config)
    collect, learn = jax.jit(algorithm.recording(E).collect), jax.jit(algorithm.learn)
    runner = jax.jit(algorithm.init)(jax.random.key(config.seed, impl="threefry2x32"))
    unfinished = [None] * E
    for _ in range(3):
        runner, rollout = collect(runner)
        runner, _ = learn(runner, rollout)
        for e, chunk in recorded(rollout):
            chunk.id_ = unfinished[e] or chunk.id_  # one episode in several rollouts
            unfinished[e] = None if chunk.is_done else chunk.id_
            learner.add(chunk)
        result = learner.update()
        for found, wanted in zip(
            jax.tree.leaves(learner.runner.learners), jax.tree.leaves(runner.learners), strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert result["num_env_steps_sampled_lifetime"] == 3 * T * E


@pytest.mark.long
def test_actions_are_explored_as_in_training_and_recorded_with_their_probabilities():
    exploration = {"type": "StochasticSampling", "random_timesteps": T * E + 1}
    learner = jaxrl.Learner(CONFIG.replace(exploration_config=exploration))
    obs = np.ones((8, 4), np.float32)
    policy = lambda: learner.act(obs, explore=False)[1]["action_logp"]
    assert not np.allclose(policy(), np.log(0.5), atol=1e-5)
    episode = SingleAgentEpisode()
    episode.add_env_reset(obs[0])
    for _ in range(T * E):
        actions, outputs = learner.act(obs)
        np.testing.assert_allclose(outputs["action_logp"], np.log(0.5), rtol=1e-6)
        episode.add_env_step(
            obs[0], actions[0], 1.0, extra_model_outputs=jax.tree.map(lambda leaf: leaf[0], outputs)
        )
    learner.add(episode)
    (trajectory,) = learner._rollout().trajectories
    np.testing.assert_allclose(trajectory.log_prob, np.log(0.5), rtol=1e-6)
    learner.add([episode, episode])
    learner.update()  # more steps than random ones
    actions, outputs = learner.act(obs)
    by_policy = np.where(actions == learner.act(obs, explore=False)[0], policy(), np.nan)
    is_likeliest = ~np.isnan(by_policy)
    np.testing.assert_allclose(outputs["action_logp"][is_likeliest], by_policy[is_likeliest])


@pytest.mark.long
def test_a_policy_is_told_what_its_last_action_brought():
    config = CONFIG.replace(use_gru=True, max_seq_len=8, lstm_use_prev_reward=True)
    learner, obs = jaxrl.Learner(config), np.ones((2, 4), np.float32)
    values = []
    for reward in (0.0, 5.0):
        learner.act(obs, begins=True)
        _, outputs = learner.act(obs, explore=False, prev_rewards=np.array([0.0, reward]))
        values.append(outputs["vf_preds"])
    assert values[0][0] == values[1][0] != values[1][1]


def episode_of(learner, length, **ends):
    """An episode of two agents that act by the learner's policies."""
    episode, rng = MultiAgentEpisode(), np.random.default_rng(length)
    observe = lambda: {agent: rng.uniform(-1, 1, 3).astype(np.float32) for agent in ("a", "b")}
    obs = observe()
    episode.add_env_reset(observations=obs)
    for t in range(length):
        actions, outputs = learner.act(obs)
        obs = observe()
        flags = ends if t == length - 1 else {}
        flags = {name: {"__all__": value} for name, value in flags.items()}
        episode.add_env_step(
            obs, actions, {"a": 1.0, "b": 2.0}, extra_model_outputs=outputs, **flags
        )
    return episode


@pytest.fixture(scope="module")
def of_two_agents():
    spaces = {"a": BOX, "b": BOX}, {"a": Discrete(2), "b": Box(-3.0, 3.0, (2,))}
    return jaxrl.Learner(jaxrl.PPOConfig(env="external", **TINY), *spaces)


@pytest.mark.long
def test_episodes_of_any_length_fill_the_rows_and_the_rest_waits(of_two_agents):
    learner = of_two_agents
    learner.add([episode_of(learner, 5, terminateds=True), episode_of(learner, 20)])
    assert learner.num_waiting == 25
    result = learner.update()
    assert learner.num_waiting == 25 - 16  # two lanes of 8 rows
    assert result["num_env_steps_sampled_lifetime"] == 16
    assert result["env_runners"]["num_agent_steps_sampled"] == {"a": 16, "b": 16}
    assert result["env_runners"]["agent_episode_returns_mean"] == {"a": 5.0, "b": 10.0}
    assert result["env_runners"]["episode_len_mean"] == 5.0
    second = learner.update()  # of 9 rows and 7 of weight 0
    assert second["env_runners"]["num_agent_steps_sampled"] == {"a": 9, "b": 9}
    assert second["learners"]["a"]["num_module_steps_trained"] == 9
    with pytest.raises(jaxrl.UsageError, match="nothing to learn from"):
        learner.update()


@pytest.mark.long
def test_a_learner_is_saved_and_restored(of_two_agents, tmp_path):
    learner, obs = of_two_agents, {"a": np.zeros(3), "b": np.ones(3)}
    path = learner.save(tmp_path)
    wanted = learner.act(obs, explore=False)[0]
    weights = learner.weights
    learner.set_weights({"a": jax.tree.map(np.zeros_like, weights["a"])})
    learner.restore(path)
    found = learner.act(obs, explore=False)[0]
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


test_wrong_use_is_refused_in_one_line = refused(
    [
        (lambda of: of.add([1]), "SingleAgentEpisode or MultiAgentEpisode, not int"),
        (lambda of: of.act(np.zeros(3)), "act takes {agent: observation} of a, b"),
        (lambda of: of.act({"c": np.zeros(3)}), "no agent 'c'; the agents are a, b"),
        (lambda of: jaxrl.Learner(of.config, BOX), "both observation_space and action_space"),
        (lambda of: jaxrl.Learner({"lr": 1.0}, BOX, BOX), "Learner takes a configuration"),
        (
            lambda of: jaxrl.Learner(of.config.replace(critic_observation="all-agents")),
            "critic_observation must be 'own'",
        ),
        (
            lambda of: jaxrl.Learner(
                of.config.replace(policies_to_train=("a",), opponents=jaxrl.OpponentPool())
            ),
            "opponents: external runs outside JAX, where no pool plays",
        ),
    ],
    literal=True,
    fixture="of_two_agents",
)


def test_a_step_that_does_not_fit_leaves_nothing_behind(of_two_agents):
    wrong = SingleAgentEpisode(
        observations=np.zeros((3, 4), np.float32),
        actions=np.zeros(2, int),
        rewards=np.zeros(2),
        len_lookback_buffer=0,
    )
    wrong.agent_id = "a"
    with pytest.raises(jaxrl.UsageError, match="observations have the shape"):
        of_two_agents.add(wrong)
    assert not of_two_agents.num_waiting


def test_the_episode_of_one_agent_is_known_by_the_agent_or_by_its_policy():
    spaces = {"a": BOX, "b": BOX}, {"a": Discrete(2), "b": Discrete(3)}
    learner = jaxrl.Learner(jaxrl.PPOConfig(env="external", **TINY), *spaces)
    for names in ({}, {"module_id": "a"}, {"agent_id": "b"}):
        seen = np.zeros((2, 3), np.float32)
        steps = {"observations": seen, "actions": [1], "rewards": [1.0], "len_lookback_buffer": 0}
        episode = SingleAgentEpisode(**steps, **names)
        if names:
            learner.add(episode)
        else:
            with pytest.raises(jaxrl.UsageError, match="set its agent_id, or a module_id"):
                learner.add(episode)
    assert [len(parts) for parts in learner._lanes._parts.values()] == [1, 1]


def test_what_waits_to_be_learned_from_stays_as_it_was_added():
    learner = jaxrl.Learner(CONFIG, BOX, Discrete(2))
    state, episode = np.zeros(3, np.float32), SingleAgentEpisode()
    episode.add_env_reset(state)
    for step in range(1, 4):
        state += step / 8
        told = {"action_logp": np.float32(-step), "action_dist_inputs": np.full(2, step)}
        episode.add_env_step(state, step % 2, float(step), extra_model_outputs=told)
    arrays = SingleAgentEpisode.from_state(episode.get_state()).to_numpy()
    learner.add([episode, arrays])
    for each in (episode, arrays):
        each.set_observations(new_data=[np.ones(3)] * 4)
        each.set_rewards(new_data=[9.0] * 3)
        each.set_extra_model_outputs(key="action_logp", new_data=[-9.0] * 3)
    assert not episode.is_numpy  # nor is the episode made into another form
    (lanes,), _, _ = learner._lanes.take()
    rows = lanes.active[:, 0, 0, 0]
    assert lanes.reward[rows, 0, 0, 0].tolist() == [1, 2, 3] * 2
    assert lanes.log_prob[rows, 0, 0, 0].tolist() == [-1, -2, -3] * 2
    assert lanes.obs[rows, 0, 0, 0, 0].tolist() == [0, 0.125, 0.375] * 2
