"""The installed package.

What a wheel holds, and that a project's own folder `envs` is left to the project.
"""

import dataclasses
import inspect
import shutil
import subprocess
import sys
import tomllib
import typing
import zipfile
from pathlib import Path

import pytest

from jaxrl import PPOConfig, Trainer
from jaxrl.algorithms.ppo.keywords import PPOKeywords, TunedKeywords
from jaxrl.core.foreign_names import LIBRARIES
from jaxrl.core.registry import make
from jaxrl.replay.run_pages import LIVE
from jaxrl.run.settings import RunKeywords, RunSettings

ROOT = Path(__file__).resolve().parents[1]
ENVS = {file.relative_to(ROOT / "envs") for file in (ROOT / "envs").rglob("*.py")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names in a wheel built from a copy of the tracked files."""
    pytest.importorskip("setuptools", minversion="77")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("no git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith(("tests/", "benchmarks/")) and (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    code = f"from setuptools.build_meta import build_wheel; build_wheel({str(out)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return zipfile.ZipFile(next(out.glob("*.whl"))).namelist()


@pytest.mark.long
def test_a_wheel_holds_the_environments_within_jaxrl_and_nothing_beside_it(wheel):
    expected = {"jaxrl", f"jaxrl-{PROJECT['version']}.dist-info"}
    assert {name.partition("/")[0] for name in wheel} == expected
    inside = {name.removeprefix("jaxrl/envs/") for name in wheel if name.startswith("jaxrl/envs/")}
    assert inside == {*map(str, ENVS)}
    assert "jaxrl/py.typed" in wheel
    data = {f"jaxrl/core/names/{library.lower()}.toml" for library in LIBRARIES}
    assert {name for name in wheel if name.endswith(".toml")} == data


def test_a_wheel_holds_the_files_of_the_pages_with_the_licence_of_their_library(wheel):
    files = {name.removeprefix("jaxrl/replay/") for name in wheel}
    assert {*LIVE, "player.html", "uplot/LICENSE"} <= files


def test_a_wheel_of_the_client_holds_its_modules_and_the_reader_of_policies(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    assert (ROOT / "client/python/jaxrl_client/numpy_policy.py").is_symlink()  # no second copy
    source = tmp_path / "client"
    shutil.copytree(ROOT / "client" / "python", source)  # follows the link to the reader
    code = f"from setuptools.build_meta import build_wheel; build_wheel({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    wheel = zipfile.ZipFile(next(tmp_path.glob("jaxrl_client-*.whl")))
    modules = {name for name in wheel.namelist() if name.endswith(".py")}
    expected = {file.name for file in (ROOT / "client/python/jaxrl_client").glob("*.py")}
    assert modules == {f"jaxrl_client/{name}" for name in expected} and len(expected) == 5
    assert b"class NumpyPolicy" in wheel.read("jaxrl_client/numpy_policy.py")


def test_a_checkout_has_jaxrl_envs_by_a_link_that_python_and_type_checkers_follow():
    link = ROOT / "jaxrl" / "envs"
    assert link.is_symlink()
    assert link.readlink() == Path("../envs")
    assert not (link / "__init__.py").exists()  # a project's own folder `envs` would be hidden


@pytest.mark.parametrize(
    ("keywords", "settings", "left_out"),
    [
        (TunedKeywords, PPOConfig, ("env", "env_args")),
        (PPOKeywords, PPOConfig, ()),
        (RunKeywords, RunSettings, ()),
    ],
)
def test_the_keywords_that_editors_complete_are_the_declared_settings(keywords, settings, left_out):
    declared = {
        field.name: field.type
        for field in dataclasses.fields(settings)
        if field.name not in left_out
    }
    assert typing.get_type_hints(keywords) == declared
    assert not keywords.__required_keys__


@pytest.mark.parametrize(
    ("function", "keywords"),
    [
        (PPOConfig.tuned, TunedKeywords),
        (PPOConfig.fast, TunedKeywords),
        (PPOConfig.replace, PPOKeywords),
        (Trainer.__init__, RunKeywords),
        (Trainer.from_checkpoint, RunKeywords),
    ],
)
def test_a_function_of_any_setting_says_so_to_type_checkers(function, keywords):
    (changes,) = [
        part
        for part in inspect.signature(function).parameters.values()
        if part.kind == part.VAR_KEYWORD
    ]
    assert changes.annotation == typing.Unpack[keywords]


@pytest.fixture
def user_envs(tmp_path, monkeypatch):
    """A project's own folder `envs`, first on the path.

    `envs` and its modules are forgotten after the test.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "envs"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "envs").mkdir()
    yield tmp_path / "envs"
    for name in [name for name in sys.modules if name.split(".")[0] == "envs"]:
        del sys.modules[name]


@pytest.mark.parametrize("regular", [True, False])
def test_a_project_with_a_folder_envs_of_its_own_makes_our_environments_and_its_own(
    user_envs, regular
):
    if regular:
        (user_envs / "__init__.py").write_text("")
    (user_envs / "mine.py").write_text("from tests.core.environments import Corridor as Mine\n")
    assert type(make("cartpole")[0]).__module__ == "jaxrl.envs.cartpole"
    assert type(make("envs.mine:Mine")[0]).__name__ == "Corridor"
