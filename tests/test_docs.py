"""README and documentation: their Python blocks and their commands run.

They run in a folder with a run of the arena, `runs/arena/latest`. Blocks train one small iteration
where the page has the arena's tuned settings and a number of environment steps, commands always.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import jaxrl
from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.cli.help import groups_of
from jaxrl.cli.main import COMMANDS
from jaxrl.core.errors import UsageError, is_installed
from jaxrl.core.registry import SCHEMES, constructor_of
from jaxrl.core.trust import points_of
from jaxrl.envs.arena import MultiAgentArena
from jaxrl.run.recorder import Recorder
from tests.by_hand import by_hand

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
RUN = Path("runs/arena/20261121-120000-s0")  # in the folder in which the blocks run
WIDTH = 100
SHORTER = {  # what a block says, and what the test runs
    r"total_env_steps=[\d_]{6,}": "total_env_steps=1",  # at least one iteration is trained
    r"jax\.random\.split\(jax\.random\.key\(0\), 8\)": "jax.random.split(jax.random.key(0), 2)",
}
BLOCK = re.compile(r"^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = ("bash", "sh", "shell", "console")

VERBS = {
    "train_ppo.py": "train",
    "evaluate.py": "evaluate",
    "render.py": "render",
    "sweep.py": "sweep",
    "serve.py": "serve",
    "watch.py": "watch",
    "report.py": "report",
    "episodes.py": "episodes",
}


def name_of(page):
    """`experiments/arena.md` of a page of the documentation."""
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).as_posix()


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
            for long, short in SHORTER.items():
                code = re.sub(long, short, code)
            exec(compile("\n" * (line - 1) + code, str(path), "exec"), namespace)


def commands(text):
    """(command, its words) of each line of the shell blocks that calls jaxrl or its scripts."""
    for language, code, _ in blocks(text):
        for line in code.replace("\\\n", " ").splitlines() if language in SHELL else ():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            words = [installed(word) for word in words]
            for place, word in enumerate(words):
                if verb := verb_of(word, words):
                    yield verb, words[place + 1 :]
                    break


def installed(word):
    """`cartpole` for an environment of a library that is not installed here, such as brax:ant."""
    if word.partition(":")[0] in points_of(SCHEMES):
        try:
            constructor_of(word)
        except UsageError as error:
            return "cartpole" if "pip install" in str(error) else word
    return word


def verb_of(word, words):
    """`train` of `scripts/train_ppo.py`, or of the word after `jaxrl`."""
    if Path(word).name in VERBS:
        return VERBS[Path(word).name]
    after = words[words.index("jaxrl") + 1 :] if "jaxrl" in words else []
    return word if after and word is after[0] and word in COMMANDS else None


@pytest.fixture(scope="module")
def small_arena():
    """The arena's tuned settings are small ones, with the networks that they have."""
    sizes = {"num_envs": 4, "rollout_length": 100, "minibatch_size": 200, "num_epochs": 1}
    small, tuned = {**sizes, "fcnet_hiddens": (8,), "lr": 1e-3}, MultiAgentArena.tuned
    networks = lambda arena: {**small, "per_policy": tuned.fget(arena)["per_policy"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiAgentArena, "tuned", property(networks))
        yield


@pytest.fixture(scope="module")
def arena_run(small_arena, tmp_path_factory):
    """A run of the arena; its compiled program serves all pages that train the same."""
    folder = tmp_path_factory.mktemp("arena") / "run"
    config = PPOConfig.tuned("arena", total_env_steps=1)
    scored = {"evaluation_interval": 1, "evaluation_duration": 1}  # so that it has a best state
    with jaxrl.Trainer(config, run_dir=folder, quiet=True, pictures=False, **scored) as trainer:
        trainer.fit()
    return folder


@pytest.fixture
def home(request, tmp_path, monkeypatch):
    """The current folder, with a run as `runs/arena/latest`; runs draw no pictures."""
    if request.node.get_closest_marker("docs"):
        run = request.getfixturevalue("arena_run")
    else:  # for commands that only read it
        run = request.getfixturevalue("trained").run_dir
    shutil.copytree(run, tmp_path / RUN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Recorder, "_draw", lambda self: None)
    monkeypatch.setattr(Recorder, "_play", lambda self, snapshot: None)
    return tmp_path


NEEDS = {  # packages of extras, by page
    "export.md": ("flatbuffers", "jax2onnx", "onnxruntime"),
    "publishing.md": ("safetensors",),
    "serving.md": ("msgspec", "websockets"),
}
WITH_PYTHON = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


def skip_without_extras(page):
    for package in NEEDS.get(name_of(page), ()):
        pytest.importorskip(package, reason=f"{name_of(page)} is about an extra")


@pytest.mark.docs
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_the_python_blocks_of_a_page_run(page, home):
    skip_without_extras(page)
    run_page(page)


NOT_RUN = {  # why the blocks of a page that are marked `py` do not run here
    "batched-simulators.md": "mjlab",
    "distributed.md": "several machines, or Ray Train",
    "episodes.md": "RLlib's own reader of episodes",
    "install.md": "it fills the user's own cache",
    "library-environments.md": "an environment of the reader's",
    "other-libraries.md": "Stable-Baselines3, RLlib and JaxMARL",
    "publishing.md": "a repository at Hugging Face",
    "python-environments.md": "a cluster of Ray's, and games of Atari",
    "rllib-reference.md": "recorded episodes of two kinds",
    "serving.md": "a server that another program's clients play with",
    "sweeps.md": "Ray Tune",
}


def name_in_jaxrl(node, names):
    """What `jaxrl.a.b`, or an imported name of jaxrl, stands for; None for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    above = name_in_jaxrl(node.value, names) if isinstance(node, ast.Attribute) else None
    return None if above is None else getattr(above, node.attr)


def imported_from_jaxrl(tree):
    """{name: object} of what a block imports from jaxrl; `jaxrl` itself is always there."""
    names = {"jaxrl": jaxrl}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "jaxrl":
            for alias in node.names:
                exec(f"from {node.module} import {alias.name}", names)
    return names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_blocks_that_cannot_run_here_call_what_jaxrl_has(page):
    """Every name of jaxrl in them is there and takes the keywords that it is given."""
    found = [
        code for language, code, _ in blocks(page.read_text(encoding="utf-8")) if language == "py"
    ]
    assert bool(found) == (name_of(page) in NOT_RUN)
    for tree in map(ast.parse, found):
        names = imported_from_jaxrl(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                name_in_jaxrl(node, names)
            if isinstance(node, ast.Call) and (function := name_in_jaxrl(node.func, names)):
                keywords = {part.arg: None for part in node.keywords if part.arg}
                called = function.__init__ if isinstance(function, type) else function
                inspect.signature(called).bind_partial(**keywords)


def test_a_block_that_calls_what_is_not_there_is_found():
    for code in ("jaxrl.to_nothing('arena')", "from jaxrl import nothing"):
        with pytest.raises((AttributeError, ImportError)):
            tree = ast.parse(code)
            names = imported_from_jaxrl(tree)
            [name_in_jaxrl(node, names) for node in ast.walk(tree)]


class Understood(BaseException):
    """Raised where a command begins to compile, play or draw."""


def understood(*_, **__):
    raise Understood


# What a command calls once it has read and checked its flags, the run that it names included.
STARTS = {
    "jaxrl.cli.episodes": ("read_episodes",),
    "jaxrl.cli.train": ("begin", "first_scene"),
    "jaxrl.cli.evaluate": ("_evaluate", "_render"),
    "jaxrl.cli.export": ("_export",),
    "jaxrl.cli.publish": ("_publish",),
    "jaxrl.cli.plot": ("write_plot",),
    "jaxrl.cli.sweep": ("sweep", "resume_sweep"),
    "jaxrl.cli.serve": ("_serve",),
    "jaxrl.cli.watch": ("_report", "_watch"),
    "jaxrl.publishing.zoo": ("add", "exhibits"),
}
NOT_HERE = [  # other processes, devices, the cache of compiled programs, wandb
    ("jaxrl.cli.train", "join"),
    ("jaxrl.cli.sweep", "saved_devices"),
    ("jaxrl.cli.sweep", "settled_devices"),
    ("jaxrl.run.devices.compile_cache", "use"),
    ("jaxrl.run.logging.loggers", "is_installed"),
]
MODULE_OF_A_USER = """
import jaxrl
from jaxrl.envs.cartpole import CartPole as Mine

class Metrics(jaxrl.Callbacks):
    pass
"""
RLLIB = {  # of a result
    **{"env": "MultiAgentArena", "num_workers": 4, "train_batch_size": 400, "num_sgd_iter": 1},
    **{"sgd_minibatch_size": 200, "batch_mode": "complete_episodes"},
    "model": {"fcnet_hiddens": [8]},
}
TUNED = """
cartpole-ppo:
    env: CartPole-v1
    run: PPO
    stop: {timesteps_total: 400}
    config: {train_batch_size: 400, num_sgd_iter: 1, num_workers: 2, model: {fcnet_hiddens: [8]}}
"""


@pytest.fixture
def folder(home):
    """The current folder, with what the commands of all pages name."""
    (home / "my_module.py").write_text(MODULE_OF_A_USER)
    shutil.copy(ROOT / "tests" / "algorithms" / "reinforce.py", home)
    (home / "ray_results" / "arena").mkdir(parents=True)
    (home / "ray_results" / "arena" / "params.json").write_text(json.dumps(RLLIB))
    (home / "tuned.yaml").write_text(TUNED)
    for name in ("runs/cartpole", "runs/mine"):
        shutil.copytree(home / RUN.parent, home / name)


@pytest.fixture
def shell(folder, monkeypatch):
    """Runs a command up to where it starts; a mistake in it ends in SystemExit."""
    for module, names in STARTS.items():
        for name in names:
            monkeypatch.setattr(importlib.import_module(module), name, understood)
    for module, name in NOT_HERE:
        monkeypatch.setattr(importlib.import_module(module), name, lambda *_, **__: 1)

    def run(command, words):
        with pytest.raises(Understood):
            COMMANDS[command](words)

    return run


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_are_accepted(page, shell):
    """Each is read and checked in full, its settings, environment and run; none trains here."""
    for command, words in commands(page.read_text(encoding="utf-8")):
        shell(command, words)


def runs_here(command, words):
    """Whether it needs neither other machines nor a browser nor somebody who ends it."""
    waits = {"--coordinator", "--watch", "external", "godot"}
    uploads = any(word.startswith("hf:") for word in words)
    return command not in ("serve", "watch") and not uploads and not waits & set(words)


def shorter(command, words):
    """The same command without wandb, MP4 and ONNX, which are extras; it trains one iteration."""
    words = [word.replace(".mp4", ".gif") for word in words if word != "wandb"]
    if not is_installed("jax2onnx"):
        words = [word.replace(".onnx", ".stablehlo") for word in words]
    if command == "train" or (command == "sweep" and "--resume" not in words):
        if "--total-env-steps" in words:
            del words[(place := words.index("--total-env-steps")) : place + 2]
        words += ["--total-env-steps", "801" if "--resume" in words else "1"]
    if command == "zoo":
        words += ["--total-env-steps", "1", "--seeds", "2", "--episodes", "1"]
    return words


def runs_on_an_earlier_page(page, command, words):
    """Whether a page before it has the same training, which no command after it needs."""
    if command != "train" or {"--resume", "--run-dir", "--output", "--input"} & set(words):
        return False
    return FIRST.get((command, *words), page) != page


IN_CI = [ROOT / "README.md"]  # the commands of the other pages run with -m slow
IN_CI += [DOCS / f"{name}.md" for name in ("command-line", "evaluation", "export")]
IN_CI += [DOCS / f"{name}.md" for name in ("getting-started", "publishing", "replay", "watch")]
OTHER_PAGES = [page for page in PAGES if page not in IN_CI]
FIRST = {  # {a command with its words: the first page that has it}
    (command, *shorter(command, words)): page
    for page in reversed([*IN_CI, *OTHER_PAGES])
    if name_of(page) not in NEEDS
    for command, words in commands(page.read_text(encoding="utf-8"))
}


@pytest.mark.docs
@pytest.mark.parametrize("page", [*IN_CI, *by_hand(*OTHER_PAGES)], ids=name_of)
def test_the_commands_of_a_page_run(page, folder, arena_run, monkeypatch):
    """Each one on the same run of the arena, whatever those before it trained."""
    skip_without_extras(page)
    monkeypatch.setattr("jaxrl.run.devices.compile_cache.use", lambda *_, **__: None)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(Path("minari").absolute()))
    for command, words in commands(page.read_text(encoding="utf-8")):
        short = shorter(command, words)
        if runs_here(command, words) and not runs_on_an_earlier_page(page, command, short):
            new = words[words.index("--run-dir") + 1 :][:1] if "--run-dir" in words else ()
            for path in (RUN.parent, *new):
                shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(arena_run, RUN)
            COMMANDS[command](short)


NOT_BY_EXAMPLE = {  # why a page does not begin with an example
    "README.md": "two pictures come first",
    "benchmarks.md": "benchmarks/README.md, whole",
    "changelog.md": "CHANGELOG.md, whole",
    "command-line.md": "the table of commands comes first",
    "notebooks.md": "there are two ways, which it tells apart first",
}
FIRST_WORDS, FIRST_SENTENCE = 60, 40  # within so many words
FENCE = re.compile(r"^```(?!\{)", re.MULTILINE)


def opening(text):
    """(first sentence, words before the first block) of a page, below its title."""
    _, _, text = text.partition("\n")
    paragraph = text.strip().partition("\n\n")[0]
    assert re.match(r"[\w`*\[]", paragraph), "a page begins with a sentence"
    sentence = re.split(r"(?<=[.:])\s", paragraph)[0]
    assert sentence.endswith((".", ":")), sentence
    return sentence, len(text[: FENCE.search(text).start()].split())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_says_in_a_sentence_what_it_is_for_and_soon_shows_it(page):
    if name_of(page) in NOT_BY_EXAMPLE:
        return
    sentence, words = opening(page.read_text(encoding="utf-8"))
    assert len(sentence.split()) <= FIRST_SENTENCE
    assert words <= FIRST_WORDS


def test_a_page_without_a_sentence_or_with_a_late_example_is_found():
    assert opening("# T\n\nHow to train. More.\n\n```bash\nx\n```\n") == ("How to train.", 4)
    for text in ("# T\n\n## Part\n\n```bash\nx\n```\n", "# T\n\n| a | b |\n\n```bash\nx\n```\n"):
        with pytest.raises(AssertionError):
            opening(text)
    assert opening("# T\n\nA. " + "word " * 60 + "\n\n```bash\nx\n```\n")[1] > FIRST_WORDS


COMMAND_FILES = "|".join(map(re.escape, (*VERBS, "plot.py", "train_bc.py")))
SCRIPT = re.compile(rf"(?<![\w/])(?:scripts/)?(?:{COMMAND_FILES})\b")
WITH_SCRIPTS = {  # why a page names the commands' scripts
    "README.md": "its first command needs no shell that knows `jaxrl`",
    "command-line.md": "it says which script is which command",
}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_written_in_one_form(page):
    """`jaxrl train`, not `python scripts/train_ppo.py`."""
    found = SCRIPT.findall(page.read_text(encoding="utf-8"))
    assert bool(found) == (name_of(page) in WITH_SCRIPTS), found


def made_by(script):
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(script, DOCS / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLES, HOUSE, STEPS = made_by("tables"), made_by("house"), made_by("steps")
VERSIONS = made_by("versions")


def test_the_versions_of_the_readme_are_those_of_the_table():
    """`.ci/versions` writes both."""
    rows = VERSIONS.read()
    assert VERSIONS.LINE.findall(VERSIONS.README.read_text()) == [VERSIONS.line(rows)]
    minor = ".".join(rows[-1][0].split(".")[:2])
    again = (f"{minor}.99", *rows[-1][1:])  # another patch of the last row's Python and JAX
    assert VERSIONS.with_row(rows, again) == [*rows[:-1], again]
    others = [("3.11.2", "0.9.2", "x"), ("3.9.1", "0.12.1", "x"), ("3.11.2", "0.10.2", "x")]
    assert VERSIONS.line(others) == "tested up to 3.11 with JAX 0.10"


def test_the_picture_of_the_house_is_drawn_from_the_imports():
    """`python docs/house.py` draws it."""
    assert HOUSE.drawing() == HOUSE.PICTURE.read_text(encoding="utf-8")


def test_the_picture_of_steps_lists_what_the_code_has():
    """`python docs/steps.py` draws it."""
    assert STEPS.drawing() == STEPS.PICTURE.read_text(encoding="utf-8")
    assert ("Waits", "rollout/turns.py") in STEPS.members(("Feature",), ())
    assert ("CompiledEpisodes", "play/whole_episodes.py") in STEPS.members((), ("start", "go_on"))


def test_the_picture_leaves_out_an_arrow_that_follows_and_puts_a_folder_below_what_it_imports():
    imports = {("run", "ops"), ("ops", "core"), ("run", "core"), ("envs", "core")}
    assert HOUSE.without_detours(imports) == imports - {("run", "core")}
    floors = HOUSE.levels(imports)
    assert floors == [["core"], ["envs", "ops"], ["run"]]
    paths = HOUSE.routes(floors, {("run", "core")})
    assert paths == [["run", HOUSE.Bend("run", "core", 1), "core"]]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_tables_of_a_page_are_those_of_the_code(page):
    """`python docs/tables.py` writes them."""
    text = page.read_text(encoding="utf-8")
    assert TABLES.with_tables(text) == text


@pytest.mark.parametrize("file", TABLES.KEYWORDS)
def test_the_keywords_that_editors_complete_are_written_from_the_settings(file):
    """`python docs/tables.py` writes them."""
    text = (ROOT / file).read_text(encoding="utf-8")
    assert TABLES.with_keywords(text, TABLES.KEYWORDS[file]) == text
    without_fields = re.compile(r"(?<=\n\n)(    \w+: .*\n)+")
    blank = without_fields.sub("    forgotten: int\n", text[text.index("(TypedDict") :])
    blank = text[: text.index("(TypedDict")] + blank
    assert blank != text
    assert TABLES.with_keywords(blank, TABLES.KEYWORDS[file]) == text


def test_every_setting_and_every_name_of_another_library_is_in_a_table():
    assert "flags" not in groups_of(TABLES.OF_PPO)
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall("<!-- table: (.*?) -->", text)) == set(TABLES.TABLES)


def messages():
    """The texts of jaxrl's code, with `...` for what is filled in."""
    for file in (ROOT / "jaxrl").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else "..." for part in node.values
                )
                yield "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_the_messages_that_troubleshooting_explains_are_those_of_the_code():
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    code = list(messages())
    assert len(explained) > 10
    assert [text for text in explained if not any(text in message for message in code)] == []


