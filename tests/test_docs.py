"""The documentation's own code.

Every Python block of docs/*.md runs, and every flag that its commands use exists.
"""

import re
import shlex
from pathlib import Path

import pytest

from jaxrl.cli.flags import HELP_FLAGS, flag_name
from jaxrl.cli.main import all_flags

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = ("bash", "sh", "shell", "console")

FLAGS = all_flags()
VERBS = {
    "train_ppo.py": "train",
    "evaluate.py": "evaluate",
    "render.py": "render",
    "sweep.py": "sweep",
}


def blocks(text):
    """(language, code, line) of each fenced block."""
    return [
        (block["language"], block["code"], text[: block.start()].count("\n") + 2)
        for block in BLOCK.finditer(text)
    ]


def run_page(path):
    """Runs a page's Python blocks in one namespace; line numbers in errors are the page's."""
    namespace = {"__name__": "__docs__"}
    for language, code, line in blocks(path.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile("\n" * (line - 1) + code, str(path), "exec"), namespace)


def unknown_flags(text):
    """The flags of a page's commands that their command does not have."""
    found = []
    for language, code, _ in blocks(text):
        for command in code.replace("\\\n", " ").splitlines() if language in SHELL else ():
            words = shlex.split(command.removeprefix("$ "), comments=True)
            verb = next((verb for word in words if (verb := verb_of(word, words))), None)
            known = {*HELP_FLAGS, *map(flag_name, FLAGS.get(verb, ()))}
            flags = [word.partition("=")[0] for word in words if word.startswith("--")]
            found += [flag for flag in flags if verb and flag.replace("_", "-") not in known]
    return found


def verb_of(word, words):
    """`train` of `scripts/train_ppo.py`, or of the word after `jaxrl`."""
    if Path(word).name in VERBS:
        return VERBS[Path(word).name]
    after = words[words.index("jaxrl") + 1 :] if "jaxrl" in words else []
    return word if after and word is after[0] and word in FLAGS else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_use_flags_that_exist(page):
    assert unknown_flags(page.read_text(encoding="utf-8")) == []


def test_a_block_that_fails_names_its_line_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n```python\nx = 1\n```\n\n```python\ny = x + 1\nassert y == 3\n```\n"
    )
    with pytest.raises(AssertionError) as failed:
        run_page(page)
    assert failed.traceback[-1].lineno + 1 == 9


def test_a_flag_that_does_not_exist_is_found():
    commands = "python scripts/train_ppo.py --env arena --nun-envs 3 \\\n  --lambda 0.9\njaxrl sweep --grid lr=1 --gird"
    text = f"```bash\n{commands}\n```\n"
    assert unknown_flags(text) == ["--nun-envs", "--gird"]
