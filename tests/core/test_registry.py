"""Tests of the environment registry: every kind of name, the arguments, and the errors."""

import dataclasses
import sys
from importlib.metadata import EntryPoint

import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxrl import PPOConfig
from jaxrl.core import registry, trust
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make, names, register
from jaxrl.core.trust import parse_name
from tests.core.environments import Corridor, Params

HERE = "tests.core.environments"
OUR_ENVIRONMENTS = registry.OUR_ENVIRONMENTS
NEW_ENVIRONMENT = """
from jaxrl.core.env import Environment
from tests.core.environments import Corridor

class Settings: ...
class New(Corridor, Environment): ...
"""


@pytest.fixture(autouse=True)
def own_registrations(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def announce(monkeypatch, tmp_path):
    """Announces {name: "module:Class"} as an installed package would, and nothing else."""
    monkeypatch.setattr(registry, "OUR_ENVIRONMENTS", tmp_path / "no environments")

    def set_points(points, schemes=()):
        groups = {"jaxrl.envs": dict(points), "jaxrl.schemes": dict(schemes)}
        found = lambda *, group: [
            EntryPoint(name, value, group) for name, value in groups[group].items()
        ]
        monkeypatch.setattr(trust, "entry_points", found)

    return set_points


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module or package on the path, and forgets it after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(path, source):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        return file

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def says(message, name, **args):
    with pytest.raises(UsageError) as caught:
        make(name, **args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_environments_that_come_with_jaxrl_are_known():
    assert {"arena", "cartpole"} <= set(names())


def test_a_registered_environment_is_known_by_its_name_and_the_last_registration_counts():
    register("corridor", lambda: Corridor(length=1.0))
    register("corridor", Corridor)
    assert "corridor" in names()
    assert make("corridor") == (Corridor(), Params())


def test_a_registered_environment_goes_before_an_announced_one(announce):
    announce({"corridor": "nowhere:Nothing"})
    register("corridor", Corridor)
    assert make("corridor")[0] == Corridor()
    assert names() == ["corridor"]


def test_a_name_with_a_colon_cannot_be_registered():
    with pytest.raises(UsageError, match="'gymnax:Mine' must hold no ':'"):
        register("gymnax:Mine", Corridor)


def test_an_announced_environment_is_imported_only_when_it_is_made(announce, module):
    announce({"mine": "lazily_made:Mine"})
    module("lazily_made.py", f"from {HERE} import Corridor as Mine")
    assert names() == ["mine"]
    assert "lazily_made" not in sys.modules
    assert make("mine")[0] == Corridor()


def test_module_and_class_make_an_environment():
    assert make(f"{HERE}:Corridor", length=5.0)[0] == Corridor(length=5.0)


def test_a_scheme_leads_from_its_name_to_a_constructor(announce, module):
    module(
        "lessons.py",
        f"from {HERE} import Corridor\ndef constructor(name): return lambda: Corridor(float(name))",
    )
    announce({}, {"lesson": "lessons:constructor"})
    assert make("lesson:7")[0] == Corridor(length=7.0)


def test_arguments_go_to_the_constructor_or_to_params_by_their_names():
    register("corridor", Corridor)
    env, params = make("corridor", length=4.0, max_steps_in_episode=20)
    assert env == Corridor(length=4.0)
    assert params == Params(max_steps_in_episode=20)


def test_a_class_without_equality_is_one_object_for_the_same_arguments():
    class Unequal(Corridor):
        __eq__, __hash__ = object.__eq__, object.__hash__

    assert Unequal() != Unequal()
    register("unequal", Unequal)
    env, _ = make("unequal", length=4.0)
    assert make("unequal", length=4.0, max_steps_in_episode=20)[0] is env
    others = make("unequal", length=5.0)[0], make("unequal", length=4)[0], make("unequal")[0]
    assert env not in others and [other.length for other in others] == [5.0, 4, 3.0]
    assert type(others[1].length) is int


def test_params_may_be_any_dataclass():
    @dataclasses.dataclass(frozen=True)
    class Plain:
        gravity: float = 9.8

    class Falling(Corridor):
        default_params = Plain()

    register("falling", Falling)
    assert make("falling", gravity=1.6)[1] == Plain(gravity=1.6)


def test_a_constructor_of_any_arguments_still_leaves_the_numbers_of_params_to_params():
    def construct(*args, length=3.0, **more):
        assert not args
        assert not more
        return Corridor(length)

    register("corridor", construct)
    assert make("corridor", length=2.0, step_size=0.5) == (Corridor(2.0), Params(step_size=0.5))
    says("unknown argument 'args' of environment 'corridor'", "corridor", args=1)


def test_an_unknown_name_is_answered_with_the_nearest_one():
    says("unknown environment 'areena'; did you mean 'arena'? known: arena, ", "areena")
    says("gymnax:NAME, ", "areena")
    says(", module:Class, ", "areena")
    says(
        "unknown library 'gymnx' of environment 'gymnx:Catch'; did you mean 'gymnax'", "gymnx:Catch"
    )
    says("unknown environment ':Corridor'", ":Corridor")


def test_an_environment_is_known_by_a_file_in_the_folder_alone(module, tmp_path, monkeypatch):
    module("worlds/drawing.py", "class Canvas: ...")
    module("worlds/newone.py", NEW_ENVIRONMENT)
    found = registry.environments_in(tmp_path / "worlds", "worlds")
    assert {name: point.value for name, point in found.items()} == {"newone": "worlds.newone:New"}
    monkeypatch.setattr(registry, "environments_in", lambda *folder: found)
    assert "newone" in names()
    assert "worlds.newone" not in sys.modules
    assert make("newone", length=5.0)[0].length == 5.0
    assert registry.announced_name("worlds.newone:New") == "newone"


def test_our_environments_need_no_entry_point_and_no_package_takes_their_names(
    announce, monkeypatch
):
    announce({"arena": "nowhere:Nothing"})
    monkeypatch.setattr(registry, "OUR_ENVIRONMENTS", OUR_ENVIRONMENTS)
    assert names() == ["arena", "cartpole", "pursuit", "waterworld"]
    assert type(make("arena")[0]).__module__ == "jaxrl.envs.arena"


def test_an_unknown_argument_is_answered_with_the_nearest_one_of_both_kinds():
    register("corridor", Corridor)
    says(
        "unknown argument 'lenght' of environment 'corridor'; did you mean 'length'?",
        "corridor",
        lenght=3,
    )
    says("known: length, max_steps_in_episode, step_size", "corridor", gravity=3)


def test_all_arguments_are_named_of_an_environment_with_many():
    with pytest.raises(UsageError) as error:
        make("waterworld", n_pursuer=3)
    hint, _, known = str(error.value).partition(" known: ")
    assert hint.endswith("did you mean 'n_pursuers'?")
    env, params = make("waterworld")
    fields = [field.name for part in (env, params) for field in dataclasses.fields(part)]
    assert {name for name in fields if not name.startswith("_")} <= set(known.split(", "))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "long", None])
