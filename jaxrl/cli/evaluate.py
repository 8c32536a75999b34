"""Commands `jaxrl evaluate` and `jaxrl render`: play the policies of a trained run."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl.algorithms.task_settings import EVERYBODY
from jaxrl.cli.algorithms import OF_RLLIB
from jaxrl.cli.ending import ends_in_one_line
from jaxrl.cli.flags import CompileFlags, Flag, find_modules_here, flags_of, given_flags, read_flags
from jaxrl.cli.help import show_help
from jaxrl.cli.rllib_file import check_is_of
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import (
    UINT32,
    check_all,
    count,
    flag,
    number,
    optional_flag,
    setting,
    without,
)
from jaxrl.core.plan import WIDE, labelled, laid_out
from jaxrl.core.words import any_value, as_text, or_none, pairs, text_of, value_of
from jaxrl.play import load
from jaxrl.play.recording import EpisodeRecording
from jaxrl.replay.page import ENDING as PAGE_ENDING
from jaxrl.replay.page import check_name as check_page_name
from jaxrl.replay.replay import replay
from jaxrl.run.command_line import command, program
from jaxrl.run.devices import compile_cache
from jaxrl.run.devices.mesh import start_jax
from jaxrl.run.logging.console import print_answer, spread
from jaxrl.run.results import Result, flatten
from jaxrl.run.storage import runs
from jaxrl.run.storage.checkpoint import is_checkpoint, open_found, read_facts, run_path
from jaxrl.run.storage.config_file import untrusted_callbacks
from jaxrl.run.storage.hub import downloaded
from jaxrl.run.storage.json_lines import dumped
from jaxrl.run.storage.runs import EPISODE


def checkpoints(name: str, words: Sequence[str]) -> Any:
    """Best, last, or iterations as the checkpoints' folders are named; of one, itself."""
    parts = [part for word in words for part in word.split(",")]
    chosen = tuple(value_of(part) if part.isdecimal() else part for part in parts)
    return chosen if len(chosen) > 1 else chosen[0]


CHECKPOINTS = any_value(checkpoints, None, True, "best|last|N")
# Settings of several commands.
CHECKPOINT = setting("last", "the checkpoint: best, last, or an iteration", CHECKPOINTS)
EXPLORE = setting(False, "sample actions; False: the likeliest ones", flag)
SEED = setting(
    None, "seed of the episodes; None: the run's evaluation_seed", count(0, UINT32, optional=True)
)
ENV_ARGS = setting(
    (),
    "arguments of the environment that differ from training's",
    any_value(or_none(pairs), "NAME=VALUE"),
)
TRUST = setting(
    False,
    "import the code that the run names, though it is neither jaxrl's nor an installed plug-in's",
    flag,
)


@dataclasses.dataclass(frozen=True)
class EvaluateOptions:
    """Flags of `evaluate.py`."""

    episodes: Any = setting(
        None,
        "whole episodes to play; None: 100, or with --steps as many as it takes",
        count(optional=True),
    )
    steps: Any = setting(
        None,
        "steps of the environment after which no further episode begins; the last one is whole",
        count(optional=True),
    )
    explore: Any = setting(
        None,
        "sample actions; False: the likeliest ones; None: both, with --json or --output the "
        "likeliest",
        optional_flag,
    )
    checkpoint: Any = CHECKPOINT
    seed: Any = SEED
    env_args: Any = ENV_ARGS
    opponent: Any = setting(
        None,
        "member of the run's pool of opponents, or pool: all of them; None: the newest copy",
        any_value(as_text, "NAME"),
    )
    max_steps: Any = setting(
        None,
        "steps at which an episode is cut, and does not count; None: the run's "
        "evaluation_max_steps",
        count(optional=True),
    )
    output: Any = setting(
        None, "folder that the episodes are written to, as Parquet files", text_of("FOLDER")
    )
    json: bool = setting(False, "print the result tree as JSON", flag)
    algorithm: Any = setting(
        None, "refuse a run of another algorithm than this", text_of("NAME", *OF_RLLIB)
    )
    env: Any = setting(
        None,
        "refuse a run in another environment than this, by its name here or RLlib's",
        text_of("NAME"),
    )
    trust: bool = TRUST


@dataclasses.dataclass(frozen=True)
class RenderOptions:
    """Flags of `render.py`."""

    out: str = setting(
        "",
        "the file: .gif, .mp4, .png (a strip) or .html (a page that plays); default: "
        f"{EPISODE} in the run's folder",
        text_of("FILE"),
    )
    episode: int = setting(0, "number of the episode, or of the first, from 0", count(0))
    episodes: int = setting(1, "episodes, from --episode on; several for a page alone", count())
    explore: bool = EXPLORE
    checkpoint: Any = setting(
        "last",
        "the checkpoint: best, last, or an iteration; of a page also untrained, and several, side "
        "by side: untrained,best,last",
        CHECKPOINTS,
    )
    seed: Any = SEED
    max_steps: int = setting(2000, "steps at which an episode is cut", count())
    fps: Any = setting(
        None,
        "frames per second; None: some ten seconds in all",
        number(0, open_low=True, optional=True),
    )
    env_args: Any = ENV_ARGS
    trust: bool = TRUST


def evaluate(argv: Sequence[str] | None = None) -> None:
    """Play whole episodes with the policies of a run: RUN [flags]."""
    run_command("evaluate", evaluate.__doc__, EvaluateOptions(), argv, _evaluate)


def rollout(argv: Sequence[str] | None = None) -> None:
    """Play whole episodes with the policies of a run, as `evaluate` does: RUN [flags]."""
    run_command("rollout", rollout.__doc__, EvaluateOptions(), argv, _evaluate)


