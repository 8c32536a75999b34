"""Python environments by name: what registers them is imported, and what fails is one line."""

import sys
from types import SimpleNamespace

import gymnasium
import pytest

import jaxrl
from jaxrl.core.python_kinds import VECTOR, kind_of
from jaxrl.outside.workers.sources import make_copy, source_of


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes a module on the path, and forgets it and what it registers after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules, registered = set(sys.modules), set(gymnasium.registry)

    def write(path, source):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)

    yield write
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    for name in set(gymnasium.registry) - registered:
        del gymnasium.registry[name]


def made(name):
    return make_copy(source_of(name))


def refused(name):
    """The one line that refuses a name."""
    with pytest.raises(jaxrl.UsageError) as error:
        made(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_name_without_a_version_is_gymnasiums_newest():
    assert made("gym:CartPole").spec.id == "CartPole-v1"
    assert made("gym:Pendulum-v1").spec.id == made("gym:Pendulum").spec.id
    assert "did you mean 'CartPole-v1'" in refused("gym:CartPol")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("ale_py", "ALE/Tiny-v5"),
        ("minigrid", "MiniGrid-Tiny-v0"),
        ("minigrid", "BabyAI-Tiny-v0"),
        ("highway_env", "highway-tiny-v0"),
    ],
)
def test_what_registers_a_name_is_imported(package, module, name):
    if module in sys.modules:
        pytest.skip("it has registered its names")
    entry = "gymnasium.envs.classic_control:CartPoleEnv"
    package(f"{module}.py", f"import gymnasium\ngymnasium.register({name!r}, {entry!r})\n")
    assert made(f"gym:{name}").spec.id == name
    assert made(f"gym:{name.rpartition('-')[0]}").spec.id == name


def test_a_package_that_is_not_there_is_named():
    assert "needs miniworld, which is not installed: pip install miniworld" in refused(
        "gym:MiniWorld-Hallway-v0"
    )
    assert refused("gym:no_such_module:Mine-v0").endswith(
        "needs no_such_module, which is not installed"
    )
    assert refused("gym:Mine/Walk-v0").endswith("one that a package registers is gym:MODULE:NAME")


def test_an_import_that_fails_is_one_line_however_it_fails(package):
    package("old_library.py", "import numpy\nnumpy.bool8_of_old('two\\nlines')\n")
    assert "old_library cannot be imported: AttributeError" in refused("gym:old_library:Mine-v0")


GAME = """
class Game:
    possible_agents = ['a']
    def reset(self, seed=None, options=None): ...
    def step(self, actions): ...
def parallel_env(**args): return Game()
"""


def test_a_family_that_left_pettingzoo_is_found_in_its_own_package(package, monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo.mpe", None)  # importing it raises
    if "mpe2" in sys.modules:
        pytest.skip("mpe2 is imported already")
    package("mpe2/__init__.py", "")
    package("mpe2/simple_v3.py", "raise RuntimeError('an older version')")
    package("mpe2/simple_v12.py", GAME)
    assert type(made("pettingzoo:mpe/simple_v12")).__name__ == "Game"
    assert type(made("pettingzoo:mpe/simple")).__name__ == "Game"
    assert "RuntimeError: an older version" in refused("pettingzoo:mpe/simple_v3")
    assert "did you mean 'mpe/simple_v12'" in refused("pettingzoo:mpe/simple_v1")


def test_a_family_that_left_and_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo.magent", None)
    monkeypatch.setitem(sys.modules, "magent2", None)
    assert "pip install magent2" in refused("pettingzoo:magent/battle_v4")


def test_vector_environments_that_do_not_reset_as_known_ones_are_refused_with_the_way_out():
    box = gymnasium.spaces.Box(0, 1, (2,))

    class MarkovVectorEnv(gymnasium.vector.VectorEnv):
        observation_space, action_space, num_envs = box, box, 2

    class VecEnv(SimpleNamespace):
        def reset(self): ...
        def step(self, actions): ...

    for env in (MarkovVectorEnv(), VecEnv(observation_space=box, action_space=box, num_envs=2)):
        assert kind_of(env) == VECTOR
        with pytest.raises(jaxrl.UsageError, match="give the environment that it holds copies of"):
            jaxrl.make(env)


def test_an_unknown_scheme_lists_the_schemes():
    with pytest.raises(jaxrl.UsageError, match=r"no module 'kinetix'; known libraries: brax, .*"):
        jaxrl.make("kinetix:x")
