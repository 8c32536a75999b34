"""`jaxrl episodes`: a folder's statistics, an episode, replays, estimates, Minari datasets."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from jaxrl.cli.ending import ends_in_one_line
from jaxrl.cli.flags import flag_name, flags_of, given_flags, read_flags
from jaxrl.cli.help import show_help
from jaxrl.core.env import lift
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import check_all, count, flag, number, only, setting
from jaxrl.core.plan import WIDE, labelled, laid_out
from jaxrl.core.registry import ENVIRONMENT, make_with
from jaxrl.core.trust import check_name
from jaxrl.core.words import text_of
from jaxrl.episodes import (
    EpisodeWriter,
    MultiAgentEpisode,
    read_episodes,
)
from jaxrl.episodes.by_agent import Episode, agents_of
from jaxrl.episodes.minari_datasets import to_minari
from jaxrl.offline.estimators import estimate_return
from jaxrl.play.load import policy_of, render
from jaxrl.play.replayed_episode import environment_of, origin_of, replay_episode
from jaxrl.play.sampling import ORIGIN
from jaxrl.play.video import check_ending
from jaxrl.replay.page import ENDING as PAGE_ENDING
from jaxrl.replay.page import check_name as check_page_name
from jaxrl.replay.replay import replay
from jaxrl.run.command_line import program
from jaxrl.run.devices.mesh import start_jax
from jaxrl.run.inference.policy import Policy
from jaxrl.run.logging.console import print_answer, spread
from jaxrl.run.storage.checkpoint import open_found

MAX_CHARACTERS = 60  # of a nested value in the table of steps
TASKS = ("out", "replay", "judge", "minari", "parquet")
SHOWN_OUTPUTS = {"vf_preds": "value", "action_logp": "log-probability"}


@dataclasses.dataclass(frozen=True)
class EpisodesOptions:
    """Flags of `jaxrl episodes`."""

    show: Any = setting(
        None, "print the steps of this episode, counted from 0", count(0, optional=True)
    )
    out: str = setting(
        "",
        "draw the episode of --show, else the first, to this file: .gif, .mp4, .png (a strip) or "
        ".html (a page that plays)",
        text_of("FILE"),
    )
    replay: bool = setting(
        False, "step the environment of each episode again, and say which ones differ", flag
    )
    judge: str = setting(
        "",
        "estimate from the episodes what the policies of this run earn, sampling their actions",
        text_of("RUN"),
    )
    gamma: float = setting(1.0, "the discount of that return", number(0, 1))
    minari: str = setting(
        "",
        "write the episodes as Minari datasets of this name, such as arena/sampled-v0",
        text_of("NAME"),
    )
    parquet: str = setting(
        "", "write the episodes as Parquet files into this folder", text_of("FOLDER")
    )
    skip_damaged: bool = setting(False, "warn of files that cannot be read, and continue", flag)


def episodes(argv: Sequence[str] | None = None) -> None:
    """Print what a folder of episodes, or minari:NAME, holds: DIR [flags]."""
    words = list(sys.argv[1:] if argv is None else argv)
    with ends_in_one_line("episodes"):
        flags = flags_of(EpisodesOptions())
        show_help(words, flags, program("episodes"), episodes.__doc__)
        texts = given_flags(words, flags, positional="folder")
        folders = texts.pop("folder", [])
        if len(folders) != 1:
            found = f", not {len(folders)}: {', '.join(folders)}" if folders else ""
            raise UsageError(f"name one folder of episodes, such as data/arena{found}")
        options = EpisodesOptions(**read_flags(texts, flags))
        check_all(options)
        _check_together(options, texts)
        found = read_episodes(folders[0], skip_damaged=options.skip_damaged)
        if options.out:
            start_jax()
            _draw(nth(found, options.show or 0, folders[0]), options.out)
            print_answer(labelled("look at", options.out))
        elif options.show is not None:
            print_answer(steps_of(nth(found, options.show, folders[0])))
        elif options.replay:
            start_jax()
            print_answer(replays_of(found))
        elif options.judge:
            start_jax()
            print_answer(
                str(estimate_return(found, policies_of(options.judge), gamma=options.gamma))
            )
        elif options.minari:
            start_jax()  # the spaces are those of the environment, which is made
            for name in to_minari(with_spaces(found), options.minari):
                print_answer(f"minari.load_dataset({name!r})")
        elif options.parquet:
            with EpisodeWriter(options.parquet) as writer:
                for episode in found:
                    writer.write(episode)
            print_answer(labelled("written to", options.parquet))
        else:
            print_answer(statistics_of(found, folders[0]))


def _check_together(options: EpisodesOptions, texts: Mapping[str, Any]) -> None:
    """Refuses two tasks at once, of which one would be left out, and a file of no format."""
    asked = [name for name in TASKS if getattr(options, name)]
    if options.show is not None and asked != ["out"]:
        asked.insert(0, "show")
    if len(asked) > 1:
        raise UsageError(f"{flag_name(asked[0])} and {flag_name(asked[1])}: give one of them")
    if options.out.endswith(PAGE_ENDING):
        check_page_name(options.out)
    elif options.out:
        check_ending(options.out)
    if "gamma" in texts and not options.judge:
        raise UsageError("--gamma goes with --judge RUN")


def _draw(episode: Episode, out: str) -> None:
    if out.endswith(PAGE_ENDING):
        replay(episode).save(out)
    else:
        render(episode, out)


def nth(found: Iterable[Episode], number: int, folder: str) -> Episode:
    """Raises UsageError if there are fewer."""
    episode = next(islice(found, number, None), None)
    if episode is None:
        raise UsageError(f"show={number}: {folder} holds fewer episodes")
    return episode


def statistics_of(found: Iterable[Episode], folder: str) -> str:
    """Returns, lengths and ends of all episodes; they are read one file after the other."""
    rows, agents, envs = [], {}, set()
    for episode in found:
        rows.append((return_of(episode), len(episode), end_of(episode)))
        for agent, (data, _) in agents_of(episode).items():
            agents.setdefault(agent, []).append(data.get_return())
        origin = episode.custom_data.get(ORIGIN)
        envs.add(origin.get("env") if isinstance(origin, Mapping) else None)
    if not rows:
        raise UsageError(f"no episodes in {folder}: no file can be read")
    returns, lengths, ends = zip(*rows, strict=True)
    named = ", ".join(sorted(filter(None, envs)))
    which = f" of {named}" if named else ""
    counts = [f"{ends.count(end):,} {end}" for end in sorted(set(ends))]
    lines = [
        (None, f"{len(rows):,} episodes{which} in {folder}, {sum(lengths):,} steps"),
        ("return", _spread(returns)),
        ("length", _spread(lengths)),
        ("end", ", ".join(counts)),
    ]
    if len(agents) > 1:
        lines += [(f"return of {agent}", _spread(values)) for agent, values in agents.items()]
    return laid_out(lines, WIDE)


def steps_of(episode: Episode) -> str:
    """A table with a row for each step of each agent."""
    several, parts = isinstance(episode, MultiAgentEpisode), agents_of(episode)
    outputs = dict(SHOWN_OUTPUTS)
    for data, _ in parts.values():
        outputs = only(outputs, data.extra_model_outputs)
    rows = []
    for agent, (data, times) in parts.items():
        columns = [data.observations, data.actions, data.rewards]
        columns += [data.extra_model_outputs[name] for name in outputs]
        for i, time in enumerate(times[:-1]):
            rows.append([str(time), agent, *(_brief(column[i]) for column in columns)])
    rows.sort(key=lambda row: int(row[0]))
    table = [["step", "agent", "observation", "action", "reward", *outputs.values()], *rows]
    columns = list(zip(*table, strict=True))
    if not several:
        columns.pop(1)  # the agent
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in zip(*columns, strict=True):
        cells = map(str.ljust, row, widths)
        lines.append("  ".join(cells).rstrip())
    summary = f"return {return_of(episode):g}, {len(episode)} steps, {end_of(episode)}"
    return "\n".join([*lines, f"{episode.id_}: {summary}"])


def replays_of(found: Iterable[Episode]) -> str:
    """The number of episodes that their environments reproduce, and where the others differ."""
    count, lines = 0, []
    for episode in found:
        difference, count = replay_episode(episode).difference, count + 1
        if difference is not None:
            lines.append(f"{episode.id_}: {difference}")
    equal = count - len(lines)
    return "\n".join([f"{equal:,} of {count:,} episodes are reproduced to the bit", *lines])


def policies_of(run: str) -> dict[str, Policy]:
    """All policies of a run's last checkpoint."""
    saved = open_found(run, "last")
    return {name: policy_of(saved, name) for name in saved.facts["policies"]}


