"""Episodes made of whole arrays are those that are recorded step by step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.core.agent_steps import AgentSteps
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.episodes.from_arrays import AgentFacts, multi_agent_episode, single_agent_episode

FACTS = {agent: AgentFacts(f"policy of {agent}") for agent in "abc"}


@st.composite
def histories(draw):
    """({agent: AgentSteps}, whether the world ended) of up to eight steps.

    Agents act in any steps up to their end, are rewarded in all of them, and may end while they
    wait.
    """
    length = draw(st.integers(1, 8))
    world_ends = draw(st.booleans())
    arrays = {}
    for agent in draw(st.sampled_from(["a", "ab", "abc"])):
        end = draw(st.integers(1, length))
        steps = np.arange(length)
        active = np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)))
        active &= steps < end
        rewards = np.round(draw(st.floats(0, 1)) * (1.0 + steps), 1).astype(np.float32)
        rewards[end:] = 0
        is_early = end < length
        terminated = (steps == end - 1) & (is_early | world_ends)
        arrays[agent] = AgentSteps(
            obs={"x": 10.0 * np.arange(length + 1), "y": np.arange(2 * length + 2)[::2]},
            action=steps + 100,
            reward=rewards,
            active=active,
            terminated=terminated,
            truncated=(steps == end - 1) & ~terminated,
            outputs={"vf_preds": steps / 2},
        )
    return arrays, world_ends


def step_by_step(arrays, world_ends):
    """The same by `add_env_reset` and `add_env_step`."""
    length = len(next(iter(arrays.values())).reward)
    ends = {
        agent: 1 + int(np.flatnonzero(data.terminated | data.truncated)[0])
        for agent, data in arrays.items()
    }

    def observations(t):
        seen = {}
        for agent, data in arrays.items():
            acts = t < length and data.active[t]
            has_acted = data.active[:t].any()
            if acts or (t == ends[agent] and has_acted):
                seen[agent] = {name: rows[t] for name, rows in data.obs.items()}
        return seen

    episode = MultiAgentEpisode("id", agent_to_module_mapping_fn=lambda a, _: f"policy of {a}")
    episode.add_env_reset(observations=observations(0))
    for t in range(length):
        active = [agent for agent, data in arrays.items() if data.active[t]]
        going_on = [agent for agent in arrays if t < ends[agent]]
        terminateds = {a: True for a in going_on if ends[a] == t + 1 and arrays[a].terminated[t]}
        last = t + 1 == length
        episode.add_env_step(
            observations(t + 1),
            {agent: arrays[agent].action[t] for agent in active},
            {agent: arrays[agent].reward[t] for agent in going_on},
            terminateds=terminateds | {"__all__": last and world_ends},
            truncateds={"__all__": last and not world_ends},
            extra_model_outputs={
                agent: {"vf_preds": arrays[agent].outputs["vf_preds"][t]} for agent in active
            },
        )
        if episode.is_done and not last:
            return None  # nobody is left, and the arrays go on
    return episode.to_numpy()


@given(histories())
def test_agents_that_wait_join_late_or_leave_are_as_if_recorded_step_by_step(history):
    arrays, world_ends = history
    expected = step_by_step(arrays, world_ends)
    if expected is None or not expected.agent_ids:
        return
    episode = multi_agent_episode(arrays, FACTS, world_ends)
    assert len(episode) == len(expected)
    assert episode.agent_ids == expected.agent_ids
    assert episode.get_terminateds()["__all__"] == world_ends
    for agent in expected.agent_ids:
        assert episode.observation_times(agent) == expected.observation_times(agent)
        assert episode.module_for(agent) == expected.module_for(agent)
        made, recorded = episode.agent_episodes[agent], expected.agent_episodes[agent]
        assert (made.is_terminated, made.is_truncated) == (
            recorded.is_terminated,
            recorded.is_truncated,
        )
        for name in ("x", "y"):
            seen = [each.get_observations()[name] for each in (made, recorded)]
            np.testing.assert_array_equal(*seen)
        np.testing.assert_array_equal(made.get_actions(), recorded.get_actions())
        np.testing.assert_allclose(made.get_rewards(), recorded.get_rewards(), rtol=1e-5)
        np.testing.assert_array_equal(
            made.get_extra_model_outputs("vf_preds"), recorded.get_extra_model_outputs("vf_preds")
        )
    returns = [each.get_return(include_hanging_rewards=True) for each in (episode, expected)]
    np.testing.assert_allclose(*returns, rtol=1e-5)


def test_an_agent_alone_has_one_observation_more_than_steps():
    steps = np.arange(3)
    is_last = steps == 2
    arrays = AgentSteps(
        np.arange(4), steps, np.ones(3, np.float32), steps >= 0, is_last & False, is_last, {}
    )
    episode = single_agent_episode(arrays, FACTS["a"])
    assert isinstance(episode, SingleAgentEpisode) and episode.is_numpy
    assert (len(episode), episode.get_return()) == (3, 3.0)
    assert episode.is_truncated and not episode.is_terminated


def test_infos_that_nobody_gave_are_dicts_that_can_be_written_to():
    episode = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[1.0])
    episode.set_lookback(0)
    episode.get_infos(1)["seen"] = True
    assert episode.get_infos() == [{}, {"seen": True}]
    assert SingleAgentEpisode.from_state(episode.get_state()).get_infos() == [{}, {"seen": True}]
