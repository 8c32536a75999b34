"""Files that hold an RLlib configuration: JSON, YAML, and the `params.json` of a result."""

import re
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UsageError, brief, one_line, require, unknown_name
from jaxrl.core.fields import file_path
from jaxrl.core.json_text import read_json
from jaxrl.rllib.form import is_experiments

RESULT = "params.json"  # in the folder of each of Tune's trials
YAML = (".yaml", ".yml")
MOST_VALUES = 100_000  # of a file of settings


def read_file(path: str | Path) -> dict[str, Any]:
    """The mapping that a file holds; nothing in it is imported or run.

    Args:
        path: a JSON or YAML file, or a trial's folder, whose params.json it is. FILE#NAME is one
            of the experiments of a file.
    """
    file_path("a file's path")("config", path)
    path = Path(path).expanduser()
    if "#" in path.name and not path.exists():
        file, _, name = str(path).rpartition("#")
        values = read_file(file)
        if not is_experiments(values):
            raise UsageError(f"{file} holds one configuration: leave out #{name}")
        if name not in values:
            raise unknown_name("experiment", name, values, f"of {file}")
        return {name: values[name]}
    if path.suffix in (".pkl", ".pickle"):
        raise UsageError(f"{path} is a pickle, which may run any code: give the {RESULT} beside it")
    if path.suffix == ".py":
        raise UsageError(
            f"{path} is a program, which is not run: in Python, jaxrl.from_rllib(config, "
            "stop=stop).trainer() trains its configuration"
        )
    try:
        path = path / RESULT if path.is_dir() else path
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"RLlib's configuration {brief(str(path))} cannot be read: {one_line(error)}"
        ) from None
    values = _parse(path, text)
    if not isinstance(values, dict) or not values:
        held = brief(values) if values else "nothing"
        raise UsageError(f"{path} must hold RLlib's settings by name, and holds {held}")
    return values


def _parse(path: Path, text: str) -> Any:
    if path.suffix not in YAML:
        try:
            return read_json(text) if text.strip() else None
        except ValueError as error:
            raise UsageError(
                f"{path} is not JSON: {one_line(error)} (a YAML file's name ends with .yaml)"
            ) from None
    require("yaml", f"reading {path}", install="pyyaml")
    import yaml

    try:
        loader = _loader(yaml)(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node, {})
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path} is not YAML: {one_line(error)}") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply") from None


def _loader(yaml: Any) -> type:
    """PyYAML's safe loader, which reads 1e-3 as a number too, as YAML 1.2 and RLlib's users do."""

    class Loader(yaml.SafeLoader):
        """Numbers need no dot before the exponent."""

    number = re.compile(r"[-+]?([0-9]+|[0-9]*\.[0-9]+|[0-9]+\.)[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Loader


def _check_size(node: Any, sizes: dict[int, int]) -> int:
    """The number of values that a node of YAML stands for, aliases written out.

    A few hundred bytes of aliases of aliases stand for billions.

    Args:
        sizes: by the identity of the nodes seen so far; 0 while one is looked at.

    Raises:
        ValueError: there are more than `MOST_VALUES`, or a node holds itself.
    """
    if id(node) not in sizes:
        sizes[id(node)] = 0
        parts = node.value if isinstance(node.value, list) else []
        pairs = [part if isinstance(part, tuple) else (part,) for part in parts]
        sizes[id(node)] = 1 + sum(_check_size(part, sizes) for pair in pairs for part in pair)
    if not 0 < sizes[id(node)] <= MOST_VALUES:
        raise ValueError(f"an alias holds itself, or stands for over {MOST_VALUES:,} values")
    return sizes[id(node)]
