"""Writes what the README's first command prints into the README.

    python benchmarks/readme_output.py            # trains (a minute), then replaces the block
    python benchmarks/readme_output.py --print    # trains and prints the block

tests/test_readme.py compares the numbers of the first iteration with a training of its own.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import report

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(
    r"(?<=<!-- output of the first command -->\n```\n).*?(?=```\n<!-- end -->)", re.DOTALL
)
SHOWN = (0.0, 0.1, 1.0)  # which of the lines of iterations, by their place among them


def printed(more: list[str]) -> list[str]:
    """What the command prints, with a run folder that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            str(ROOT / "scripts" / "train_ppo.py"),
            "--env",
            "arena",
            "--run-dir",
            f"{folder}/run",
            *more,
        ]
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, check=True, cwd=ROOT
        )
    return done.stdout.splitlines()


def excerpt(lines: list[str]) -> str:
    """The lines about compiling, some iterations, and the return at the end."""
    iterations = [line for line in lines if line.startswith("iter ")]
    some = dict.fromkeys(iterations[round(part * (len(iterations) - 1))] for part in SHOWN)
    begin = [line for line in lines if line.startswith(("compiling", "compiled", "memory:"))]
    end = [line for line in lines if line.startswith("return ") or " of training (" in line]
    return "\n".join([*begin, *some, *end]) + "\n"


def main() -> None:
    parser = report.Parser(__doc__, {"print": True})
    parser.add_argument("--print", action="store_true", help="leave the README as it is")
    arguments = parser.parse_args()
    block = excerpt(printed(["--stop", "training_iteration=1"] if arguments.smoke else []))
    print(block)
    if not arguments.print:
        README.write_text(
            BLOCK.sub(lambda _: block, README.read_text(encoding="utf-8")), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
