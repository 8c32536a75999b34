"""Whatever a user or a package can start is there: modules, entry points, extras, scripts.

That benchmarks, pages and notebooks run is in test_benchmarks.py, test_docs.py, test_examples.py.
"""

import ast
import functools
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from jaxrl.core.errors import UsageError

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOLDERS = ("jaxrl", "envs", "benchmarks", "scripts", "docs", "examples", "client")
FILES = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
ON_THE_PATH = [ROOT, ROOT / "client" / "python", ROOT / "benchmarks", ROOT / "docs"]
OURS = ("jaxrl", "envs", "jaxrl_client", "tests")
NAMED = re.compile(r"(?<!\w)(?:jaxrl|\.)\[([a-z0-9,]+)\]")
FOR_PEOPLE = {"test", "notebook", "docs", "cuda", "sisl", "peers"}  # not of the code that users run
IMPORTED_AS = {
    "playground": "mujoco_playground",
    "mlflow-skinny": "mlflow",
}  # under other names than pip's
WITH_OTHERS = {  # imported by the package beside it, which does not ask for it
    *(
        "torch",
        "imageio",
        "flatbuffers",
        "sqlalchemy",
        "alembic",
        "opencv_python_headless",
        "pillow",
    )
}
CHECK = """
import importlib, json, sys, warnings
warnings.simplefilter("error")
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}"
print(json.dumps(failed))
"""


def imports(path):
    """(module, name) of everything that a file imports, at its top or within a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def is_there(module, name):
    """Whether a module of ours has the name; what needs a package that is missing here passes."""
    try:
        found = importlib.import_module(module)
        if name and name != "*" and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError as error:
        return (error.name or "").partition(".")[0] not in OURS
    return True


@pytest.fixture
def on_the_path(monkeypatch):
    for folder in ON_THE_PATH:
        monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_that_a_file_takes_from_another_of_ours_is_there(folder, on_the_path):
    """In functions as well: a benchmark that begins with an ImportError is found here."""
    missing = []
    for path in (file for file in FILES if file.is_relative_to(ROOT / folder)):
        for module, name in imports(path):
            if module.partition(".")[0] in OURS and not is_there(module, name):
                missing.append(f"{path.relative_to(ROOT)}: {module}.{name or ''}")
    assert missing == []


def modules_of(folder):
    """The names of the modules below a folder of the package."""
    for file in sorted((ROOT / folder).rglob("*.py")):
        path = file.relative_to(ROOT).with_suffix("")
        yield ".".join(path.parts[:-1] if path.name == "__init__" else path.parts)


@pytest.mark.process
@pytest.mark.parametrize(
    "part", sorted({name.split(".")[1] for name in modules_of("jaxrl") if "." in name})
)
def test_a_fresh_process_imports_every_module_of_a_part(part):
    """Of each part the last module first, so that none leans on what another has imported."""
    names = [name for name in modules_of("jaxrl") if name.split(".")[1:2] == [part]]
    said = subprocess.run(
        [sys.executable, "-c", CHECK, json.dumps(names[::-1])],
        **{"cwd": ROOT, "capture_output": True, "text": True, "check": True},
    ).stdout
    failed = json.loads(said.splitlines()[-1])
    packages = {name for extra in EXTRAS.values() for name in map(import_name, extra)}
    absent = {f"No module named '{package}'" for package in packages if not installed(package)}
    absent.add("is not installed: pip install")  # as an adapter says it
    assert [
        f"{name}: {error}"
        for name, error in failed.items()
        if not any(part in error for part in absent)
    ] == []


@pytest.mark.parametrize("group", sorted(PROJECT["entry-points"]))
def test_every_entry_point_can_be_called_or_names_the_extra_that_it_needs(group):
    for value in PROJECT["entry-points"][group].values():
        module, _, attribute = value.partition(":")
        try:
            assert callable(getattr(importlib.import_module(module), attribute)), value
        except UsageError as error:
            (extra,) = NAMED.findall(str(error))
            assert extra in EXTRAS


def test_the_command_leads_to_a_function():
    for value in PROJECT["scripts"].values():
        module, _, attribute = value.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))


@functools.cache
def packages_taken():
    """What the files of ours import, ours and others'."""
    return {module.partition(".")[0] for file in FILES for module, _ in imports(file)}


def import_name(requirement):
    name = re.match(r"[\w.-]+", requirement)[0].lower()
    return IMPORTED_AS.get(name, name.replace("-", "_"))


def installed(package):
    return importlib.util.find_spec(package) is not None


def test_every_extra_that_a_message_or_a_page_names_exists():
    files = [*FILES, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    named = {extra for text in texts for group in NAMED.findall(text) for extra in group.split(",")}
    assert len(named) > 5
    assert named - set(EXTRAS) == set()


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - FOR_PEOPLE))
def test_every_package_of_an_extra_is_imported_by_the_code_that_needs_it(extra):
    wanted = {import_name(requirement) for requirement in EXTRAS[extra]}
    assert wanted - packages_taken() - WITH_OTHERS == set()
