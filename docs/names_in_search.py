"""The site's search finds a setting, or a result, by each of its names: ours, RLlib's, SB3's.

Every name in a generated table (see tables.py) is an entry of the index, which the search reads and
whose link leads to the name's row. Without it the search knows words alone, each in its stem.

    python docs/names_in_search.py site      # whether a built site finds all of them
"""

import dataclasses
import json
import sys
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

from jaxrl import PPOConfig, RunSettings
from jaxrl.core.foreign_names import LIBRARIES, SETTINGS, names_of

COLUMN_OF_NAMES = {"reason": 1}  # by a table's first title; the first column in all others

STATISTIC = "<statistic>"
ROW = "-row"  # search_scores.js takes a name out of what stands before it


class NamesInSearch(SphinxTransform):
    default_priority = 800  # before entries are collected

    def apply(self) -> None:
        for mark in list(self.document.findall(nodes.raw)):
            if mark.astext().startswith("<!-- table: "):
                table = next(iter(mark.findall(nodes.table, descend=False, siblings=True)))
                self._enter(table)

    def _enter(self, table: nodes.table) -> None:
        head = next(iter(table.findall(nodes.thead)))
        column = COLUMN_OF_NAMES.get(next(iter(head.findall(nodes.entry))).astext(), 0)
        for row in next(iter(table.findall(nodes.tbody))).findall(nodes.row):
            for name in list(list(row.findall(nodes.entry))[column].findall(nodes.literal)):
                self._enter_name(name)

    def _enter_name(self, literal: nodes.literal) -> None:
        for name in written_out(literal.astext()):
            number = sum(id_.startswith(f"{name}{ROW}") for id_ in self.document.ids)
            place = nodes.target(ids=[f"{name}{ROW}{number or ''}"])
            self.document.set_id(place)
            entry = addnodes.index(entries=[("single", name, place["ids"][0], "main", None)])
            literal.parent.insert(literal.parent.index(literal), [entry, place])


def written_out(name: str) -> list[str]:
    """`episode_reward_mean` and so on, of `episode_reward_<statistic>`."""
    if STATISTIC not in name:
        return [name]
    return [name.replace(STATISTIC, each) for each in ("mean", "min", "max")]


def setup(app) -> dict[str, bool]:
    app.add_transform(NamesInSearch)
    return {"parallel_read_safe": True}


def main() -> None:
    index = (Path(sys.argv[1]) / "searchindex.js").read_text(encoding="utf-8")
    entries = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["indexentries"]
    names = [field.name for cls in (PPOConfig, RunSettings) for field in dataclasses.fields(cls)]
    for library in LIBRARIES:
        names += names_of(library, SETTINGS)
    if missing := sorted({name for name in names if name.lower() not in entries}):
        sys.exit(f"the site's search does not find {len(missing)} names: {', '.join(missing[:9])}")


if __name__ == "__main__":
    main()
