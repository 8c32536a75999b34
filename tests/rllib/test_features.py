"""The list of RLlib's features: what it names of jaxrl is there, and its counts are its rows'."""

import inspect
import re
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import jaxrl
from jaxrl.cli.flags import names_of
from jaxrl.cli.main import all_flags
from jaxrl.core.fields import field_names
from jaxrl.episodes import MultiAgentEpisode
from jaxrl.sweeps.results import Sweep
from tests.run.test_trainer import documented_paths

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rllib-features.md").read_text(encoding="utf-8")
VERDICTS = ("as it is", "renamed", "differently", "partly", "no")
ROWS = re.findall(r"^\| (.+?) \| (.+) \| (.+?) \|$", PAGE.partition("\n## ")[2], re.MULTILINE)
ROWS = [row for row in ROWS if row[2] not in ("works", "---")]

CARTPOLE = jaxrl.PPOConfig(env="cartpole", num_envs=1, rollout_length=128)
OBJECTS = {
    "jaxrl": jaxrl,
    "trainer": jaxrl.Trainer(CARTPOLE, run_dir=None, quiet=True),
    "config": jaxrl.PPOConfig,
    "policy": jaxrl.Policy,
    "done": Sweep,
    "episode": MultiAgentEpisode,
}
SETTINGS = {
    name
    for settings in (jaxrl.PPOConfig, jaxrl.BCConfig, jaxrl.RunSettings)
    for name in field_names(settings)
} | set(inspect.signature(jaxrl.sweep).parameters)
FLAGS = {
    command: {name for flag in flags.items() for name in names_of(*flag)}
    for command, flags in all_flags().items()
}
OTHERS = re.compile(  # of other programs, of your own code, of a result in it
    r"(tensorboard --logdir|py-spy dump|tune\.|print\(|pprint\(|step\.|info|result\[).*"
    r"|on_\w+|metrics_logger|custom_data|__init__|loss|MeanStdFilter|gym:NAME"
)


def is_command(text):
    """Whether `jaxrl COMMAND --flag ...` has the command and all of its flags."""
    command = text.split()[1]
    flags = re.findall(r"(?<= )--?[a-z][a-z-]*", text)
    return command in FLAGS and all(flag in FLAGS[command] | {"--help", "-f"} for flag in flags)


def is_flag(text):
    return any(text.split()[0] in flags for flags in FLAGS.values()) or text == "--help-all"


def is_name(text):
    """Whether `jaxrl.a.b(...)`, `trainer.a` or `episode.a` is there."""
    path = re.match(r"[\w.]+", text)[0]
    first, *names = path.split(".")
    found = OBJECTS[first]
    for name in names:
        found = getattr(found, name, None)
    return found is not None or (first == "jaxrl" and is_importable(path))


def is_importable(path):
    module, _, name = path.rpartition(".")
    return find_spec(module) is not None and hasattr(import_module(module), name)


def is_setting(text):
    return re.match(r"\w*", text)[0] in SETTINGS


def is_result(text):
    return any(re.fullmatch(pattern, text) for pattern in documented_paths())


def is_file(text):
    page = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")  # a run's folder
    return re.search(rf"^ +{re.escape(text)} ", page, re.MULTILINE) is not None


def is_there(text):
    """Whether jaxrl has what a row names, or the row says whose it is."""
    if text.startswith("jaxrl "):
        return is_command(text)
    if text.startswith("-"):
        return is_flag(text)
    if is_file(text) or OTHERS.fullmatch(text):
        return True
    if text.partition(".")[0] in OBJECTS:
        return is_name(text)
    return is_setting(text) or is_result(text) or text in jaxrl.names()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_of_jaxrl_is_there(row):
    _, answer, verdict = row
    assert verdict in VERDICTS
    assert [name for name in re.findall(r"`([^`]+)`", answer) if not is_there(name)] == []


def test_the_counts_of_the_page_are_those_of_its_rows():
    text = PAGE.replace("\n", " ")
    found = re.search(
        r"Of (\d+) features (\d+) work as they are, (\d+) under another name, (\d+) differently, "
        r"(\d+) partly and (\d+) not\.",
        text,
    )
    counts = Counter(verdict for _, _, verdict in ROWS)
    assert list(map(int, found.groups())) == [len(ROWS), *(counts[name] for name in VERDICTS)]
    assert len({feature for feature, _, _ in ROWS}) == len(ROWS) == 166


@pytest.mark.parametrize(
    "text",
    ["jaxrl train --num-workers 8", "jaxrl fly", "--num-workers", "jaxrl.PPO", "trainer.workers",
     "episode.get_data_dict", "num_workers", "env_runners/unheard_of", "unheard.json"],
)  # fmt: skip
def test_a_row_that_names_what_is_not_there_is_found(text):
    assert not is_there(text)