def render(argv: Sequence[str] | None = None) -> None:
    """Play an episode with the policies of a run; write a picture or a page: RUN [flags]."""
    run_command("render", render.__doc__, RenderOptions(), argv, _render)


def play_flags(defaults: Any) -> dict[str, Flag]:
    """Every flag of a command that plays a run."""
    return {**flags_of(defaults), **flags_of(CompileFlags())}


def _evaluate(run: str, options: EvaluateOptions) -> None:
    # First: a trainer may remove it while episodes are played.
    facts = open_found(run, options.checkpoint, read_facts)
    check_is_of(facts, options.algorithm, options.env, dict(options.env_args))
    settings = without(dataclasses.asdict(options), {"json", "algorithm", "env"})
    ways = [bool(options.explore)]
    if options.explore is None and not (options.json or options.output):
        ways = [False, True]
    for explore in ways:
        result = load.evaluate(run, **{**settings, "explore": explore})
        played = dataclasses.replace(options, explore=explore)
        print_answer(dumped(result) if options.json else report(result, run, played))
    if not options.trust and (left_out := untrusted_callbacks(facts)):
        names = ", ".join(map(str, left_out))
        line = f"left out: {names} and what they report; --trust imports them"
        if options.json:
            print(line, file=sys.stderr)
        else:
            print_answer(line)


def report(result: Result, run: str, options: EvaluateOptions) -> str:
    """The results of an evaluation, for people."""
    episodes = result["env_runners"]
    chosen = "sampled" if options.explore else "likeliest"
    which = "" if is_checkpoint(run) else f" ({options.checkpoint})"
    lines = [(None, f"{episodes['num_episodes']:,} episodes of {run}{which}, {chosen} actions")]
    if num_cut := episodes.get("num_episodes_cut"):
        lines.append((None, f"{num_cut:,} more were cut: they did not end"))
    if not episodes["num_episodes"]:
        return laid_out(lines)
    for what, name in (("return", "episode_return"), ("length", "episode_len")):
        numbers = [episodes[f"{name}_{part}"] for part in ("mean", "std", "min", "max")]
        lines.append((what, spread(*numbers)))
    if len(episodes["agent_episode_returns_mean"]) > 1:
        for agent, value in episodes["agent_episode_returns_mean"].items():
            lines.append((agent, f"{value:10.2f}"))
    metrics = dict(flatten(episodes["custom_metrics"]))
    names = [name.removesuffix("_mean") for name in metrics if name.endswith("_mean")]
    for name in names:
        mean, least, greatest = (metrics[f"{name}_{part}"] for part in ("mean", "min", "max"))
        lines.append((name, f"{mean:10.2f}  (from {least:.2f} to {greatest:.2f})"))
    for name, value in episodes.get("task", {}).items():
        lines.append((name, f"{value:10.4g}  (mean of what was drawn)"))
    for policy, who in result.get("opponents", {}).items():
        article = "the " if who == EVERYBODY or who.startswith("copy of ") else ""
        lines.append((policy, f"played by {article}{who}"))
    return laid_out(lines, WIDE)


def _render(run: str, options: RenderOptions) -> None:
    settings = {**dataclasses.asdict(options), "out": options.out or None}
    episodes = settings.pop("episodes")
    if (options.out or "").endswith(PAGE_ENDING):
        _render_page(run, options)
        return
    if episodes > 1 or isinstance(options.checkpoint, tuple):
        raise UsageError(
            f"several episodes or checkpoints need a page: --out episode{PAGE_ENDING}, not "
            f"{options.out or EPISODE}"
        )
    out, recording = load.render(run, **settings)
    print_answer(f"{out}: {_outcome(recording)}")


def _render_page(run: str, options: RenderOptions) -> None:
    if options.fps is not None:
        raise UsageError("fps is of pictures; a page has a speed of its own")
    settings = dataclasses.asdict(options)
    check_page_name(settings.pop("out"))
    del settings["fps"]
    page = replay(run, **settings)
    page.save(options.out)
    for column in page.columns:
        for i, recording in enumerate(column.recordings, options.episode):
            print_answer(f"{column.name}, episode {i}: {_outcome(recording)}")
    print_answer(labelled("look at", options.out))


def _outcome(recording: EpisodeRecording) -> str:
    total = recording.running_returns[-1].sum()
    return f"{recording.num_steps} steps, return {total:.2f}, {recording.end}"


def run_command(
    name: str,
    description: str,
    defaults: Any,
    argv: Sequence[str] | None,
    play: Callable,
    find: Callable = runs.resolve,
) -> None:
    """Reads RUN and flags, and plays; mistakes end the process with one line.

    Args:
        find: gives the folder that a path means, such as the newest for `runs/arena/latest`.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    flags = play_flags(defaults)
    with ends_in_one_line(name):
        show_help(argv, flags, program(name), description)
        texts = given_flags(argv, flags, positional="run")
        paths = texts.pop("run", [])
        if len(paths) != 1:
            got = f", not {' and '.join(map(repr, paths))}" if paths else ""
            raise UsageError(f"name one run's folder{got}: {command(name)} runs/...")
        run = str(find(run_path(downloaded(paths[0]))))
        settings = read_flags(texts, flags)
        cache = settings.pop("compile_cache", CompileFlags.compile_cache)
        options = dataclasses.replace(defaults, **settings)
        check_all(options)
        start_jax()
        if options.trust:
            # Not before: a stranger's run may be in a folder with modules of its own.
            find_modules_here()
        compile_cache.use(cache)
        play(run, options)
