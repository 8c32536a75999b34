"""Centralised critics: values of what policies do not see, while they act on what they do see."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Learner, PPOConfig, Trainer, UsageError, load_policy, make_train
from jaxrl.algorithms.bc.config import BCConfig
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete
from jaxrl.models.policy_spec import PolicyInputs
from jaxrl.run.storage.checkpoint import named_arrays
from tests.by_hand import by_hand
from tests.messages import refused, refused_by
from tests.probes import Joining, Leavers, Params, Plain, SeveralAgents, State, Twins
from tests.programs import SMALL, SMALL_ARENA

TINY = {**SMALL, "rollout_length": 8, "minibatch_size": 16, "total_env_steps": 4 * 8 * 3}


BLIND = ("own", "state", "all-agents")  # named as what their critics see


@dataclass(frozen=True)
class Coin(SeveralAgents):
    """A coin that turns over in every step; all agents are paid 1 where it lies on heads.

    The agents of `BLIND` always observe 1, `seeing` the coin. With gamma 1/2 heads is worth
    1 + tails / 2, and tails heads / 2: 4/3 and 2/3. Who sees nothing can know no better than their
    mean, 1.
    """

    agents: tuple[str, ...] = (*BLIND, "seeing")
    time_limit = 1

    def observation_space(self, agent, params=None):
        return Discrete(2) if agent == "seeing" else Box(0.0, 1.0, (1,))

    def global_state(self, state, params):
        return state.cue.astype(jnp.float32)[None]

    def reset_env(self, key, params):
        state = State(jnp.int32(0), jax.random.bernoulli(key).astype(jnp.int32))
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        reward = dict.fromkeys(self.agents, state.cue.astype(jnp.float32))
        state = State(state.time + 1, 1 - state.cue)
        return self._observe(state), state, reward, self.nobody_ends(), {}

    def _observe(self, state):
        return {**dict.fromkeys(BLIND, jnp.ones(1)), "seeing": state.cue}


class Sighted(Plain):
    """`Plain`, whose global state is what its agent observes."""

    def global_state(self, state, params):
        return state.cue[None]


class Timed(Joining):
    """`Joining`, whose global state is the time."""

    def global_state(self, state, params):
        return state.time.astype(jnp.float32)[None]


def played(config, num_updates=1):
    """(algorithm, the learners' weights by group, trajectories of the last rollout by group)."""
    algorithm = config.build()
    runner = jax.jit(algorithm.init)(jax.random.key(0))
    for _ in range(num_updates):
        runner, rollout = jax.jit(algorithm.collect)(runner)
    weights = tuple(learner.weights for learner in runner.learners)
    return algorithm, weights, rollout.trajectories


@pytest.mark.parametrize(
    "settings",
    [{"observation_filter": "MeanStdFilter"}, *by_hand({"use_gru": True, "lstm_cell_size": 8})],
)
@pytest.mark.long
def test_a_critic_that_is_shown_the_own_observation_is_ppo_to_the_bit(settings):
    config = PPOConfig(env=Sighted(), normalize_returns=True, **TINY, **settings)
    trained = []
    for source in ("own", "state"):
        train = jax.jit(make_train(config.replace(critic_observation=source)))
        runner, metrics = train(jax.random.key(1))
        learner = runner.learners[0]
        numbers = learner.params, learner.opt_state, runner.envs.state, runner.window, metrics
        trained.append(named_arrays(numbers))
    assert list(trained[0]) == list(trained[1])
    for name, array in trained[0].items():
        np.testing.assert_array_equal(trained[1][name], array, err_msg=name)
    of_one_agent = config.replace(critic_observation="all-agents")
    assert of_one_agent.build().policy_specs == config.build().policy_specs  # the same program


@pytest.mark.parametrize("num_steps", [1, 1000])
@pytest.mark.long
def test_a_critic_knows_what_it_sees_and_a_policys_own_observation_does_not_tell(num_steps, fitted):
    """An episode of one step bootstraps from a state that its reset replaces."""
    trainer, _ = fitted(
        60,
        env_params=Params(num_steps),
        env=Coin(),
        policies_to_train=BLIND,
        per_policy={source: {"critic_observation": source} for source in BLIND},
        gamma=0.5,
        lambda_=0.5,
    )
    coin = jnp.array([0, 1])
    seen = {
        "own": (),
        "state": {"observation": coin.astype(jnp.float32)[:, None]},
        "all-agents": {"observation": {**dict.fromkeys(BLIND, jnp.ones((2, 1))), "seeing": coin}},
    }
    for source in BLIND:
        group, _ = trainer.algorithm.grouping.locate(source)
        policy_spec, weights = trainer.algorithm.policy_specs[group], trainer.get_policy(source)
        inputs = PolicyInputs(critic=seen[source])
        value = policy_spec.apply(weights.weights, jnp.ones((2, 1)), inputs=inputs)[1]
        known = [1.0, 1.0] if source == "own" else [2 / 3, 4 / 3]
        np.testing.assert_allclose(value, known, atol=0.15, err_msg=source)


LEAVERS = PPOConfig(env=Leavers(nan=True), critic_observation="all-agents", **TINY)


@pytest.mark.long
def test_of_agents_that_have_left_a_critic_sees_zeros_and_that_they_have():
    _, _, trajectories = played(LEAVERS, num_updates=2)
    for trajectory in trajectories:
        seen = jax.tree.map(lambda leaf: leaf[:, 0, 0, 0], trajectory.inputs.critic)
        time = np.asarray(seen["observation"]["long"])
        np.testing.assert_array_equal(time, [0, 1, 2, 3] * 2)  # four steps an episode
        first = time == 0
        np.testing.assert_array_equal(seen["present"], np.stack([first, time >= 0, first], axis=1))
        np.testing.assert_array_equal(seen["observation"]["short"], np.zeros(8))
        wide = np.where(first[:, None], [1.0, 0.0], 0.0)
        np.testing.assert_array_equal(seen["observation"]["wide"], wide)
        is_known = jnp.isfinite(trajectory.next_value) | ~trajectory.active
        np.testing.assert_array_equal(is_known, True)


@pytest.mark.long
def test_a_run_with_critics_resumes_exactly(tmp_path):
    quiet = {"quiet": True, "pictures": False}
    with Trainer(LEAVERS, run_dir=None, **quiet) as whole:
        result = whole.fit()
    learners = [result["learners"][agent] for agent in ("short", "long", "wide")]
    assert [learner["parameters_finite"] for learner in learners] == [1, 1, 1]
    with Trainer(LEAVERS, run_dir=tmp_path / "run", **quiet) as half:
        half.fit({"training_iteration": 1})
    with Trainer.from_checkpoint(tmp_path / "run", config=LEAVERS, **quiet) as rest:
        rest.fit()
        resumed, expected = named_arrays(rest.runner), named_arrays(whole.runner)
    assert list(resumed) == list(expected)
    assert any("present" in name for name in resumed)
    for name, array in expected.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)


