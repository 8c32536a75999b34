"""Sampled episodes are those of a slow loop that steps one environment and records by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import UsageError
from jaxrl.core.env import Solo, agents_may_wait
from jaxrl.core.types import ALL
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.play import whole_episodes
from jaxrl.play.evaluate import evaluate_and_record, summary_of_episodes
from jaxrl.play.host_episodes import EpisodeRange, Players, play_episodes
from jaxrl.play.sampling import episodes_of as episodes_in
from jaxrl.play.whole_episodes import episode_keys, step_chance
from tests.play.test_recording import counted, recorded_alone, untrained
from tests.probes import Crowd, Forbidden, Joining, Leavers

# Compiled once for all tests of this module, test_replayed_episode and test_sources_and_sinks.

ARENA = {"height": 4, "width": 5, "max_steps_in_episode": 30}
EXPLORED = EpisodeRange(seed=3, first=1, number=3, explore=True)


@functools.cache
def players(name):
    """Untrained policies; the weights of memories are enlarged until what they hold decides."""
    envs = {
        "arena": lambda: untrained("arena", env_args=ARENA),
        "memory": lambda: untrained("cartpole", use_gru=True, lstm_cell_size=8),
        "leavers": lambda: untrained(Leavers()),
        "joining": lambda: untrained(Joining()),
        "masks": lambda: untrained(Forbidden()),
        "continuous": lambda: untrained(Crowd(3), policies="shared"),
        "outside": lambda: untrained("tests.outside.workers.environments:Counter"),
    }
    algorithm, weights, params = envs[name]()
    env = {"env": name if name == "arena" else None, "env_args": ARENA if name == "arena" else {}}
    weights = jax.tree.map(lambda leaf: 10 * leaf, weights) if name == "memory" else weights
    return Players(algorithm, weights, params, env)


@functools.cache
def sampled(name):
    return evaluated(name, EXPLORED)


def evaluated(name, wanted):
    """(the result, the episodes)."""
    episodes = []
    return evaluate_and_record(players(name), wanted, episodes.append), episodes


def episodes_of(name):
    return sampled(name)[1]


# An independent loop


def agent_specs(algorithm):
    """{agent: (policy, group, index in the group, index in the policy)}."""
    return {
        agent: (policy, g, i, j)
        for g, group in enumerate(algorithm.grouping.groups)
        for i, (policy, agents) in enumerate(zip(group.policies, group.agents, strict=True))
        for j, agent in enumerate(agents)
    }


def step_by_step(players, seed, number, explore=True):
    """One episode by the dict interface, one policy after the other, recorded step by step."""
    algorithm, weights, params = players[:3]
    spec = algorithm.rollout_spec
    env, specs = spec.env, agent_specs(algorithm)
    reset_key, play_key = episode_keys(seed)

    @jax.jit
    def act(obs, state, memory, time):
        noise = step_chance(spec, play_key, jnp.array([number], jnp.int32), time).noise
        masks = dict.fromkeys(env.agents)
        if hasattr(env, "action_mask"):
            mask = env.action_mask(state, params)
            masks = {"default_agent": mask} if isinstance(env, Solo) else mask
        done = {}
        for agent, (_, g, i, j) in specs.items():
            policy = algorithm.policy_specs[g]
            policy_weights = jax.tree.map(lambda leaf, i=i: leaf[i], weights[g])
            inputs = policy.inputs(memory[agent], masks[agent], jnp.int32(j))
            distribution, value, carry = policy.apply(
                policy_weights, obs[agent], memory[agent], inputs
            )
            action = distribution.sample(noise[g][i, 0, j]) if explore else distribution.mode()
            outputs = {
                "action_logp": distribution.log_prob(action),
                "vf_preds": value,
                "action_dist_inputs": jnp.concatenate(jax.tree.leaves(distribution)),
            }
            done[agent] = action, policy.to_env_action(action), outputs, carry
        return done

    step_key = lambda time: step_chance(spec, play_key, np.array([number]), time).step_key[0]
    step = jax.jit(lambda time, state, action: env.step_env(step_key(time), state, action, params))
    obs, state = env.reset_env(jax.random.fold_in(reset_key, number), params)
    memory = {a: algorithm.policy_specs[g].initial_state(()) for a, (_, g, *_) in specs.items()}
    gone, time, ended = set(), 0, False

    def acting(state):
        if agents_may_wait(env):
            flags = env.acting_agents(state, params)
            return {agent for agent in env.agents if flags[agent]}
        return set(env.agents) - gone

    modules = {agent: policy for agent, (policy, *_) in specs.items()}
    episode = MultiAgentEpisode(agent_module_ids=modules)
    episode.add_env_reset(observations={agent: obs[agent] for agent in acting(state)})
    while not ended:
        active = acting(state)
        done = act(obs, state, memory, np.int32(time))
        memory |= {
            agent: memory[agent].replace(carry=carry)
            for agent, (*_, carry) in done.items()
            if agent in active
        }
        actions = {agent: action for agent, (_, action, *_) in done.items()}
        obs, state, rewards, terminated, _ = step(np.int32(time), state, actions)
        time += 1
        new = {agent for agent in env.agents if terminated[agent]} - gone
        clock = bool(env.is_truncated(state, params))
        terminateds = dict.fromkeys(new, True)
        gone |= new
        ended = bool(terminated[ALL]) or gone == set(env.agents) or clock
        ends = terminateds | {ALL: (ended and not clock) or bool(terminated[ALL])}
        seen = new | (set(env.agents) - (gone - new) if ended else acting(state))
        paid = active if not agents_may_wait(env) else env.agents
        episode.add_env_step(
            {agent: np.asarray(obs[agent]) for agent in seen},
            {agent: np.asarray(done[agent][0]) for agent in active},
            {agent: float(rewards[agent]) for agent in paid},
            terminateds=ends,
            truncateds={ALL: ended and not ends[ALL]},
            extra_model_outputs={agent: done[agent][2] for agent in active},
        )
    return episode.to_numpy()


def assert_equal_agents(sampled, recorded):
    """Two SingleAgentEpisodes; numbers of networks agree as far as their rounding goes."""
    for get in ("get_observations", "get_actions", "get_rewards"):
        values = [getattr(each, get)() for each in (sampled, recorded)]
        np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-4)
    for name in ("action_logp", "vf_preds", "action_dist_inputs"):
        outputs = [each.get_extra_model_outputs(name) for each in (sampled, recorded)]
        np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-4)
    ends = [(each.is_terminated, each.is_truncated) for each in (sampled, recorded)]
    assert ends[0] == ends[1] and sum(ends[0]) == 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["arena", "memory", "leavers", "joining", "masks", "continuous"])
def test_sampled_episodes_are_those_of_a_loop_that_plays_and_records_step_by_step(name):
    """Two policies; a memory; agents that leave, wait and join; masks; one policy of three."""
    expected = step_by_step(players(name), seed=3, number=2)
    episode = episodes_of(name)[1]  # the second of those from number 1 on
    if isinstance(episode, SingleAgentEpisode):
        assert_equal_agents(episode, expected.agent_episodes["default_agent"])
        return
    assert len(episode) == len(expected)
    assert episode.agent_ids == expected.agent_ids
    assert (episode.is_terminated, episode.is_truncated) == (
        expected.is_terminated,
        expected.is_truncated,
    )
    for agent, recorded in expected.agent_episodes.items():
        assert episode.observation_times(agent) == expected.observation_times(agent)
        assert_equal_agents(episode.agent_episodes[agent], recorded)
        assert episode.agent_episodes[agent].module_id == expected.module_for(agent)
    returns = [each.get_return(include_hanging_rewards=True) for each in (episode, expected)]
    assert returns[0] == pytest.approx(returns[1], abs=1e-4)


@pytest.mark.long
def test_an_evaluation_reports_the_same_with_episodes_and_without():
    wanted = {"seed": 3, "number": 3, "explore": True}
    result, episodes = evaluated("arena", EpisodeRange(**wanted))
    plain = counted(players("arena"), **wanted)
    leaves, same = jax.tree.flatten(result["env_runners"])
    assert jax.tree.structure(plain) == same
    np.testing.assert_allclose(leaves, jax.tree.leaves(plain), rtol=1e-6)
    # Those from number 1 on, sampled apart.
    for episode, later in zip(episodes[1:], episodes_of("arena"), strict=False):
        assert_equal_agents(episode.agent_episodes["agent1"], later.agent_episodes["agent1"])


@pytest.mark.long
def test_batches_and_chunks_in_which_episodes_are_played_do_not_change_them(monkeypatch):
    """Neither the statistics, nor the objects, nor what is looked at."""
    arena, second = players("arena"), {"seed": 3, "first": 2, "explore": True}
    (result, wholes), whole = sampled("arena"), recorded_alone(arena, **second)
    monkeypatch.setattr(whole_episodes, "AT_ONCE", 2)
    monkeypatch.setattr(whole_episodes, "KEPT_STEPS", 7)
    whole_episodes._go_on.clear_cache()
    batches = list(play_episodes(arena, EXPLORED, keeps_steps=True))
    parts = recorded_alone(arena, **second)
    whole_episodes._go_on.clear_cache()
    assert [(batch.first, len(batch.done)) for batch in batches] == [(1, 2), (3, 1)]
    together, apart = result["env_runners"], summary_of_episodes(arena.algorithm, batches)
    assert apart["num_episodes"] == together["num_episodes"] == 3
    exact = "episode_return_mean", "episode_return_min", "episode_len_mean", "num_env_steps_sampled"
    for name in exact:
        assert apart[name] == pytest.approx(together[name], rel=1e-6)
    episodes = [episode for batch in batches for episode in episodes_in(arena, 3, batch)]
    numbers = [episode.custom_data["origin"]["episode"] for episode in episodes]
    assert numbers == [1, 2, 3]
    for episode, alone in zip(episodes, wholes, strict=True):
        for agent in ("agent1", "agent2"):
            assert_equal_agents(episode.agent_episodes[agent], alone.agent_episodes[agent])
    jax.tree.map(np.testing.assert_array_equal, whole.states, parts.states)
    np.testing.assert_array_equal(whole.rewards, parts.rewards)


def test_what_a_policy_put_out_is_under_rllibs_names_and_belongs_together():
    (episode, *_) = episodes_of("memory")
    logits = episode.get_extra_model_outputs("action_dist_inputs")
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    chosen = log_probs[np.arange(len(episode)), episode.get_actions()]
    np.testing.assert_allclose(episode.get_extra_model_outputs("action_logp"), chosen, atol=1e-5)
    assert set(episode.extra_model_outputs) == {"action_logp", "vf_preds", "action_dist_inputs"}
    assert episode.is_numpy and episode.is_terminated and not episode.is_truncated
    assert episode.get_observations(one_hot_discrete=True).shape == (len(episode) + 1, 4)
    assert episode.get_infos() == [{}] * (len(episode) + 1)


@pytest.mark.long
def test_actions_are_as_sampled_and_the_environments_own_beside_them():
    (episode, *_) = episodes_of("continuous")
    agents = episode.agent_episodes["one_1"]
    sampled_actions = agents.get_actions()
    assert np.abs(sampled_actions).max() > 1  # normal numbers, beyond the space
    inputs = agents.get_extra_model_outputs("action_dist_inputs")
    mean, log_std = inputs[:, :2], inputs[:, 2:]
    densities = -0.5 * ((sampled_actions - mean) / np.exp(log_std)) ** 2 - log_std
    expected = (densities - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    np.testing.assert_allclose(agents.get_extra_model_outputs("action_logp"), expected, atol=1e-4)
    clipped = np.clip(sampled_actions, -1, 1)
    env_actions = agents.get_extra_model_outputs("actions_for_env")
    np.testing.assert_allclose(env_actions, clipped, atol=1e-6)  # stretched to [-1, 1]: rounded


def test_masks_are_kept_and_no_impossible_action_is_taken():
    for episode in episodes_of("masks"):
        mask = episode.get_extra_model_outputs("action_mask")
        np.testing.assert_array_equal(mask, episode.get_observations(slice(0, 1)) == 1)
        assert mask[np.arange(len(episode)), episode.get_actions()].all()


def test_episodes_hold_their_own_steps_alone_and_may_be_changed():
    first, second, *_ = episodes_of("memory")
    assert len({len(episode) for episode in episodes_of("memory")}) > 1
    assert first.observations.data.base is None or len(first.observations.data.base) < 1000
    before = second.get_rewards().copy()
    first.set_rewards(new_data=5.0, at_indices=0)
    first.set_rewards(new_data=1.0, at_indices=0)
    np.testing.assert_array_equal(second.get_rewards(), before)
    with pytest.raises(UsageError, match="has ended"):
        first.add_env_step(first.get_observations(0), 0, 1.0)
