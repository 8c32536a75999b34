"""What the adapters to other libraries' environments share: a clock, equality, keys, arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.adapters.wrapping import (
    WrappedEnvironment,
    WrappedMultiAgent,
    all_ended,
    constructor_with,
    import_error,
    raw_key,
    require_known,
)
from jaxrl.core.env_checker import check_env
from jaxrl.core.errors import UsageError
from jaxrl.core.fast_prng import to_fast_key
from jaxrl.core.spaces import Box, Discrete, box_of


class Walk(WrappedEnvironment):
    """A library's walk: its state counts the steps to the right, and 3 of them end it."""

    def __init__(self, name="walk", time_limit="truncates", **args):
        super().__init__(f"fake:{name}", args, 5, time_limit)

    def observation_space(self, params=None):
        return Box(0.0, 10.0, (1,))

    def action_space(self, params=None):
        return Discrete(2)

    def reset_inner(self, key):
        return jnp.zeros(1), {"place": jnp.int32(0), "key": raw_key(key)}

    def step_inner(self, key, inner, action):
        place = inner["place"] + action
        return jnp.float32(place)[None], {**inner, "place": place}, jnp.float32(1), place == 3, {}

    def render(self, state, params):
        return self.picture(lambda inner: np.full((2, 2, 3), inner["place"]), state.inner)


class OtherWalk(Walk):
    pass


def walk(env, params, actions):
    """(terminated, truncated) after these actions."""
    _, state = env.reset_env(jax.random.key(0), params)
    for action in actions:
        _, state, _, terminated, _ = env.step_env(jax.random.key(0), state, action, params)
    return bool(terminated), bool(env.is_truncated(state, params))


def test_the_clock_truncates_and_terminates_only_if_asked_to():
    params = Walk().default_params
    assert params.max_steps_in_episode == 5
    assert walk(Walk(), params, [0] * 4) == (False, False)
    assert walk(Walk(), params, [0] * 5) == (False, True)
    assert walk(Walk(), params, [1, 1, 1]) == (True, False)
    assert walk(Walk(time_limit="terminates"), params, [0] * 5) == (True, True)
    assert walk(Walk(time_limit="terminates"), params, [0] * 4) == (False, False)


def test_a_wrapped_environment_keeps_the_contract_and_draws_within_a_program():
    check_env(Walk())
    _, state = Walk().reset_env(jax.random.key(0), None)
    state = state.replace(inner={**state.inner, "place": jnp.int32(7)})
    picture = jax.jit(Walk().render)(state, None)
    np.testing.assert_array_equal(picture, np.full((2, 2, 3), 7, np.uint8))


def test_only_the_same_class_name_and_arguments_are_equal():
    same = Walk(size=[1, 2]), Walk(size=(1, 2))
    assert same[0] == same[1] and hash(same[0]) == hash(same[1])
    others = [
        Walk(),
        Walk(size=[1, 3]),
        Walk("run", size=[1, 2]),
        Walk(time_limit="terminates", size=[1, 2]),
        OtherWalk(size=[1, 2]),
    ]
    assert all(same[0] != other for other in others)


def test_flags_of_agents_that_end_together_have_all_of_them():
    class Both(WrappedMultiAgent):
        agents = ("a", "b")

        def reset_inner(self, key):
            return {"a": 0, "b": 0}, jnp.int32(0)

        def step_inner(self, key, inner, action):
            return {}, inner, {}, all_ended(jnp.bool_(False), self.agents), {}

    env = Both("fake:both", {}, 1, "terminates")
    _, state = env.reset_env(jax.random.key(0), env.default_params)
    *_, terminated, _ = env.step_env(jax.random.key(0), state, {}, env.default_params)
    assert terminated == {"a": True, "b": True, "__all__": True}


def test_raw_keys_draw_what_the_key_draws():
    key = jax.random.key(7)
    expected = jax.random.uniform(key)
    assert jax.random.uniform(raw_key(key)) == expected
    assert jax.random.uniform(raw_key(to_fast_key(key))) == expected
    assert raw_key(jax.random.key(7, impl="rbg")).shape == (2,)


def test_a_constructor_has_the_arguments_of_a_function_or_those_named():
    def library(self, size=3, *rest, color="red", **more):
        pass

    made = constructor_with(lambda **args: args, library)
    assert list(made.__signature__.parameters) == ["size", "color", "time_limit"]
    assert list(constructor_with(dict, {"size": 3}).__signature__.parameters) == [
        "size",
        "time_limit",
    ]
    assert made(size=4) == {"size": 4}
    of_the_library = constructor_with(dict, {"time_limit": 400})  # of its own meaning
    assert of_the_library.__signature__.parameters["time_limit"].default == 400


def test_observations_known_by_their_types_have_the_bounds_of_these():
    boxes = {kind: box_of(jax.ShapeDtypeStruct((2,), kind)) for kind in ("bool", "int8", "float32")}
    assert boxes["bool"] == Box(0, 1, (2,), "bool")
    assert boxes["int8"] == Box(-128, 127, (2,), "int8")
    assert boxes["float32"] == Box(-np.inf, np.inf, (2,), "float32")


def test_wrong_time_limits_names_and_missing_libraries_are_told_in_one_line():
    with pytest.raises(UsageError, match="time_limit must be 'truncates' or 'terminates', not 5"):
        Walk(time_limit=5)
    with pytest.raises(UsageError, match="unknown fake environment 'wak'; did you mean 'walk'"):
        require_known("fake", "wak", ["walk", "run"])
    missing = import_error("fake", "fake", ModuleNotFoundError("No", name="fake"))
    assert str(missing) == (
        'environments fake:NAME: fake is not installed: pip install "jaxrl[fake]"'
    )
    broken = import_error("fake", "fake", ImportError("old numpy"))
    assert "fake cannot be imported (ImportError: old numpy)" in str(broken)
