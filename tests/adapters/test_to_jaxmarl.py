"""Environments as JaxMARL's: the numbers of our own `step`, with one `done` for each agent.

Where JaxMARL is not installed, a stand-in has its base class's fields, and gymnax's spaces.
"""

import importlib.util
import sys
from types import ModuleType

import gymnax.environments.spaces
import jax
import numpy as np
import pytest

import jaxrl
from jaxrl import to_jaxmarl
from tests.probes import Forbidden, Leavers

IS_INSTALLED = importlib.util.find_spec("jaxmarl") is not None
ARENA, PARAMS = jaxrl.make("arena", height=3, width=3, max_steps_in_episode=5)


class StandIn:
    def __init__(self, num_agents):
        self.num_agents = num_agents

    def observation_space(self, agent):
        return self.observation_spaces[agent]


@pytest.fixture(autouse=True)
def jaxmarl(monkeypatch):
    if not IS_INSTALLED:
        for name in ("jaxmarl", "jaxmarl.environments", "jaxmarl.environments.multi_agent_env"):
            monkeypatch.setitem(sys.modules, name, ModuleType("stand_in"))
        environments = sys.modules["jaxmarl.environments"]
        environments.multi_agent_env = sys.modules["jaxmarl.environments.multi_agent_env"]
        environments.multi_agent_env.MultiAgentEnv = StandIn
        environments.spaces = gymnax.environments.spaces


def test_a_step_without_reset_has_our_numbers_and_one_done():
    env = to_jaxmarl(Leavers())
    _, state = env.reset(jax.random.key(0))
    actions = {"short": 1, "long": np.ones(1), "wide": 2}  # its scripts give numbers as [1]
    seen, step = [], jax.jit(env.step_env)
    for i in range(4):
        _, state, rewards, dones, info = step(jax.random.key(i), state, actions)
        seen.append(({agent: float(value) for agent, value in rewards.items()}, dones))
        assert info == {}
    assert seen[0][0] == {"short": 1, "long": 1, "wide": 1}
    assert seen[1][0] == {"short": 0, "long": 1, "wide": 1}
    assert [bool(dones["short"]) for _, dones in seen] == [True] * 4  # it stays done
    for agent in ("long", "wide", "__all__"):
        assert [bool(dones[agent]) for _, dones in seen] == [False, False, False, True]


@pytest.mark.long
def test_metrics_have_an_entry_for_each_agent():
    env = to_jaxmarl("arena")
    _, state = env.reset(jax.random.key(0))
    *_, info = env.step_env(jax.random.key(1), state, {"agent1": 1, "agent2": 3})
    assert {value.shape for value in info.values()} == {(2,)}
    assert env.num_agents == 2 and env.agents == ["agent1", "agent2"]
    assert env.agent_classes == {"pol1": ["agent1"], "pol2": ["agent2"]}


def test_possible_actions_are_the_masks_or_all():
    env = to_jaxmarl(Forbidden())
    obs, state = env.reset(jax.random.key(0))
    (agent,) = env.agents
    np.testing.assert_array_equal(env.get_avail_actions(state)[agent], obs[agent] == 1)
    env = to_jaxmarl("arena")
    _, state = env.reset(jax.random.key(0))
    assert env.get_avail_actions(state)["agent2"].tolist() == [True] * 4


def test_the_world_state_is_the_global_state_in_a_row():
    env = to_jaxmarl(ARENA, PARAMS)
    obs, state = env.reset(jax.random.key(0))
    one_hot = np.eye(9, dtype=np.float32)
    for time in (0, 1):
        seen = ARENA.global_state(state, PARAMS)
        assert float(seen["time"]) == pytest.approx(time / 5)
        # In the order of a pytree's leaves, by name; the places are integers of MultiDiscrete.
        expected = [*one_hot[seen["positions"]], seen["time"][None], seen["visited"]]
        np.testing.assert_array_equal(obs["world_state"], np.concatenate(expected))
        np.testing.assert_array_equal(env.get_world_state(state), obs["world_state"])
        actions = {"agent1": 1, "agent2": 3}
        obs, state, *_ = env.step_env(jax.random.key(1), state, actions)
    assert obs["world_state"].shape == (env.state_size,) == (28,)
    assert obs["world_state"].dtype == np.float32


def test_without_a_global_state_there_is_no_world_state():
    env = to_jaxmarl(Leavers())
    obs, _ = env.reset(jax.random.key(0))
    assert set(obs) == set(env.agents)
    assert not hasattr(env, "get_world_state") and not hasattr(env, "state_size")


@pytest.mark.skipif(not IS_INSTALLED, reason="the automatic reset is JaxMARL's own")
def test_the_same_keys_and_actions_give_what_our_own_step_gives():
    from jaxmarl.wrappers.baselines import LogWrapper

    logged, env = LogWrapper(to_jaxmarl(ARENA, PARAMS)), ARENA
    step, expected_step = jax.jit(logged.step), jax.jit(env.step)
    obs, state = logged.reset(jax.random.key(0))
    expected, expected_state = env.reset(jax.random.key(0), PARAMS)
    ends = 0
    for i in range(300):
        key = jax.random.key(i)
        actions = {agent: env.action_space(agent).sample(key) for agent in env.agents}
        obs, state, rewards, dones, info = step(key, state, actions)
        expected, expected_state, *rest = expected_step(key, expected_state, actions, PARAMS)
        expected_rewards, terminated, truncated, _ = rest
        for agent in env.agents:
            np.testing.assert_array_equal(obs[agent], expected[agent])
            assert rewards[agent] == expected_rewards[agent]
            assert dones[agent] == terminated[agent] | truncated[agent]
        assert dones["__all__"] == truncated["__all__"]
        ends += int(info["returned_episode"][0])
    assert ends == 60
