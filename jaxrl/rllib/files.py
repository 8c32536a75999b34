"""Files that hold an RLlib configuration: JSON, YAML, and the `params.json` of a result."""

import json
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UsageError, brief, one_line, require

RESULT = "params.json"  # in the folder of each of Tune's trials
YAML = (".yaml", ".yml")


def read_file(path: str | Path) -> dict[str, Any]:
    """The mapping that a file holds; nothing in it is imported or run.

    Args:
        path: a JSON or YAML file, or a trial's folder, whose params.json it is.
    """
    path = Path(path).expanduser()
    path = path / RESULT if path.is_dir() else path
    if path.suffix in (".pkl", ".pickle"):
        raise UsageError(f"{path} is a pickle, which may run any code: give the {RESULT} beside it")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {one_line(error)}") from None
    values = _parse(path, text)
    if not isinstance(values, dict) or not values:
        held = brief(values) if values else "nothing"
        raise UsageError(f"{path} must hold RLlib's settings by name, and holds {held}")
    return values


def _parse(path: Path, text: str) -> Any:
    if path.suffix not in YAML:
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            raise UsageError(
                f"{path} is not JSON: {one_line(error)} (a YAML file's name ends with .yaml)"
            ) from None
    require("yaml", f"reading {path}", install="pyyaml")
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {one_line(error)}") from None
