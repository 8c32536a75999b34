"""The picture of the house in docs/architecture.md, drawn from what the modules import.

    python docs/house.py       # draws it again

Each folder stands below all that it imports as it is loaded; an arrow that follows from others is
left out, and so are imports in functions.
tests/test_docs.py checks that the picture is that of the code.
"""

import ast
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "house.svg"
BOX, GAP, MARGIN, BEND = (128, 34), (16, 46), 12, 8  # widths and heights, in pixels
SWEEPS = 8
STYLE = (
    "text{font:13px sans-serif;text-anchor:middle;fill:#222}rect{fill:#eef3f8;stroke:#5a7ea6}"
    "path{fill:none;stroke:#8a98a8}@media(prefers-color-scheme:dark){rect{fill:#223;stroke:#89a}text{fill:#eee}}"
)
Arrow = tuple[str, str]  # from a folder to one that it imports


class Bend(NamedTuple):
    """A place where an arrow passes a floor, between the boxes."""

    source: str
    imported: str
    floor: int


Place = str | Bend


def folder_of(module: str) -> str:
    """The box of a module such as "jaxrl.run.trainer"; the package's own is "jaxrl"."""
    parts = module.split(".")
    if "networks" in parts:
        return "envs/networks"
    inside = [part for part in parts if part not in ("jaxrl", "__init__", "__main__")]
    return inside[0] if inside else "jaxrl"


def run_at_once(parent: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module that run as it is imported, not when a function is called."""
    for node in ast.iter_child_nodes(parent):
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not (is_for_types or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield node
            yield from run_at_once(node)


def arrows() -> set[Arrow]:
    """The imports between folders, as modules are loaded."""
    found = set()
    for file in [*(ROOT / "jaxrl").rglob("*.py"), *(ROOT / "envs").rglob("*.py")]:
        importer = folder_of(".".join(file.relative_to(ROOT).with_suffix("").parts))
        for node in run_at_once(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxrl."):
                found.add((importer, folder_of(node.module)))
    return {(importer, imported) for importer, imported in found if importer != imported}


def levels(imports: set[Arrow]) -> list[list[str]]:
    """The folders by floor: each stands below all that it imports."""

    @functools.cache
    def level(folder: str) -> int:
        return max(
            (1 + level(imported) for source, imported in imports if source == folder), default=0
        )

    folders = sorted({folder for arrow in imports for folder in arrow}, key=lambda f: (level(f), f))
    return [list(floor) for _, floor in itertools.groupby(folders, key=level)]


def without_detours(imports: set[Arrow]) -> set[Arrow]:
    """The arrows that do not follow from others."""

    @functools.cache
    def reached(folder: str) -> frozenset[str]:
        below = [imported for source, imported in imports if source == folder]
        return frozenset(below).union(*map(reached, below))

    return {
        (source, imported)
        for source, imported in imports
        if not any(imported in reached(other) for start, other in imports if start == source)
    }


def routes(floors: list[list[str]], drawn: set[Arrow]) -> list[list[Place]]:
    """For each arrow the places that it passes, a `Bend` on each floor between its ends."""
    floor_of = {folder: number for number, floor in enumerate(floors) for folder in floor}
    return [
        [
            source,
            *(
                Bend(source, imported, n)
                for n in range(floor_of[source] - 1, floor_of[imported], -1)
            ),
            imported,
        ]
        for source, imported in sorted(drawn)
    ]


def in_order(floors: list[list[str]], paths: list[list[Place]]) -> list[list[Place]]:
    """The floors with their bends, each place near those that it is joined to."""
    filled: list[list[Place]] = [list(floor) for floor in floors]
    for bend in sorted({place for path in paths for place in path if isinstance(place, Bend)}):
        filled[bend.floor].append(bend)
    joined = {place: set() for floor in filled for place in floor}
    for upper, lower in itertools.chain(*map(itertools.pairwise, paths)):
        joined[upper].add(lower)
        joined[lower].add(upper)
    for _ in range(SWEEPS):
        at = {place: x for floor in filled for place, x in zip(floor, _across(floor), strict=True)}
        for floor in filled:
            middle = {
                place: sum(at[o] for o in joined[place]) / len(joined[place]) for place in floor
            }
            floor.sort(key=lambda place: (middle[place], str(place)))
    return filled


def _across(floor: list[Place]) -> list[float]:
    """The middle of each place of a floor, from the middle of the picture, in pixels."""
    widths = [BEND if isinstance(place, Bend) else BOX[0] for place in floor]
    ends = list(itertools.accumulate(width + GAP[0] for width in widths))
    return [
        end - GAP[0] - (width + ends[-1] - GAP[0]) / 2
        for end, width in zip(ends, widths, strict=True)
    ]


def drawing() -> str:
    imports = arrows()
    paths = routes(levels(imports), without_detours(imports))
    floors = in_order(levels(imports), paths)
    (width, height), (_, above) = BOX, GAP
    middle = MARGIN + max(_across(floor)[-1] for floor in floors) + width / 2
    places = {
        place: (middle + x, MARGIN + row * (height + above))
        for row, floor in enumerate(floors)
        for place, x in zip(floor, _across(floor), strict=True)
    }
    size = 2 * middle, len(floors) * (height + above) - above + 2 * MARGIN
    parts = [_curve([places[place] for place in path]) for path in paths]
    for folder in (place for place in places if isinstance(place, str)):
        x, y = places[folder]
        box = f'x="{x - width / 2:g}" y="{y:g}" width="{width}" height="{height}" rx="4"'
        parts += [f"<rect {box}/>", f'<text x="{x:g}" y="{y + 22:g}">{folder}/</text>']
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]:g} {size[1]:g}"'
    return "\n".join([f"<svg {box}>", f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def _curve(points: list[tuple[float, float]]) -> str:
    """A line from the top of the first place to the bottom of the last."""
    height, ((x, y), *others) = BOX[1], points
    line = f"M{x:g} {y:g}"
    for to_x, to_y in others:
        bend = (y + to_y + height) / 2
        line += f"C{x:g} {bend:g} {to_x:g} {bend:g} {to_x:g} {to_y + height:g}V{to_y:g}"
        x, y = to_x, to_y
    return f'<path d="{line}"/>'


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
