"""What is made from the declared settings: tables of the documentation, keywords for editors.

    python docs/tables.py      # rewrites them

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. Keywords are TypedDicts, which
type checkers and editors cannot derive from a dataclass. tests/test_docs.py checks that both are as
the code has them.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from jaxrl import MARWILConfig, PPOConfig, RunSettings
from jaxrl.cli.algorithms import OF_THE_ENV
from jaxrl.cli.flags import flags_of
from jaxrl.cli.help import groups_of
from jaxrl.core.foreign_names import LIBRARIES, RESULTS, SETTINGS, names_of

DOCS = Path(__file__).parent
PLACE = re.compile(
    r"(?<=<!-- table: )(?P<name>.+?)( -->\n)(?P<table>.*?)(?=<!-- end -->)", re.DOTALL
)

OF_PPO = flags_of(PPOConfig(env="arena"))
OFFLINE = (
    *("input", "train_batch_size", "minibatch_size", "lr", "grad_clip", "beta", "gamma"),
    *("vf_coeff", "moving_average_sqd_adv_norm_update_rate"),
)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(text: str) -> str:
    flags_as_code = re.sub(r"--[a-z-]+( [A-Z]+)?", r"`\g<0>`", text)
    return flags_as_code.replace("|", "\\|")


def default(value: Any) -> str:
    if isinstance(value, float) and value < 1e-3 and value > 0:
        return f"{value:g}".replace("e-0", "e-")
    return str(list(value)) if isinstance(value, tuple) else str(value)


def settings(cls: type, names: list[str]) -> str:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    rows = [
        (f"`{name}`", f"`{default(fields[name].default)}`", cell(fields[name].metadata["help"]))
        for name in names
    ]
    return table(("setting", "default", "meaning"), rows)


def with_counterpart(library: str, kind: str) -> str:
    """A row for each of a library's names that has another name here."""
    rows = [
        (f"`{name}`", f"`{found.here}`", cell(found.note))
        for name, found in names_of(library, kind).items()
        if found.here
    ]
    return table((library, "here", "note"), rows)


def without_counterpart(library: str, *, changing: bool = False) -> str:
    """The other names of a library, those of one reason in one row.

    Args:
        changing: those that change a training's result, or those that do not.
    """
    names: dict[str, list[str]] = {}
    for name, found in names_of(library, SETTINGS).items():
        if not found.here and (found.harmless is not None) == changing:
            names.setdefault(found.note, []).append(f"`{name}`")
    rows = [(cell(note), ", ".join(found)) for note, found in names.items()]
    return table(("reason", library), sorted(rows, key=lambda row: len(row[1])))


TABLES: dict[str, Callable[[], str]] = {
    **{
        f"settings, {group}": partial(settings, PPOConfig, names)
        for group, names in groups_of(OF_PPO).items()
    },
    "settings, learning from episodes": partial(settings, MARWILConfig, OFFLINE),
    "settings of a run": partial(
        settings, RunSettings, [field.name for field in dataclasses.fields(RunSettings)]
    ),
    **{
        f"settings, {library}": partial(with_counterpart, library, SETTINGS)
        for library in LIBRARIES
    },
    **{
        f"nothing to set, {library}": partial(without_counterpart, library) for library in LIBRARIES
    },
    "changes the result, RLlib": partial(without_counterpart, "RLlib", changing=True),
    **{f"results, {library}": partial(with_counterpart, library, RESULTS) for library in LIBRARIES},
}


def with_tables(page: str) -> str:
    """The page with its tables as the code has them."""
    return PLACE.sub(lambda place: f"{place['name']} -->\n\n{TABLES[place['name']]()}\n", page)


KEYWORDS = {  # file: {class: the fields that it repeats}
    "jaxrl/algorithms/ppo/keywords.py": {
        "TunedKeywords": [
            field for field in dataclasses.fields(PPOConfig) if field.name not in OF_THE_ENV
        ],
        "PPOKeywords": [
            field for field in dataclasses.fields(PPOConfig) if field.name in OF_THE_ENV
        ],
    },
    "jaxrl/run/settings.py": {"RunKeywords": dataclasses.fields(RunSettings)},
}


def with_keywords(source: str, classes: dict[str, list[dataclasses.Field]]) -> str:
    """A module with the fields of its TypedDicts as the settings are declared."""
    for name, fields in classes.items():
        types = {field.name: inspect.formatannotation(field.type) for field in fields}
        body = "".join(f"    {field}: {declared}\n" for field, declared in types.items())
        body = body.replace("collections.abc.", "").replace("typing.", "")
        form = rf'(class {name}\(\w+, total=False\):\n    """[^"]*"""\n\n)(?:    \w+: .*\n)+'
        source = re.sub(form, lambda begin, body=body: begin[1] + body, source)
    return source


def main() -> None:
    for file, classes in KEYWORDS.items():
        path = DOCS.parent / file
        path.write_text(with_keywords(path.read_text(encoding="utf-8"), classes), encoding="utf-8")
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        path.write_text(with_tables(page), encoding="utf-8")


if __name__ == "__main__":
    main()