@pytest.mark.long
def test_next_values_are_of_the_next_states_also_beyond_waits_and_the_clock():
    config = PPOConfig(env=Timed(), critic_observation="state", **{**TINY, "rollout_length": 7})
    algorithm, weights, (trajectory,) = played(config)
    actions = {"early": [0, 1, 2, 3, 4, 5, 6], "late": [2, 3, 5, 6]}  # in these steps
    times = jnp.arange(8, dtype=jnp.float32)[:, None]
    inputs = PolicyInputs(critic={"observation": times})
    for i, (agent,) in enumerate(algorithm.grouping.groups[0].agents):
        of_agent = jax.tree.map(lambda leaf, i=i: leaf[i], weights[0])
        value_at = jax.jit(algorithm.policy_specs[0].apply)(
            of_agent, jnp.ones((8, 1)), inputs=inputs
        )[1]
        acted = jnp.array(actions[agent])
        followed_by = jnp.array([*actions[agent][1:], 7])  # the last one by the clock
        rows = jax.tree.map(lambda leaf, i=i: leaf[:, i, 0, 0], trajectory)
        np.testing.assert_array_equal(rows.active[acted], True)
        np.testing.assert_allclose(rows.value[acted], value_at[acted], 1e-6)
        np.testing.assert_allclose(rows.next_value[acted], value_at[followed_by], 1e-6)


def test_a_critic_of_several_agents_is_told_which_of_them_it_judges():
    """Twins always have the same state, and are rewarded for different actions."""
    config = PPOConfig(
        env=Twins(), policies="shared", critic_observation="all-agents", agent_id_obs=False, **TINY
    )
    policy_spec = config.build().policy_specs[0]
    assert policy_spec.critic.input_space(policy_spec.action_space) == Dict(
        {"observation": Box(-np.inf, np.inf, (2,)), "agent_id": Discrete(2)}
    )
    assert policy_spec.model.observation_space == Box(0.0, 1.0, (1,))
    apart = config.replace(policies="per-agent").build().policy_specs[0]
    assert apart.critic.input_space(apart.action_space) == Box(-np.inf, np.inf, (2,))


@dataclass(frozen=True)
class Cameras(Twins):
    """Two agents that see images of different numbers of channels, the second's in bytes."""

    def observation_space(self, agent, params=None):
        return Box(0, 9, (2, 2, 1)) if agent == "first" else Box(0, 9, (2, 2, 2), "uint8")

    def reset_env(self, key, params):
        return self._observe(), super().reset_env(key, params)[1]

    def step_env(self, key, state, action, params):
        return self._observe(), *super().step_env(key, state, action, params)[1:]

    def _observe(self):
        second = jnp.full((2, 2, 2), 5, "uint8").at[..., 1].set(7)
        return {"first": jnp.full((2, 2, 1), 3.0), "second": second}