def test_a_number_of_params_must_be_finite(value):
    register("corridor", Corridor)
    says(
        f"environment 'corridor': step_size must be a finite number, not {value!r}",
        "corridor",
        step_size=value,
    )


def test_a_missing_module_or_class_is_named():
    says(
        "unknown environment 'no_such_module:Env': there is no module 'no_such_module'",
        "no_such_module:Env",
    )
    says("there is no module 'tests.core.nothing'", "tests.core.nothing:Env")
    says(
        f"unknown environment 'Coridor' in module '{HERE}'; did you mean 'Corridor'?",
        f"{HERE}:Coridor",
    )


def test_a_mistake_within_the_module_is_not_hidden(announce, module):
    module("needs_more.py", "import surely_not_installed")
    module("has_a_slip.py", "import math\nmath.no_such_function")
    announce({"needy": "needs_more:Env", "slip": "has_a_slip:Env"})
    for name in ("needs_more:Env", "needy"):
        with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
            make(name)
    for name in ("has_a_slip:Env", "slip"):
        with pytest.raises(AttributeError, match="no_such_function"):
            make(name)


def test_a_package_that_hides_the_announced_one_is_named_by_its_file(announce, module):
    announce({"mine": "myworlds.mine:Mine", "flat": "flatworlds.mine:Mine", "old": "myworlds:Mine"})
    hiding = module("myworlds/__init__.py", "")
    says(
        f"'mine' is announced as myworlds.mine:Mine, but the package 'myworlds' found is {hiding}",
        "mine",
    )
    says("which does not hold it: rename that one, or run from another folder", "mine")
    says(f"the package 'myworlds' found is {hiding}", "old")
    hiding = module("flatworlds.py", "")
    says(f"the package 'flatworlds' found is {hiding}", "flat")


