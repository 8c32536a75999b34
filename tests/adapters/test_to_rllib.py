"""Environments as RLlib's: who is given an observation, how an episode ends, copies that step
together, training by its PPO.

Where Ray is not installed, an empty class stands in for RLlib's.
"""

import importlib.util
import sys
from types import ModuleType

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl import UsageError, to_rllib, to_rllib_vector
from tests.probes import Crowd, Forbidden, Joining, Leavers, Turns

IS_INSTALLED = importlib.util.find_spec("ray") is not None
STAND_INS = {
    "ray.rllib.env.multi_agent_env": "MultiAgentEnv",
    "ray.rllib.env.vector.vector_multi_agent_env": "VectorMultiAgentEnv",
}


@pytest.fixture(autouse=True)
def rllib(monkeypatch):
    if IS_INSTALLED:
        return
    for module in STAND_INS:
        for end in range(module.count(".") + 1):
            monkeypatch.setitem(sys.modules, module.rsplit(".", end)[0], ModuleType("stand_in"))
    for module, name in STAND_INS.items():
        setattr(sys.modules[module], name, type("StandIn", (), {}))


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


def alone(envs, ended, actions):
    """A step of copies that step one by one; those whose episodes ended are reset by it."""
    results = []
    for env, new, action in zip(envs, ended, actions, strict=True):
        if new:
            obs, infos = env.reset()
            never = dict.fromkeys([*env.possible_agents, "__all__"], False)
            rewards = dict.fromkeys(env.possible_agents, 0.0)
            results.append((obs, rewards, never, dict(never), infos))
        else:
            results.append(env.step(action))
    return tuple(map(list, zip(*results, strict=True)))


def same(found, expected):
    """Equal trees, with equal types of their leaves."""
    types = lambda leaf: (type(leaf), np.shape(leaf), np.asarray(leaf).dtype)
    assert jax.tree.map(types, found) == jax.tree.map(types, expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
    "env", ["arena", Turns(), Leavers(), Joining(), Crowd(), Forbidden()], ids=lambda env: str(env)
)
def test_copies_that_step_together_play_the_episodes_of_each_by_itself(env):
    together, envs = to_rllib_vector(env, 3), [to_rllib(env) for _ in range(3)]
    obs, infos = together.reset(seed=7)
    firsts = [each.reset(seed=7 + i) for i, each in enumerate(envs)]
    same((obs, infos), tuple(map(list, zip(*firsts, strict=True))))
    sample = {agent: space.sample for agent, space in envs[0].action_spaces.items()}
    ended, ends = [False] * 3, 0
    for _ in range(102 if env == "arena" else 16):
        actions = [
            {} if new else {agent: sample[agent]() for agent in row if agent in each.agents}
            for new, row, each in zip(ended, obs, envs, strict=True)
        ]
        results, expected = together.step(actions), alone(envs, ended, actions)
        same(results, expected)
        assert [each.agents for each in together.envs] == [each.agents for each in envs]
        obs, _, terminated, truncated, _ = results
        ended = [a["__all__"] or b["__all__"] for a, b in zip(terminated, truncated, strict=True)]
        ends += sum(ended)
    assert ends >= 3


def test_copies_refuse_what_they_cannot_do_in_one_line():
    envs = to_rllib_vector(Leavers(), 2, render_mode=None)
    with pytest.raises(UsageError, match=r"call reset\(\) before step\(\)"):
        envs.step([{}, {}])
    envs.reset(seed=0)
    acting = {"short": 1, "long": 0, "wide": 2}
    with pytest.raises(UsageError, match="needs 2 dicts of actions, not 1"):
        envs.step([acting])
    with pytest.raises(UsageError, match="needs an action for agent 'long'"):
        envs.step([acting, {"short": 1, "wide": 0}])
    with pytest.raises(UsageError, match="must have the structure and shape"):
        envs.step([acting, acting | {"short": np.zeros(2, int)}])
    for method in (envs.envs[1].reset, lambda: envs.envs[1].step(acting)):
        with pytest.raises(UsageError, match="of the vector environment"):
            method()
    with pytest.raises(UsageError, match="num_envs"):
        to_rllib_vector(Leavers(), 0)


def test_a_copy_has_its_picture():
    envs = to_rllib_vector("arena", 2, render_mode="rgb_array")
    envs.reset(seed=[3, 4])
    alone = to_rllib("arena", render_mode="rgb_array")
    alone.reset(seed=4)
    np.testing.assert_array_equal(envs.envs[1].render(), alone.render())
    np.testing.assert_array_equal(envs.render()[1], alone.render())


def config_of(name, **runner):
    from ray.rllib.algorithms.ppo import PPOConfig

    return (
        PPOConfig()
        .environment(name)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4, **runner)
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    )


@pytest.mark.slow
def test_ppo_of_rllib_trains_on_copies_that_step_together():
    pytest.importorskip("ray.rllib")
    from ray.rllib.connectors.env_to_module import FlattenObservations
    from ray.tune.registry import register_env

    register_env("arena", lambda config: to_rllib("arena"))
    config = config_of(
        "arena",
        env_runner_cls=jaxrl.rllib_env_runner(),
        env_to_module_connector=lambda *_: FlattenObservations(multi_agent=True),
    ).multi_agent(policies=["both"], policy_mapping_fn=lambda *_, **__: "both")
    algorithm = config.build_algo()
    envs = algorithm.env_runner.env
    assert isinstance(envs, sys.modules[to_rllib_vector.__module__].RllibVectorEnv)
    for _ in range(7):  # an episode has 100 steps
        result = algorithm.train()
    algorithm.stop()
    assert result["env_runners"]["episode_len_mean"] == 100
    register_env("gymnasium", lambda config: jaxrl.to_gymnasium("cartpole"))
    with pytest.raises(UsageError, match=r"needs an environment made by jaxrl\.to_rllib"):
        config.environment("gymnasium").copy(copy_frozen=False).build_algo()


@pytest.mark.slow
def test_ppo_of_rllib_trains_on_a_vector_environment_of_one_agent():
    pytest.importorskip("ray.rllib")
    from ray.tune.registry import register_env

    register_env("cart", lambda config: jaxrl.to_gymnasium_vector("cartpole", config["num_envs"]))
    algorithm = config_of("cart", gym_env_vectorize_mode="vector_entry_point").build_algo()
    result = algorithm.train()
    algorithm.stop()
    assert result["env_runners"]["num_env_steps_sampled"] >= 64
