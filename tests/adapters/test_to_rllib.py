"""Environments as RLlib's: who is given an observation, how an episode ends, training by its PPO.

Where Ray is not installed, an empty class stands in for RLlib's.
"""

import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest

from jaxrl import UsageError, to_rllib
from tests.probes import Forbidden, Leavers, Turns

IS_INSTALLED = importlib.util.find_spec("ray") is not None


@pytest.fixture(autouse=True)
def rllib(monkeypatch):
    if not IS_INSTALLED:
        for name in ("ray", "ray.rllib", "ray.rllib.env", "ray.rllib.env.multi_agent_env"):
            monkeypatch.setitem(sys.modules, name, ModuleType("stand_in"))
        sys.modules["ray.rllib.env.multi_agent_env"].MultiAgentEnv = type("StandIn", (), {})


def test_an_agent_that_waits_is_given_no_observation_but_its_reward():
    env = to_rllib(Turns())
    obs, infos = env.reset(seed=0)
    assert (obs, infos) == ({"a": 0}, {"a": {}})
    obs, rewards, terminated, truncated, _ = env.step({"a": 1})
    assert (obs, rewards) == ({"b": 1}, {"a": 0, "b": 0})
    assert terminated == truncated == {"a": False, "b": False, "__all__": False}
    obs, rewards, terminated, truncated, infos = env.step({"b": 1})
    assert (obs, rewards) == ({"a": 1, "b": 1}, {"a": 1, "b": 2})
    assert terminated == {"a": True, "b": True, "__all__": True}
    assert truncated == {"a": False, "b": False, "__all__": False}
    assert set(infos) == {"a", "b"}


def test_an_agent_that_leaves_is_shown_its_last_observation_and_no_more():
    env = to_rllib(Leavers())
    env.reset(seed=0)
    obs, _, terminated, *_ = env.step({"short": 1, "long": 0, "wide": 2})
    assert set(obs) == {"short", "long", "wide"}
    assert terminated == {"short": True, "long": False, "wide": False, "__all__": False}
    for _ in range(3):
        obs, rewards, terminated, truncated, _ = env.step({"long": 1, "wide": 0})
        assert set(obs) == set(rewards) == {"long", "wide"}
    assert truncated == {"long": True, "wide": True, "__all__": True}
    assert not terminated["__all__"]


def test_one_agent_has_its_mask_and_spaces_are_by_agent():
    env = to_rllib(Forbidden())
    obs, infos = env.reset(seed=0)
    (agent,) = env.possible_agents
    np.testing.assert_array_equal(infos[agent]["action_mask"], obs[agent])
    assert env.action_spaces[agent].n == 4
    *_, terminated, _, _ = env.step({agent: 0})
    assert terminated == {agent: True, "__all__": True}


def test_a_missing_action_is_refused_in_one_line():
    env = to_rllib("arena")
    env.reset(seed=0)
    with pytest.raises(UsageError, match="needs an action for agent 'agent2'"):
        env.step({"agent1": 0})


def test_without_ray_a_line_names_the_extra(monkeypatch):
    for name in ("ray", "ray.rllib.env.multi_agent_env"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r'needs RLlib: pip install "jaxrl\[rllib\]"'):
        to_rllib("arena")
