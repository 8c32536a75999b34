"""What the adapters to other libraries' environments share: a clock, equality, keys, arguments."""

import enum
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.adapters.wrapping import (
    Maker,
    WrappedEnvironment,
    WrappedMultiAgent,
    all_ended,
    constructors,
    imported,
    raw_key,
)
from jaxrl.core.env_checker import check_env
from jaxrl.core.errors import UsageError
from jaxrl.core.fast_prng import to_fast_key
from jaxrl.core.spaces import Box, Discrete, box_of
from tests.messages import refused_by


class Walk(WrappedEnvironment):
    """A library's walk: its state counts the steps to the right, and 3 of them end it."""

    def __init__(self, name="walk", time_limit="truncates", **args):
        super().__init__(f"fake:{name}", args, 5)
        self.time_limit = time_limit

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

    env = Both("fake:both", {}, 1)
    env.time_limit = "terminates"
    _, state = env.reset_env(jax.random.key(0), env.default_params)
    *_, terminated, _ = env.step_env(jax.random.key(0), state, {}, env.default_params)
    assert terminated == {"a": True, "b": True, "__all__": True}


def test_raw_keys_draw_what_the_key_draws():
    key = jax.random.key(7)
    expected = jax.random.uniform(key)
    assert jax.random.uniform(raw_key(key)) == expected
    assert jax.random.uniform(raw_key(to_fast_key(key))) == expected
    assert raw_key(jax.random.key(7, impl="rbg")).shape == (2,)


def test_observations_known_by_their_types_have_the_bounds_of_these():
    boxes = {kind: box_of(jax.ShapeDtypeStruct((2,), kind)) for kind in ("bool", "int8", "float32")}
    assert boxes["bool"] == Box(0, 1, (2,), "bool")
    assert boxes["int8"] == Box(-128, 127, (2,), "int8")
    assert boxes["float32"] == Box(-np.inf, np.inf, (2,), "float32")


class Form(enum.Enum):
    ROUND = "round"


class Made:
    def __init__(self, args):
        self.args = args


ARGUMENTS = {"size": 3, "wind": 0.5, "loops": False, "map": "hills", "max_steps": 9, "rule": None}
ARGUMENTS |= {"form": Form.ROUND}


def make_walk(_, **args):
    if args.get("size") == 13:
        raise KeyError("thirteen")
    return Made(args)


@constructors("fake", lambda: ["walk", "run"])
def constructor(name):
    return Maker(make_walk, ARGUMENTS, {"map": ("hills", "plain")})


def test_a_constructor_has_the_arguments_of_the_library_and_our_time_limit():
    parameters = constructor("walk").__signature__.parameters
    expected = {**ARGUMENTS, "time_limit": "truncates"}
    assert {each: parameters[each].default for each in parameters} == expected
    other = constructors("fake", lambda: ["walk"])(
        lambda _: Maker(lambda _, **args: args, {"time_limit": 400}, has_time_limit=False)
    )
    assert other("walk").__signature__.parameters["time_limit"].default == 400


def test_values_of_a_defaults_kind_are_handed_on_as_pythons():
    args = {"size": np.int32(4), "wind": jnp.float32(0.5), "loops": True, "map": "plain"}
    args |= {"max_steps": 5.0, "rule": (1, [2]), "form": Form.ROUND}
    walk = constructor("walk")(time_limit="terminates", **args)
    assert walk.time_limit == "terminates" and constructor("walk")().time_limit == "truncates"
    assert walk.args == {**args, "size": 4, "wind": 0.5, "max_steps": 5}
    assert [type(walk.args[each]) for each in ("size", "wind", "max_steps")] == [int, float, int]
    assert constructor("walk")(size=0.5, wind=1).args == {"size": 0.5, "wind": 1}


def test_an_environment_knows_the_arguments_that_were_given():
    assert constructor("walk")(size=4).made_with == {"size": 4}
    assert constructor("walk")().made_with == {}


test_a_value_of_another_kind_is_refused_in_one_line = refused_by(
    lambda argument, value: constructor("walk")(**{argument: value}),
    [
        ("size", True, "size must be a finite number, not True"),
        ("size", 13, "environment fake:walk: {'size': 13} are refused: KeyError: 'thirteen'"),
        ("wind", float("nan"), "wind must be a finite number, not nan"),
        ("loops", 1, "loops must be True or False, not 1"),
        ("map", "hill", "unknown map 'hill' of environment 'fake:walk'; did you mean 'hills'"),
        ("max_steps", 0, "max_steps must be an integer of at least 1, not 0"),
        ("rule", {1}, "rule must be a number, a text, None, or a list or mapping of such, not {1}"),
        (
            "time_limit",
            5,
            "unknown time_limit '5' of environment 'fake:walk'; known: terminates, trunc",
        ),
        ("sise", 5, "unknown argument 'sise' of environment 'fake:walk'; did you mean 'size'"),
    ],
    literal=True,
)
OTHER_NAMES = ["wak", "", None, 5, np.zeros(3), ["walk"]]
test_another_name_is_refused_with_those_that_are_known = refused_by(
    constructor, [(name, "unknown fake environment .* known: run, walk") for name in OTHER_NAMES]
)


def imported_error(error):
    with pytest.raises(UsageError) as told, imported("fake", "fake"):
        raise error
    return str(told.value)


def test_a_library_that_is_not_there_or_too_old_is_told_with_what_installs_it():
    assert imported_error(ModuleNotFoundError("No", name="fake")) == (
        'environments fake:NAME: fake is not installed: pip install "jaxrl[fake]"'
    )
    for error in (ImportError("old"), AttributeError("old"), TypeError("old")):
        message = f"fake cannot be imported ({type(error).__name__}: old"
        assert message in imported_error(error)


def test_a_library_that_cannot_name_its_environments_is_told_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "fake", types.ModuleType("fake"))
    broken = constructors("fake", lambda: sys.modules["fake"].names())(lambda name: None)
    with pytest.raises(UsageError, match="fake:NAME cannot be listed: AttributeError"):
        broken("walk")