@pytest.mark.long
@pytest.mark.parametrize("conv_filters", [None, [[2, 2, 1]]])
def test_images_of_equal_size_are_joined_by_their_channels(conv_filters):
    config = PPOConfig(
        env=Cameras(), critic_observation="all-agents", conv_filters=conv_filters, **TINY
    )
    _, _, trajectories = played(config)
    for trajectory in trajectories:
        seen = trajectory.inputs.critic["observation"]
        assert seen.shape[-3:] == (2, 2, 3)
        np.testing.assert_array_equal(seen[0, 0, 0, 0], np.broadcast_to([3.0, 5.0, 7.0], (2, 2, 3)))


@pytest.mark.long
def test_integers_are_joined_in_the_agents_order():
    config = SMALL_ARENA.replace(critic_observation="all-agents")
    algorithm, _, trajectories = played(config)
    policy_spec = algorithm.policy_specs[0]
    assert policy_spec.critic.space["observation"] == MultiDiscrete((16,) * 4)
    first = trajectories[0].inputs.critic["observation"][0, :, 0, 0]
    np.testing.assert_array_equal(first, [[0, 15, 15, 0]] * 2)  # both policies' critics


@pytest.mark.slow
@pytest.mark.long
def test_policies_act_are_loaded_and_exported_without_what_the_critic_sees(tmp_path):
    memory = {"use_gru": True, "lstm_cell_size": 8}
    config = SMALL_ARENA.replace(critic_observation="state", total_env_steps=64, **memory)
    with Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False) as trainer:
        trainer.fit()
        episodes = trainer.sample(num_episodes=1)
        result = trainer.evaluate(episodes=2)
        now = trainer.get_policy("pol1")
    assert result["env_runners"]["num_episodes"] == 2
    policy = load_policy(tmp_path / "run", "pol1")
    for name, array in named_arrays(now.weights).items():
        np.testing.assert_array_equal(named_arrays(policy.weights)[name], array, err_msg=name)
    assert policy.act([0, 15]) == now.act([0, 15])
    with pytest.raises(UsageError, match="with critic_observation='state' no observation alone"):
        policy.value([0, 15])
    exported = policy.export(tmp_path / "policy.npz")
    assert not any("value" in tensor.name for tensor in exported.inputs)
    assert np.any(episodes[0].agent_episodes["agent1"].get_extra_model_outputs("vf_preds") != 0)


@pytest.mark.slow
@pytest.mark.long
def test_a_filter_normalises_the_numbers_of_all_that_a_critic_of_several_spaces_sees():
    by_policy = {"state": {"observation_filter": "MeanStdFilter"}}
    config = PPOConfig(env=Coin(), critic_observation="all-agents", per_policy=by_policy, **TINY)
    algorithm = config.build()
    update = lambda runner: algorithm.learn(*algorithm.collect(runner))[0]
    runner = jax.jit(update)(jax.jit(algorithm.init)(jax.random.key(0)))
    filters = {
        policy: jax.tree.map(lambda leaf, place=place: leaf[place], learner.filter)
        for group, learner in zip(algorithm.grouping.groups, runner.learners, strict=True)
        for place, policy in enumerate(group.policies)
    }
    assert filters.pop("state").value.mean.keys() == set(BLIND)  # the coin's side is no number
    assert set(filters.values()) == {None}


test_what_cannot_work_is_refused_in_one_line = refused_by(
    lambda settings: PPOConfig(**{"env": Coin(), "critic_observation": "state"} | settings).build(),
    [
        ({"critic_observation": "stat"}, "unknown critic_observation 'stat'; did you mean 'state'"),
        ({"vf_share_layers": True}, "critic_observation='state' and vf_share_layers=True: layers"),
        ({"model": (lambda: 0, lambda: 0)}, "critic_observation='state' and model=.*built-in"),
        ({"env": "cartpole"}, "CartPole has no global_state.*; define it"),
        (
            {"env": "arena", "observation_filter": "MeanStdFilter"},
            "MeanStdFilter' needs Box observations",
        ),
    ],
)


CLONED = {"env": "arena", "input": "episodes", "critic_observation": "state"}
TOLD_MORE = SMALL_ARENA.replace(critic_observation="all-agents")
test_steps_of_others_hold_nothing_for_a_critic = refused(
    [
        (lambda: BCConfig(**CLONED), "critic_observation='state': recorded episodes hold"),
        (lambda: Learner(TOLD_MORE), "Learner: critic_observation must be 'own'"),
    ]
)
