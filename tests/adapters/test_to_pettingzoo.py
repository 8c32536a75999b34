"""Environments as PettingZoo's: its own tests, the same numbers as ours, agents that leave."""

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl import to_pettingzoo
from tests.messages import refused
from tests.probes import Forbidden, Leavers, Turns

pettingzoo = pytest.importorskip("pettingzoo")
from pettingzoo.test import parallel_api_test, parallel_seed_test  # noqa: E402
from pettingzoo.test.state_test import test_parallel_env as parallel_state_test  # noqa: E402

SMALL = {
    "arena": {"height": 4, "width": 4, "max_steps_in_episode": 12},
    "waterworld": {"n_pursuers": 2, "n_sensors": 4, "max_cycles": 12},
    "pursuit": {"x_size": 6, "y_size": 6, "n_evaders": 2, "n_pursuers": 3, "max_cycles": 12},
}


def small(name):
    return to_pettingzoo(*jaxrl.make(name, **SMALL[name]))


@pytest.mark.parametrize("name", SMALL)
def test_pettingzoos_own_tests_find_nothing(name):
    parallel_api_test(small(name), num_cycles=40)
    parallel_seed_test(lambda: small(name), num_cycles=20)
    parallel_state_test(small(name))


@pytest.mark.parametrize("env", [Leavers(), Turns(), Forbidden()], ids=["leave", "wait", "one"])
def test_agents_that_leave_wait_or_are_alone_pass_them_too(env):
    parallel_api_test(to_pettingzoo(env), num_cycles=40)
    parallel_seed_test(lambda: to_pettingzoo(env), num_cycles=20)


@pytest.mark.long
def test_the_same_keys_and_actions_give_what_our_own_environment_gives():
    env, params = jaxrl.make("pursuit", **SMALL["pursuit"])
    reset_env, step_env = jax.jit(env.reset_env), jax.jit(env.step_env)
    global_state = jax.jit(env.global_state)
    key, count, rng = jax.random.key(7), 0, np.random.default_rng(0)

    def next_key():
        nonlocal count
        count += 1
        return jax.random.fold_in(key, count - 1)

    adapted = to_pettingzoo(env, params)
    ends = 0
    obs, _ = adapted.reset(seed=7)
    expected, state = reset_env(jax.random.fold_in(next_key(), 0), params)
    for _ in range(1000):
        actions = {agent: rng.integers(5) for agent in env.agents}
        results = adapted.step(actions)
        expected, state, rewards, terminated, info = step_env(next_key(), state, actions, params)
        obs, *flags, infos = results
        np.testing.assert_allclose(adapted.state(), global_state(state, params), rtol=1e-5)
        late = bool(env.is_truncated(state, params))
        for agent in env.agents:
            np.testing.assert_allclose(obs[agent], expected[agent], rtol=1e-5)
            reached = late and not terminated[agent]
            assert flags[0][agent] == pytest.approx(float(rewards[agent]))
            assert (flags[1][agent], flags[2][agent]) == (terminated[agent], reached)
            assert infos[agent] == {"metrics": info["metrics"]}
        if not adapted.agents:
            ends += 1
            adapted.reset()
            expected, state = reset_env(jax.random.fold_in(next_key(), 0), params)
    assert ends > 80


def test_an_agent_that_has_left_is_given_nothing_and_acts_no_more():
    env = to_pettingzoo(Leavers())
    env.reset(seed=0)
    everybody = {"short": 1, "long": 0, "wide": 2}
    _, rewards, terminated, truncated, _ = env.step(everybody)
    assert rewards == {"short": 1, "long": 0, "wide": 1}
    assert terminated == {"short": True, "long": False, "wide": False}
    assert env.agents == ["long", "wide"]
    obs, rewards, terminated, truncated, infos = env.step({"long": 1, "wide": 0})
    for results in (obs, rewards, terminated, truncated, infos):
        assert list(results) == ["long", "wide"]
    assert rewards == {"long": 1, "wide": 0}
    env.step({"long": 1, "wide": 0})
    *_, truncated, _ = env.step({"long": 1, "wide": 0})
    assert truncated == {"long": True, "wide": True}
    assert env.agents == []


def test_agents_that_wait_stay_and_are_rewarded():
    env = to_pettingzoo(Turns())
    env.reset(seed=0)
    _, rewards, *_ = env.step({"a": 1, "b": 0})
    assert (rewards, env.agents) == ({"a": 0, "b": 0}, ["a", "b"])
    _, rewards, terminated, *_ = env.step({"a": 0, "b": 1})
    assert (rewards, terminated) == ({"a": 1, "b": 2}, {"a": True, "b": True})


def test_masks_are_each_agents_and_pictures_are_the_environments():
    env = to_pettingzoo(Forbidden())
    obs, infos = env.reset(seed=0)
    ((agent, mask),) = [(agent, info["action_mask"]) for agent, info in infos.items()]
    np.testing.assert_array_equal(mask, obs[agent])
    assert env.action_space(agent).sample(mask) in np.flatnonzero(mask)
    arena = to_pettingzoo("arena", render_mode="rgb_array")
    arena.reset(seed=0)
    assert arena.render().shape == (301, 301, 3)
    assert to_pettingzoo("arena").render() is None


def test_the_state_is_the_global_one_and_no_state_space_says_that_there_is_none():
    env = small("arena")
    env.reset(seed=0)
    state = env.state()
    assert state["positions"].tolist() == [0, 15] and state["time"] == 0
    env.step({"agent1": 1, "agent2": 3})  # right, left
    state = env.state()
    assert state["positions"].tolist() == [1, 14]
    assert state["time"] == pytest.approx(1 / 12)
    assert state["visited"].tolist() == [0, 1] + [0] * 14
    assert env.state_space.contains(state)
    without = to_pettingzoo(Turns())
    without.reset(seed=0)
    assert not hasattr(without, "state_space")
    with pytest.raises(NotImplementedError, match="no global_state"):
        without.state()


def ended():
    env = to_pettingzoo(Turns())
    env.reset(seed=0)
    for _ in range(2):
        env.step({"a": 0, "b": 0})
    return env


def started():
    env = to_pettingzoo("arena")
    env.reset(seed=0)
    return env


test_bad_input_is_refused_in_one_line = refused(
    [
        (lambda: to_pettingzoo("aren"), "did you mean 'arena'"),
        (lambda: to_pettingzoo("arena", render_mode="human"), "None or 'rgb_array', not 'human'"),
        (lambda: to_pettingzoo("arena").step({}), r"call reset\(\) before step\(\)"),
        (lambda: to_pettingzoo("arena").state(), r"call reset\(\) before state\(\)"),
        (lambda: started().step({"agent1": 0}), "needs an action for agent 'agent2'"),
        (
            lambda: started().step({"agent3": 0}),
            "unknown agent 'agent3'; did you mean 'agent2' or 'agent1'",
        ),
        (
            lambda: started().step({"agent1": 0, "agent2": 4}),
            r"whole numbers in Discrete\(n=4\), not 4",
        ),
        (lambda: ended().step({}), "the episode has ended"),
        (lambda: started().reset(seed=0.5), "a seed must be a whole number"),
    ]
)
