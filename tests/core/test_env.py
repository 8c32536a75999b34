"""Tests of jaxrl.core.env: automatic reset, ends of agents and episodes, stacked agents, Solo."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.core.env import (
    Environment,
    Solo,
    StackedEnvironment,
    lift,
    raw_reset,
    raw_step,
    restart,
    split_agents,
    stack_agents,
)
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import ALL, DEFAULT_AGENT, DEFAULT_POLICY
from tests.core.environments import Clock, Corridor, Pair, Params, Place, Trio
from tests.messages import refusal

KEY = jax.random.key(0)
RIGHT = jnp.int32(1)
PARAMS = Params()
WAIT = {
    "early": jnp.int32(1),
    "left": jnp.ones(2),
    "right": -jnp.ones(2),
}  # what the three agents do in these tests


class Bell(Trio):
    """Trio whose bell rings at a given step, or never."""

    rings_at = 0

    def step_env(self, key, state, action, params):
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        return obs, state, reward, {**terminated, ALL: state.time == self.rings_at}, info


def bell(rings_at):
    return type("Bell", (Bell,), {"rings_at": rings_at})()


def corridor_at(position, time):
    return Place(position=jnp.float32(position), time=jnp.int32(time))


def trees_equal(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)
    return jax.tree.structure(first) == jax.tree.structure(second)


# One agent


def test_a_step_within_an_episode_changes_nothing_that_step_env_gave():
    env, state = Corridor(), corridor_at(0.0, 3)
    obs, after, reward, terminated, truncated, info = env.step(KEY, state, RIGHT)
    raw_obs, raw_after, raw_reward, _, raw_info = env.step_env(
        jax.random.split(KEY)[0], state, RIGHT, PARAMS
    )
    assert trees_equal((obs, after, reward), (raw_obs, raw_after, raw_reward))
    assert trees_equal(info, {**raw_info, "final_observation": raw_obs})
    assert not terminated
    assert not truncated


@pytest.mark.parametrize(("position", "time"), [(2.5, 0), (0.0, 7)], ids=["the world", "the clock"])
def test_whatever_ended_the_episode_step_returns_a_new_one_and_the_true_last_observation(
    position, time
):
    env = Corridor()
    obs, state, _, terminated, truncated, info = env.step(KEY, corridor_at(position, time), RIGHT)
    assert (bool(terminated), bool(truncated)) == (time == 0, time == 7)
    assert trees_equal((obs, state), env.reset(jax.random.split(KEY)[1]))
    np.testing.assert_allclose(info["final_observation"], [position + 1.05, time + 1], atol=0.06)


def test_what_both_world_and_clock_end_is_terminated_alone():
    *_, terminated, truncated, _ = Corridor().step(KEY, corridor_at(2.5, 7), RIGHT)
    assert terminated
    assert not truncated


def test_params_default_to_the_environments_own_and_may_be_traced():
    env = Corridor()
    step = jax.jit(
        lambda limit: env.step(
            KEY, corridor_at(0.0, 3), RIGHT, PARAMS.replace(max_steps_in_episode=limit)
        )
    )
    assert step(4)[4]
    assert not step(5)[4]
    assert trees_equal(env.reset(KEY), env.reset(KEY, PARAMS))


def test_a_python_bool_of_step_env_makes_flags_all_the_same():
    class Endless(Corridor):
        def step_env(self, key, state, action, params):
            obs, state, reward, _, info = super().step_env(key, state, action, params)
            return obs, state, reward, False, info

    *_, terminated, truncated, _ = Endless().step(KEY, corridor_at(0.0, 7), RIGHT)
    assert terminated.dtype == truncated.dtype == bool
    assert (bool(terminated), bool(truncated)) == (False, True)


@pytest.mark.parametrize(
    "method", ["reset_env", "observation_space", "action_space", "default_params"]
)
def test_what_an_author_has_not_written_is_named(method):
    class Nothing(Environment):
        pass

    with pytest.raises(NotImplementedError, match=f"Nothing must define {method}"):
        getattr(Nothing(), method)(*(None,) * (2 if method == "reset_env" else 1))


def test_restart_takes_the_fresh_values_where_ended_in_the_type_of_those_reached():
    fresh, reached = {"time": 0, "at": jnp.zeros(2)}, {"time": jnp.int32(5), "at": jnp.ones(2)}
    assert trees_equal(restart(jnp.array(False), fresh, reached), reached)
    restarted = restart(jnp.array(True), fresh, reached)
    assert trees_equal(restarted, {"time": jnp.int32(0), "at": jnp.zeros(2)})
    assert restarted["time"].dtype == jnp.int32


def test_restart_takes_random_keys_too():
    fresh, reached = jax.random.key(1), jax.random.key(2)
    for ended, wanted in ((True, fresh), (False, reached)):
        got = restart(jnp.array(ended), {"key": fresh}, {"key": reached})["key"]
        assert trees_equal(jax.random.key_data(got), jax.random.key_data(wanted))


# Many agents


def test_an_agent_that_leaves_early_is_inactive_from_then_on_and_has_no_reward():
    env = bell(rings_at=0)
    raw = raw_step(env, KEY, Clock(time=jnp.int32(2)), WAIT, PARAMS)
    np.testing.assert_array_equal(raw.terminated, [True, False, False])
    np.testing.assert_array_equal(raw.active, [True, True, True])
    np.testing.assert_array_equal(raw.reward, [1.0, 2.0, -2.0])
    assert not raw.episode_done
    raw = raw_step(env, KEY, raw.state, WAIT, PARAMS)
    np.testing.assert_array_equal(raw.terminated, [False, False, False])
    np.testing.assert_array_equal(raw.active, [False, True, True])
    np.testing.assert_array_equal(raw.reward, [0.0, 2.0, -2.0])
    assert not raw.episode_done


def test_the_world_that_ends_terminates_everybody_who_is_still_there():
    raw = raw_step(bell(rings_at=5), KEY, Clock(time=jnp.int32(4)), WAIT, PARAMS)
    np.testing.assert_array_equal(raw.terminated, [False, True, True])
    np.testing.assert_array_equal(raw.truncated, [False, False, False])
    assert raw.all_terminated
    assert raw.episode_done


def test_the_clock_truncates_everybody_who_is_still_there():
    raw = raw_step(bell(rings_at=0), KEY, Clock(time=jnp.int32(7)), WAIT, PARAMS)
    np.testing.assert_array_equal(raw.terminated, [False, False, False])
    np.testing.assert_array_equal(raw.truncated, [False, True, True])
    assert not raw.all_terminated
    assert raw.episode_done


def test_many_agents_what_both_world_and_clock_end_is_terminated_alone():
    raw = raw_step(bell(rings_at=8), KEY, Clock(time=jnp.int32(7)), WAIT, PARAMS)
    np.testing.assert_array_equal(raw.terminated, [False, True, True])
    assert not np.any(raw.truncated)
    *_, terminated, truncated, _ = bell(rings_at=8).step(KEY, Clock(time=jnp.int32(7)), WAIT)
    assert terminated[ALL]
    assert not truncated[ALL]


def test_an_agent_that_leaves_as_the_clock_runs_out_is_terminated_and_the_others_truncated():
    raw = raw_step(
        bell(0), KEY, Clock(time=jnp.int32(2)), WAIT, PARAMS.replace(max_steps_in_episode=3)
    )
    np.testing.assert_array_equal(raw.terminated, [True, False, False])
    np.testing.assert_array_equal(raw.truncated, [False, True, True])


def test_the_world_has_ended_when_nobody_is_left():
    env, left_alone = Pair(), Clock(time=jnp.int32(5))
    keys = jax.random.split(KEY, 20)
    step = jax.vmap(lambda key: raw_step(env, key, left_alone, jnp.array([1, 1]), PARAMS))
    raw = jax.device_get(jax.jit(step)(keys))
    left = raw.obs[:, 0, 0] > 1.5  # the first agent leaves there; the second one has left before
    assert set(left) == {True, False}
    np.testing.assert_array_equal(raw.all_terminated, left)
    np.testing.assert_array_equal(raw.terminated, np.stack([left, np.zeros_like(left)], 1))


def test_many_agents_step_starts_a_new_episode_and_keeps_the_true_last_observations():
    env = bell(rings_at=5)
    obs, state, reward, terminated, truncated, info = env.step(KEY, Clock(time=jnp.int32(4)), WAIT)
    assert trees_equal((obs, state), env.reset(jax.random.split(KEY)[1]))
    assert trees_equal(info["final_observation"], env.observe(jnp.int32(5)))
    assert trees_equal(terminated, {"early": False, "left": True, "right": True, ALL: True})
    assert trees_equal(truncated, {"early": False, "left": False, "right": False, ALL: False})
    assert trees_equal(info["active"], {"early": False, "left": True, "right": True})
    assert trees_equal(reward, {"early": 0.0, "left": 2.0, "right": -2.0})


def test_many_agents_a_step_within_an_episode_goes_on():
    env = bell(rings_at=0)
    obs, state, _, terminated, truncated, info = env.step(KEY, Clock(time=jnp.int32(4)), WAIT)
    assert trees_equal((obs, state), (env.observe(jnp.int32(5)), Clock(time=jnp.int32(5))))
    assert trees_equal(info["final_observation"], obs)
    assert not any((*terminated.values(), *truncated.values()))


def test_agents_are_active_unless_the_environment_says_otherwise():
    class Silent(Bell):
        def step_env(self, key, state, action, params):
            return *super().step_env(key, state, action, params)[:4], {}

    raw = raw_step(Silent(), KEY, Clock(time=jnp.int32(5)), WAIT, PARAMS)
    np.testing.assert_array_equal(raw.active, [True, True, True])


def test_by_default_every_agent_has_a_policy_of_its_own():
    assert Trio().default_policies == {"early": ("early",), "left": ("left",), "right": ("right",)}


# Stacked agents


def test_splitting_by_agent_and_stacking_again_changes_nothing():
    values = {"a": jnp.arange(6).reshape(2, 3), "b": jnp.arange(2)}
    by_agent = split_agents(Pair(), values)
    np.testing.assert_array_equal(by_agent["second"]["a"], [3, 4, 5])
    assert trees_equal(stack_agents(Pair(), by_agent), values)


def test_stacking_follows_the_order_of_agents_not_of_the_dict():
    np.testing.assert_array_equal(
        stack_agents(Pair(), {"second": jnp.int32(2), "first": jnp.int32(1)}), [1, 2]
    )


def test_the_dict_face_of_a_stacked_environment_is_the_stacked_one_split():
    env, state, action = Pair(), Clock(time=jnp.int32(1)), jnp.array([0, 1])
    obs, reached, reward, terminated, info = env.step_env(
        KEY, state, split_agents(env, action), PARAMS
    )
    raw = raw_step(env, KEY, state, action, PARAMS)
    assert trees_equal((obs, reached), (split_agents(env, raw.obs), raw.state))
    assert trees_equal(reward, {"first": 0.0, "second": 1.0})
    assert trees_equal(terminated, {"first": False, "second": True, ALL: False})
    assert trees_equal(info["active"], {"first": True, "second": True})
    assert trees_equal(env.reset(KEY)[0], split_agents(env, raw_reset(env, KEY, PARAMS)[0]))


def test_a_stacked_environment_takes_actions_in_either_form():
    env, state, action = Pair(), Clock(time=jnp.int32(1)), jnp.array([0, 1])
    by_agent = raw_step(env, KEY, state, split_agents(env, action), PARAMS)
    assert trees_equal(by_agent, raw_step(env, KEY, state, action, PARAMS))


def test_a_state_of_python_numbers_can_be_a_scans_carry():
    class Plain(StackedEnvironment):
        agents = ("only",)
        default_params = Params()

        def reset_stacked(self, key, params):
            return jnp.zeros((1, 1)), Clock(time=0)

        def step_stacked(self, key, state, action, params):
            return (
                jnp.zeros((1, 1)),
                Clock(time=state.time + 1),
                jnp.zeros(1),
                jnp.zeros(1, bool),
                {},
            )

    _, state = raw_reset(Plain(), KEY, PARAMS)
    assert state.time.dtype == jnp.int32
    assert not state.time.weak_type
    assert raw_step(Plain(), KEY, state, jnp.zeros(1), PARAMS).state.time.weak_type is False


# One agent as many


def test_solo_does_what_the_single_environment_does():
    single, solo = Corridor(), Solo(Corridor())
    key = jax.random.key(3)

    def play(env, act, values):
        def step(state, key):
            obs, state, reward, terminated, truncated, info = env.step(key, state, act)
            return state, jax.tree.map(
                jnp.asarray, values(obs, reward, terminated, truncated, info)
            )

        return jax.lax.scan(step, env.reset(key)[1], jax.random.split(key, 30))[1]

    alone = play(
        single,
        RIGHT,
        lambda o, r, te, tr, info: (o, r, te, tr, info["final_observation"], info["metrics"]),
    )
    only = lambda values: values[DEFAULT_AGENT]
    lifted = play(
        solo,
        {DEFAULT_AGENT: RIGHT},
        lambda o, r, te, tr, info: (
            *map(only, (o, r, te, tr, info["final_observation"])),
            info["metrics"],
        ),
    )
    assert np.any(alone[2])
    assert trees_equal(alone, lifted)


def test_solo_is_one_agent_of_one_policy_with_the_environments_own_spaces():
    env = Solo(Corridor())
    assert env.agents == (DEFAULT_AGENT,)
    assert env.default_policies == {DEFAULT_POLICY: (DEFAULT_AGENT,)}
    assert env.observation_space(DEFAULT_AGENT, PARAMS) == Box(-200.0, 200.0, (2,))
    assert env.action_space(DEFAULT_AGENT) == Discrete(2)
    assert (env.name, env.default_params) == ("Corridor", PARAMS)


def test_solo_is_equal_and_hashes_alike_where_the_environment_does():
    assert Solo(Corridor(2.0)) == Solo(Corridor(2.0)) != Solo(Corridor(3.0))
    assert len({Solo(Corridor(2.0)), Solo(Corridor(2.0)), Corridor(2.0)}) == 2


def test_solo_has_the_optional_methods_that_the_environment_has():
    class Tuned(Corridor):
        tuned = {"lr": 1e-3}  # noqa: RUF012

    assert Solo(Tuned()).tuned == {"lr": 1e-3}
    assert not hasattr(Solo(Tuned()), "render")


def test_what_is_no_environment_is_refused_with_the_method_that_it_lacks():
    class FiveValues:
        """As gymnax was before 1.0: `done`, and no clock to ask."""

        reset_env = step_env = observation_space = action_space = default_params = None

    with pytest.raises(UsageError, match="FiveValues is no environment: it has no `is_truncated`"):
        Solo(FiveValues())


def test_lift_leaves_many_agents_alone_and_takes_one_as_solo():
    assert lift(Trio()) == Trio()
    assert lift(Corridor()) == Solo(Corridor())


@pytest.mark.parametrize(
    ("env", "call"), [("cartpole", "params"), ("arena", "agent, params")], ids=["one", "many"]
)
def test_who_takes_the_methods_of_spaces_for_spaces_is_told_how_to_call_them(env, call):
    env, _ = jaxrl.make(env)
    for ask in (lambda: env.observation_space.contains, lambda: env.action_space.sample):
        with refusal(rf"_space is a method, and has no '\w+': env\.\w+_space\({call}\)\.\w+"):
            ask()
    assert not hasattr(env.action_space, "n") and callable(env.action_space)
    space = type(env).action_space  # of the class it is the function, for subclasses to call
    agents = env.agents[:1] if hasattr(env, "agents") else ()
    assert space(env, *agents) == env.action_space(*agents)
    assert list(inspect.signature(env.action_space).parameters) == call.split(", ")
