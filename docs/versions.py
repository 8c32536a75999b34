"""The versions that jaxrl was tested with: the table of install.md, and README's line of them.

    python docs/versions.py lowest    # .ci/versions runs it where its tests passed

It writes the interpreter's own versions into the table, in place of an older row of the same Python
and the same minor version of JAX. README's line is about the newest of the rows.
"""

import datetime
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE, README = ROOT / "docs" / "install.md", ROOT / "README.md"
PACKAGES = ("jax", "flax", "gymnax", "numpy", "orbax-checkpoint")
HEAD = ("Python", *PACKAGES, "versions", "tested on")
TABLE = re.compile(r"(?<=<!-- versions -->\n)(?:\|.*\n)*(?=<!-- end -->)")
LINE = re.compile(r"tested up to [\d.]*\d with JAX [\d.]*\d")

Row = tuple[str, ...]


def read() -> list[Row]:
    """The rows of the table."""
    (table,) = TABLE.findall(PAGE.read_text(encoding="utf-8"))
    lines = table.splitlines()[2:]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


def minor(text: str) -> str:
    """3.13 of 3.13.0."""
    return ".".join(text.split(".")[:2])


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]


def place(row: Row) -> tuple:
    """What makes a row another one, and orders them: the minor versions of Python and JAX."""
    return numbers(minor(row[0])), numbers(minor(row[1]))


def with_row(rows: list[Row], new: Row) -> list[Row]:
    kept = [row for row in rows if place(row) != place(new)]
    return sorted([*kept, new], key=place)


def line(rows: list[Row]) -> str:
    """README's words: the newest Python, and the newest JAX that was tested with it."""
    python, jax, *_ = max(rows, key=place)
    return f"tested up to {minor(python)} with JAX {minor(jax)}"


def replace(path: Path, place: re.Pattern, text: str) -> None:
    found, count = place.subn(lambda _: text, path.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{path.name} has {count} places for the versions, not 1")
    path.write_text(found, encoding="utf-8")


def main(which: str) -> None:
    found = [version(package) for package in PACKAGES]
    today = datetime.date.today().isoformat()
    rows = with_row(read(), (platform.python_version(), *found, which, today))
    lines = [HEAD, ("---",) * len(HEAD), *rows]
    replace(PAGE, TABLE, "".join(f"| {' | '.join(cells)} |\n" for cells in lines))
    replace(README, LINE, line(rows))


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
