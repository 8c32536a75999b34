"""Where results go: one line of JSON per iteration."""

import json
import math
from pathlib import Path
from typing import Any


class JsonLines:
    """`metrics.jsonl`: the nested result tree of every iteration, a line each; a number that is none is null."""

    def __init__(self, path: Path):
        self.path = path

    def write(self, results: list[dict[str, Any]]) -> None:
        """Appends whole lines in one write, so that a reader never meets half a line; nothing stays open between."""
        lines = "".join(json.dumps(_json(result), allow_nan=False) + "\n" for result in results)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(lines)


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _json(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