def test_a_folder_without_init_that_hides_the_announced_package_is_named(
    announce, module, tmp_path
):
    announce({"mine": "bareworlds.mine:Mine"})
    module("bareworlds/other.py", "")
    says(f"the package 'bareworlds' found is {tmp_path / 'bareworlds'}", "mine")


def test_an_announced_package_that_is_gone_is_told_as_such(announce):
    announce({"mine": "goneworlds.mine:Mine"})
    says("the package 'goneworlds' found is none", "mine")


def test_another_package_of_a_similar_name_is_no_excuse(announce, module):
    module("myworlds2/__init__.py", "")
    module("myworlds2/mine.py", "import myworlds2_extras")
    announce({"mine": "myworlds2.mine:Mine"})
    with pytest.raises(ModuleNotFoundError, match="myworlds2_extras"):
        make("mine")


def test_an_environment_without_numbers_takes_none():
    @struct.dataclass
    class Empty:
        pass

    class Still(Corridor):
        default_params = Empty()

    register("still", Still)
    assert make("still")[1] == Empty()
    says("unknown argument 'step_size' of environment 'still'", "still", step_size=1.0)


@pytest.mark.parametrize(
    "text", ["m:A(x=1)(y=2)", "m:A(x=1, x=2)", "m:A(1)", "m:A(**{})", "m:A(x=y)"]
)
def test_arguments_that_are_not_plain_keywords_are_no_name(text):
    assert parse_name(text) is None
    assert parse_name("m:A(x=1, y=(2, 'z'))").arguments == {"x": 1, "y": (2, "z")}


def test_a_function_that_makes_an_environment_may_be_named(module):
    module(
        "makers.py",
        f"from {HERE} import Corridor\n"
        "def make_env(long=False): return Corridor(9.0 if long else 1.0)",
    )
    expected = (Corridor(9.0), Params(step_size=2.0))
    assert make("makers:make_env", long=True, step_size=2.0) == expected
    module("other_makers.py", "def make_env(): return {}")
    says("environment 'other_makers:make_env' must be", "other_makers:make_env")


@pytest.mark.parametrize(
    "make_number", [np.float32, np.asarray, jnp.asarray, lambda value: jnp.asarray(float(value))]
)
def test_a_number_may_be_an_array_of_no_axes(make_number):
    register("corridor", Corridor)
    env, params = make("corridor", length=make_number(4), max_steps_in_episode=make_number(20))
    assert (env.length, params.max_steps_in_episode) == (4, 20)
    assert (type(env.length), type(params.max_steps_in_episode)) in [(int, int), (float, int)]


def test_a_function_that_is_not_there_is_answered_with_the_nearest_one():
    with pytest.raises(UsageError) as refused:
        PPOConfig(env="arena", optimizer="optax:adma").setup()
    said = str(refused.value)
    assert said.startswith("unknown optimizer 'adma' in module 'optax'; did you mean ")
    assert "'adam'?" in said
    assert said.endswith(" names")