def test_every_public_name_is_in_the_api_reference():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    documented = re.findall(
        r"^.. auto(?:class|function|exception):: jaxrl\.(\w+)\b(?!\.)", page, re.MULTILINE
    )
    assert sorted(documented) == sorted(jaxrl.__all__)


LINKED_FROM = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]


def anchors_of(page):
    """What a link to a heading of `page` may end in, as the site and GitHub write it."""
    text = page.read_text(encoding="utf-8")
    if included := re.match(r"```{include} (.+)", text):
        return anchors_of(page.parent / included[1])
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED_FROM, ids=name_of)
def test_the_files_and_headings_that_a_page_links_to_exist(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:\s]*)(?:#([^):]+))?\)", text)
    links += [(picture, "") for picture in re.findall(r"src=\"([^\"]+)\"", text)]
    missing = []
    for link, anchor in links:
        target = page.parent / link if link else page
        headings = anchors_of(target) if anchor and target.suffix == ".md" else {anchor}
        if not target.exists() or anchor not in headings:
            missing.append(f"{link}#{anchor}")
    assert missing == []


def test_ci_runs_the_test_command_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    (command,) = [line for line in readme if line.endswith("-m pytest")]
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 130
    assert [line for line in lines if len(line) > WIDTH] == []


def test_a_block_that_fails_names_its_line_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n```python\nx = 1\n```\n\n```python\ny = x + 1\nassert y == 3\n```\n"
    )
    with pytest.raises(AssertionError) as failed:
        run_page(page)
    assert failed.traceback[-1].lineno + 1 == 9


def test_a_command_that_would_be_refused_is_found(shell, capsys):
    text = "```bash\njaxrl train --env arena --lr 1e-3 \\\n  --gama 0.9\n```\n"
    ((command, words),) = commands(text)
    with pytest.raises(SystemExit):
        COMMANDS[command](words)
    assert "unknown flag '--gama'; did you mean '--gamma'?" in capsys.readouterr().err