def with_spaces(found: Iterable[Episode]) -> Iterator[Episode]:
    """The episodes with the spaces of their environments, which are not stored."""
    envs: dict[str, tuple] = {}
    for episode in found:
        origin = origin_of(episode)
        name = json.dumps([origin["env"], origin["env_args"]], sort_keys=True)
        if name not in envs:
            envs[name] = _played_in(episode, origin)
        env, params = envs[name]
        for agent, (data, _) in agents_of(episode).items():
            data.observation_space = env.observation_space(agent, params)
            data.action_space = env.action_space(agent, params)
        yield episode


def _played_in(episode: Episode, origin: Mapping[str, Any]) -> tuple[Any, Any]:
    """(environment, params), whose spaces are wanted; nothing is imported that a file alone names.

    Raises:
        UsageError: an environment without a name, or one that is not part of jaxrl or announced.
    """
    name = origin["env"]
    if name is None or ":" not in name:
        return environment_of(episode, origin)
    check_name(ENVIRONMENT, name, f"the environment of episode {episode.id_}", trust=False)
    made, params = make_with(name, origin["env_args"])
    return lift(made), params


def return_of(episode: Episode) -> float:
    """The return of an episode, including the rewards that belong to no action."""
    if isinstance(episode, MultiAgentEpisode):
        return episode.get_return(include_hanging_rewards=True)
    return episode.get_return()


def end_of(episode: Episode) -> str:
    if not episode.is_done:
        return "not ended"
    return "terminated" if episode.is_terminated else "truncated"


def _spread(values: Sequence[float]) -> str:
    return spread(np.mean(values), np.std(values), min(values), max(values))


def _brief(value: Any) -> str:
    if isinstance(value, dict | tuple):
        return f"{value!s:.{MAX_CHARACTERS}}"
    return np.array2string(np.asarray(value), precision=3, threshold=8, edgeitems=3).replace(
        "\n", ""
    )
