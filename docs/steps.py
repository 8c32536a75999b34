"""The picture of steps in docs/architecture.md: sources, features and hooks, found in the code.

    python docs/steps.py       # draws it again

A class is listed for its base, or for the methods that its kind has. tests/test_docs.py checks that
the picture is that of the code.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "steps.svg"
WIDTH, LINE, GAP, MARGIN, PAD = 252, 17, 26, 12, 8  # in pixels
STYLE = (
    "text{font:12px sans-serif;fill:#222}.b{font-weight:bold}.f{fill:#667}"
    "rect{fill:#eef3f8;stroke:#5a7ea6}path{fill:none;stroke:#8a98a8}"
    "@media(prefers-color-scheme:dark){rect{fill:#223;stroke:#89a}text{fill:#eee}.f{fill:#99a}}"
)
# The titles, and who belongs below each: by the names of base classes, or of methods.
COLUMNS = (
    (
        ("Sources: training", ("StartAndChunk", "RolloutSource"), ("start", "chunk")),
        ("Sources: whole episodes", (), ("start", "go_on")),
    ),
    (("Features: change what is played", ("Feature",), ()),),
    (("Hooks: look on, after each chunk", ("Hook", "Output", "HostCallbacks"), ()),),
)
# Base classes, a program for the sources beside it, one for a debugger, a wrapper of a user's hook.
LEFT_OUT = ("Output", "OutsideTraining", "UncompiledAlgorithm", "CheckedHook")


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """(file, class) of all modules."""
    for file in sorted((ROOT / "jaxrl").rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                yield str(file.relative_to(ROOT / "jaxrl")), node


def members(bases: tuple[str, ...], methods: tuple[str, ...]) -> list[tuple[str, str]]:
    """(class, file) of a kind; what begins with an underscore, and the kind itself, is left out."""
    found = []
    for file, node in classes():
        names = {base.id for base in node.bases if isinstance(base, ast.Name)}
        defined = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
        is_kind = bool(names & set(bases)) or bool(methods and defined.issuperset(methods))
        is_kind = is_kind and node.name not in LEFT_OUT
        if is_kind and node.name[0] != "_" and "Protocol" not in names:
            found.append((node.name, file))
    return found


def _box(x: float, y: float, title: str, rows: list[tuple[str, str]]) -> tuple[list[str], float]:
    """The parts of a box with a title and a line for each class and its file; and its height."""
    height = 2 * PAD + LINE * (1 + 2 * len(rows))
    parts = [f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{height}" rx="4"/>']
    line = y + PAD + LINE - 4
    parts.append(f'<text class="b" x="{x + PAD}" y="{line}">{title}</text>')
    for name, file in rows:
        parts.append(f'<text x="{x + PAD}" y="{line + LINE}">{name}</text>')
        parts.append(f'<text class="f" x="{x + 2 * PAD}" y="{line + 2 * LINE}">{file}</text>')
        line += 2 * LINE
    return parts, height


def drawing() -> str:
    parts, ends = [], []
    for number, boxes in enumerate(COLUMNS):
        x, y = MARGIN + number * (WIDTH + GAP), MARGIN
        for title, bases, methods in boxes:
            lines, height = _box(x, y, title, members(bases, methods))
            parts += lines
            y += height + GAP / 2
        ends.append(y)
    middle = MARGIN + PAD + LINE - 8
    for number in (1, 2):
        x = MARGIN + number * (WIDTH + GAP)
        parts.append(f'<path d="M{x - GAP} {middle}H{x}m-6 -4l6 4l-6 4"/>')
    size = 2 * MARGIN + 3 * WIDTH + 2 * GAP, max(ends) + MARGIN - GAP / 2
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]:g} {size[1]:g}"'
    return "\n".join([f"<svg {box}>", f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
