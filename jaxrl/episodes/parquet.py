"""Episodes in Parquet files: a row for each step of an agent, under RLlib's column names.

A folder holds any number of files, and a file whole episodes. A file gets its name when it is
complete, so that whatever ends the process, each file that is there can be read. Dicts and tuples
are taken apart: `obs.position` is a column of its own. Arrays are stored as flat lists; the file's
metadata say what shapes and types they have.
"""

import functools
import itertools
import json
import math
import os
import re
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.errors import UsageError, brief, one_line, require
from jaxrl.core.fields import INT64, count, file_path, flag, number, takes
from jaxrl.core.json_text import read_json
from jaxrl.core.number_types import NotHeldError, common_type
from jaxrl.core.value_copies import owned
from jaxrl.episodes.bounded_table import read_table
from jaxrl.episodes.d4rl_names import D4RL, refusal_of
from jaxrl.episodes.episode import Episode
from jaxrl.episodes.files import OF_RLLIB, episode_files, why_not_writable
from jaxrl.episodes.minari_datasets import from_minari
from jaxrl.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl.episodes.stored_infos import as_plain, stored_infos
from jaxrl.episodes.values import Nested, map_nested

MINARI = "minari:"  # begins the name of a Minari dataset, in place of a path
FORMAT = 1
METADATA = b"jaxrl.episodes"  # of a file: the form of the agents' data, as JSON
FACTS = "episode"  # a column: what there is to say of the whole episode, as JSON
PREFIX = re.compile("[0-9a-f]{8}")  # of all files of one writer
FILE = re.compile(rf"episodes-(?P<prefix>{PREFIX.pattern})-(?P<number>\d{{6,}})\.parquet")
MAX_ROWS, MAX_BYTES, MAX_SECONDS = 100_000, 2**28, 10.0
PATH = file_path("a folder of episodes, or a file of them")

STEP_COLUMNS = ("eps_id", "agent_id", "module_id", "t", "env_t", "terminateds", "truncateds", FACTS)
OF_BOTH = ("custom_data", "duration_s")
EPISODE_FACTS = ("env_t", "terminated", "truncated", "early_rewards", "agent_module_ids", *OF_BOTH)
AGENT_FACTS = ("id_", *OF_BOTH, "infos")

Layout = dict[str, Any]  # of an agent's data: "trees", {name: its columns}, and "outputs", names


class EpisodeWriter:
    """Writes episodes into a folder, a file at a time. As a context manager it calls `close`.

    Args:
        path: the folder, which the first file makes if it is not there. Several writers may share
            it.
        max_rows, max_bytes: of a file, bytes before compression; the episode that reaches one of
            them is its last one.
        max_seconds: after which the next `write` writes a file in any case. Episodes that have
            waited for less are lost if the process is killed.

    Raises:
        UsageError: pyarrow is not installed, or the folder cannot be written.
    """

    @takes(path=PATH, max_rows=count(), max_bytes=count(most=INT64), max_seconds=number(0))
    def __init__(
        self,
        path: str | Path,
        *,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        max_seconds: float = MAX_SECONDS,
    ):
        require("pyarrow", "writing episodes", "pyarrow")
        self.path, self.max_seconds = Path(path), max_seconds
        self.max_rows, self.max_bytes = max_rows, max_bytes
        if reason := why_not_writable(self.path):
            raise UsageError(f"episodes cannot be written to {brief(str(path))}: {reason}")
        self._prefix, self._number = uuid.uuid4().hex[:8], 0
        self._waiting: list[_AgentRows] = []
        self._rows = self._bytes = 0  # of those
        self._layouts: dict[str, Layout] = {}
        self._began = 0.0

    def write(self, episode: Episode) -> None:
        """Adds an episode; it may wait in memory for the file to become full.

        Raises:
            UsageError: an episode that does not begin with its reset, has no step, or has an action
                that waits for its outcome; names of agents that are not strings.
        """
        rows = _rows_of(episode)
        layouts = {name_of(row.agent): row.layout for row in rows}
        written = self._layouts
        if any(written.get(agent, layout) != layout for agent, layout in layouts.items()):
            self.flush()
        if not self._waiting:
            self._began = time.monotonic()
        self._layouts |= layouts
        self._waiting += rows
        for row in rows:
            self._rows += len(row.episode)
            self._bytes += sum(column.nbytes for column in row.columns.values())
        is_full = self._rows >= self.max_rows or self._bytes >= self.max_bytes
        if is_full or time.monotonic() - self._began >= self.max_seconds:
            self.flush()

    def flush(self) -> None:
        """Writes a file of the episodes that wait, if there are any."""
        if not self._waiting:
            return
        import pyarrow.parquet

        path = self.path / f"episodes-{self._prefix}-{self._number:06}.parquet"
        part = path.with_name(f".{path.name}.part").absolute()  # pyarrow takes a:b for an address
        try:
            table = _table(self._waiting, self._layouts)
            self.path.mkdir(parents=True, exist_ok=True)
            pyarrow.parquet.write_table(table, part, compression="zstd", write_page_checksum=True)
            os.replace(part, path)
        except (OSError, UnicodeError, NotHeldError, pyarrow.ArrowException) as error:
            raise UsageError(f"episodes cannot be written to {path}: {one_line(error)}") from None
        self._number += 1
        self._waiting, self._layouts = [], {}
        self._rows = self._bytes = 0

    @property
    def position(self) -> dict[str, Any]:
        """The name and the number of the files that it has written so far, for `resume`."""
        return {"prefix": self._prefix, "number": self._number}

    def resume(self, prefix: str, number: int) -> None:
        """Takes the place of a writer at this `position`; files that it wrote later are removed.

        Raises:
            UsageError: no position of a writer, whose names could be those of other files.
        """
        if not isinstance(prefix, str) or not PREFIX.fullmatch(prefix):
            raise UsageError(f"a writer's files have eight hexadecimal digits, not {brief(prefix)}")
        if type(number) is not int or number < 0:
            raise UsageError(f"a writer's files are counted from 0, not {brief(number)}")
        for path in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            found = FILE.fullmatch(path.name)
            if found and found["prefix"] == prefix and int(found["number"]) >= number:
                path.unlink()
        self._prefix, self._number = prefix, number

    def close(self) -> None:
        """Writes what waits."""
        self.flush()

    def __enter__(self) -> "EpisodeWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@takes(path=PATH, skip_damaged=flag)
def read_episodes(path: str | Path, *, skip_damaged: bool = False) -> Iterator[Episode]:
    """The episodes of a folder, or of one file, in the order of the files' names.

    "minari:NAME" is a Minari dataset (`from_minari`). RLlib's files of steps are read too, as
    `jaxrl.episodes.rllib_batches` says. Episodes of our files are equal to those that were
    written, but for spaces, which are not stored: lists become arrays, and infos and custom_data
    what JSON makes of them.

    Args:
        skip_damaged: warn of files that cannot be read, and continue with the others.

    Raises:
        UsageError: no such folder or no file in it; a file that is damaged, or of something else.
    """
    if str(path).startswith(MINARI):
        return from_minari(str(path).removeprefix(MINARI))
    if str(path).startswith(D4RL):
        raise refusal_of(str(path))
    files = episode_files(path)
    if not files:
        raise UsageError(f"no episodes in {path}: there is no .parquet file, and no {OF_RLLIB}")
    from jaxrl.episodes.rllib_batches import read_batches
    from jaxrl.episodes.rllib_rows import is_of_rllib

    if files[0].suffix == ".json":
        return read_batches(files, skip_damaged)
    require("pyarrow", "reading episodes", "pyarrow")
    if is_of_rllib(files[0]):
        return read_batches(files, skip_damaged)
    return _read_files(files, skip_damaged)


def _read_files(files: list[Path], skip_damaged: bool) -> Iterator[Episode]:
    for file in files:
        try:
            episodes = _read_file(file)
        except UsageError as error:
            if not skip_damaged:
                raise
            warnings.warn(str(error), stacklevel=3)
            continue
        yield from episodes


def name_of(agent: Any) -> str:
    """An agent's name in a file: of an agent alone ""."""
    return "" if agent is None else agent


# Writing


class _AgentRows(NamedTuple):
    """The steps of an agent in an episode."""

    id_: str  # of the episode
    agent: str | None
    episode: SingleAgentEpisode
    times: list[int]  # the environment steps of the actions
    columns: dict[str, np.ndarray]  # [k, ...]
    layout: Layout
    facts: str  # of the whole episode


def _rows_of(episode: Episode) -> list[_AgentRows]:
    if not isinstance(episode, SingleAgentEpisode | MultiAgentEpisode):
        raise UsageError(f"expected an episode of jaxrl.episodes, not {brief(episode)}")
    if not (episode.begins_with_reset and len(episode)):
        raise _cannot_store(episode, "it does not begin with its reset, or has no step")
    if isinstance(episode, MultiAgentEpisode):
        state, agents = episode.get_facts(), episode.agent_episodes
        times = {agent: episode.observation_times(agent) for agent in agents}
        _check_agents(episode, state["timelines"])
    else:
        if not isinstance(episode.agent_id, str | None):
            raise _cannot_store(episode, f"agent {episode.agent_id!r} is not named by a string")
        state, agents = {}, {episode.agent_id: episode}
        times = {episode.agent_id: list(range(len(episode) + 1))}
    facts = {name: state[name] for name in EPISODE_FACTS if name in state}
    facts["agents"] = {}
    for agent, data in agents.items():
        facts["agents"][name_of(agent)] = {
            "id_": data.id_,
            "custom_data": data.custom_data,
            "duration_s": data.get_duration_s(),
            "last": times[agent][-1],
            "rows": len(data),
            "waiting_reward": state["timelines"][agent]["waiting_reward"] if state else 0.0,
            "infos": stored_infos(data) if any(data.infos.data) else None,
        }
    try:
        facts = json.dumps(facts, default=as_plain)
        read_json(facts)
    except (TypeError, ValueError, RecursionError) as error:
        why = f"its custom_data must be what JSON holds: {one_line(error)}"
        raise _cannot_store(episode, why) from None
    rows = []
    for agent, data in agents.items():
        columns, layout = _columns_of(data)
        rows.append(_AgentRows(episode.id_, agent, data, times[agent][:-1], columns, layout, facts))
    return rows


def _check_agents(episode: MultiAgentEpisode, timelines: Mapping[Any, Mapping]) -> None:
    for agent, data in episode.agent_episodes.items():
        if not isinstance(agent, str) or not agent:
            raise _cannot_store(episode, f"agent {agent!r} is not named by a string")
        if timelines[agent]["pending"] is not None or not len(data):
            why = f"agent {agent!r} has no step, or an action that waits for its outcome"
            raise _cannot_store(episode, why)


def _cannot_store(episode: Episode, why: str) -> UsageError:
    return UsageError(f"episode {episode.id_} cannot be stored: {why}")


def _columns_of(episode: SingleAgentEpisode) -> tuple[dict[str, np.ndarray], Layout]:
    """({column: [k, ...]}, their layout) of an agent's steps."""
    # An episode waits to be written, and its arrays may be set meanwhile.
    arrays = lambda column: owned(column.data) if column.finalized else column.arrays()
    observations = arrays(episode.observations)
    parts = {
        "obs": map_nested(lambda leaf: leaf[:-1], observations),
        "actions": arrays(episode.actions),
        "rewards": arrays(episode.rewards),
        "new_obs": map_nested(lambda leaf: leaf[1:], observations),
    }
    outputs = {key: arrays(column) for key, column in episode.extra_model_outputs.items()}
    if clash := sorted(outputs.keys() & {*parts, *STEP_COLUMNS}):
        raise _cannot_store(episode, f"{clash[0]!r} is no name for an extra model output")
    columns, trees = {}, {}
    try:
        for name, nested in (parts | outputs).items():
            trees[name] = _taken_apart(name, nested, columns)
    except ValueError as error:
        raise _cannot_store(episode, str(error)) from None
    return columns, {"trees": trees, "outputs": list(outputs)}


def _taken_apart(name: str, nested: Nested, columns: dict[str, np.ndarray]) -> Any:
    """Adds the leaves of arrays to the columns; returns their form, as JSON holds it.

    Raises:
        ValueError: two leaves would share a column, or a key is no string.
    """
    if isinstance(nested, Mapping):
        if others := [key for key in nested if not isinstance(key, str)]:
            raise ValueError(f"the key {others[0]!r} in {name} is no string")
        parts = {key: _taken_apart(f"{name}.{key}", part, columns) for key, part in nested.items()}
        return {"dict": parts}
    if isinstance(nested, tuple):
        parts = [_taken_apart(f"{name}.{i}", part, columns) for i, part in enumerate(nested)]
        return {"tuple": parts}
    if name in columns:
        raise ValueError(f"two of its parts would share the column {name!r}")
    columns[name] = nested
    return {"column": name, "dtype": _name_of(nested.dtype), "shape": list(nested.shape[1:])}


_name_of = functools.cache(str)  # of a type: NumPy takes longer over it than over most columns


def _table(waiting: list[_AgentRows], layouts: Mapping[str, Layout]) -> Any:
    """The file's table; rows of an agent, and of an episode, follow each other."""
    import pyarrow

    counts = [len(rows.episode) for rows in waiting]
    rows_of = pyarrow.array(np.repeat(np.arange(len(counts)), counts))
    repeat = lambda values: pyarrow.array(values, pyarrow.string()).take(rows_of)
    is_last = np.concatenate([np.arange(count) == count - 1 for count in counts])
    ends = lambda flags: is_last & np.repeat(np.array(flags, bool), counts)
    columns = {
        "eps_id": repeat([rows.id_ for rows in waiting]),
        "agent_id": repeat([rows.agent for rows in waiting]),
        "module_id": repeat([rows.episode.module_id for rows in waiting]),
        "t": np.concatenate([np.arange(count, dtype=np.int32) for count in counts]),
        "env_t": np.concatenate([np.array(rows.times, np.int32) for rows in waiting]),
    }
    for name in dict.fromkeys(itertools.chain.from_iterable(rows.columns for rows in waiting)):
        columns[name] = _column([rows.columns.get(name) for rows in waiting], counts)
    columns["terminateds"] = ends([rows.episode.is_terminated for rows in waiting])
    columns["truncateds"] = ends([rows.episode.is_truncated for rows in waiting])
    # Long texts, which are not copied for each row. Some readers, Ray Data among them, stumble over
    # a dictionary without entries, as that of an `agent_id` of single agents would be.
    facts = pyarrow.array([rows.facts for rows in waiting], pyarrow.string())
    columns[FACTS] = facts.dictionary_encode().take(rows_of)
    metadata = {METADATA: json.dumps({"format": FORMAT, "layouts": layouts})}
    return pyarrow.table(columns).replace_schema_metadata(metadata)


def _column(parts: list[np.ndarray | None], counts: list[int]) -> Any:
    """Numbers as they are, arrays as flat lists; zeros or empty lists for those without it."""
    import pyarrow

    there = [part for part in parts if part is not None]
    dtype = common_type(there)
    if all(part.ndim == 1 for part in there):
        rows = []
        for part, count in zip(parts, counts, strict=True):
            rows.append(np.zeros(count, dtype) if part is None else part)
        return pyarrow.array(np.concatenate(rows).astype(dtype))
    sizes = [0 if part is None else math.prod(part.shape[1:]) for part in parts]
    offsets = np.append(0, np.cumsum(np.repeat(sizes, counts)))
    flat = np.concatenate([part.reshape(-1) for part in there]).astype(dtype)
    return pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets), pyarrow.array(flat))


# Reading


def _read_file(file: Path) -> list[Episode]:
    import pyarrow

    try:
        table = read_table(file)
        stored = read_json((table.schema.metadata or {}).get(METADATA, b"null"))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"{file} is damaged, or no Parquet file: {one_line(error)}") from None
    if not isinstance(stored, Mapping) or not {"format", "layouts"} <= stored.keys():
        raise UsageError(f"{file} holds no episodes that jaxrl wrote")
    if stored["format"] > FORMAT:
        raise UsageError(
            f"{file} was written by a later version of jaxrl: format {stored['format']}"
        )
    try:
        return _episodes_of(table, stored["layouts"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UsageError(f"{file} is damaged: {type(error).__name__} {one_line(error)}") from None


def _episodes_of(table: Any, layouts: Mapping[str, Layout]) -> list[Episode]:
    times = table["t"].to_numpy()
    starts = np.flatnonzero(times == 0)
    stops = np.append(starts[1:], len(table))
    if len(table) and not (len(starts) and starts[0] == 0):
        raise ValueError("the first episode does not begin with its first row")
    at_starts = table.select(["eps_id", "agent_id", "module_id", FACTS]).take(starts).to_pydict()
    columns = {}
    for name in table.column_names:
        if name not in at_starts:
            columns[name] = _Stored.of(table[name])
    episodes: list[Episode] = []
    agents: dict[str, tuple[dict, list[int], float]] = {}
    for i, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        id_, agent, module, facts = (values[i] for values in at_starts.values())
        rows, name = slice(start, stop), name_of(agent)
        facts = read_json(facts)
        state = _agents_state(columns, layouts[name], rows)
        agent_facts = facts["agents"][name]
        _check_rows(id_, times[rows], agent_facts.get("rows", stop - start))
        state |= {"agent_id": agent, "module_id": module}
        for key in AGENT_FACTS:
            state[key] = agent_facts[key]
        if "env_t" not in facts:
            episodes.append(SingleAgentEpisode.from_state(state, copy=False))
            continue
        state["multi_agent_episode_id"] = id_
        env_times = [*columns["env_t"].rows(rows).tolist(), agent_facts["last"]]
        agents[name] = state, env_times, agent_facts["waiting_reward"]
        if len(agents) == len(facts["agents"]):
            episodes.append(_multi_agent_episode(id_, facts, agents))
            agents = {}
    if agents:
        raise ValueError("an episode is not complete")
    return episodes


def _check_rows(id_: str, times: np.ndarray, count: int) -> None:
    """Refuses an agent's rows where some of the `count` that were written are missing, or twice."""
    if len(times) != count or not np.array_equal(times, np.arange(count)):
        raise ValueError(f"episode {id_!r:.40} has {len(times)} rows, and {count} were written")


class _Stored(NamedTuple):
    """A column of a file."""

    values: np.ndarray
    offsets: np.ndarray | None  # of each row's list in them

    @classmethod
    def of(cls, column: Any) -> "_Stored":
        column = column.combine_chunks()
        if hasattr(column, "chunk"):
            column = column.chunk(0)
        if not hasattr(column, "offsets"):
            return cls(column.to_numpy(zero_copy_only=False), None)
        values = column.values.to_numpy(zero_copy_only=False)
        return cls(values, column.offsets.to_numpy())

    def rows(self, rows: slice) -> np.ndarray:
        if self.offsets is None:
            return self.values[rows]
        return self.values[self.offsets[rows.start] : self.offsets[rows.stop]]


def _agents_state(columns: Mapping[str, _Stored], layout: Layout, rows: slice) -> dict[str, Any]:
    """The state of an agent's steps, for `SingleAgentEpisode.from_state`."""
    parts = {name: _put_together(tree, columns, rows) for name, tree in layout["trees"].items()}
    last = map_nested(lambda leaf: leaf[-1:], parts["new_obs"])
    joined = lambda leaf, last: np.concatenate([leaf, last])
    return {
        "observations": map_nested(joined, parts["obs"], last),
        "actions": parts["actions"],
        "rewards": parts["rewards"],
        "extra_model_outputs": {name: parts[name] for name in layout["outputs"]},
        "terminated": bool(columns["terminateds"].values[rows.stop - 1]),
        "truncated": bool(columns["truncateds"].values[rows.stop - 1]),
        "len_lookback_buffer": 0,
    }


def _put_together(tree: Any, columns: Mapping[str, _Stored], rows: slice) -> Nested:
    if "dict" in tree:
        return {key: _put_together(part, columns, rows) for key, part in tree["dict"].items()}
    if "tuple" in tree:
        return tuple(_put_together(part, columns, rows) for part in tree["tuple"])
    flat = columns[tree["column"]].rows(rows)
    return flat.reshape(rows.stop - rows.start, *tree["shape"]).astype(tree["dtype"])


def _multi_agent_episode(
    id_: str, facts: Mapping[str, Any], agents: Mapping[str, tuple[dict, list[int], float]]
) -> MultiAgentEpisode:
    """An episode of {agent: (its state, times of its observations, reward that waits)}."""
    states, timelines = {}, {}
    for agent, (state, times, waiting) in agents.items():
        states[agent] = state
        timelines[agent] = {"times": times, "pending": None, "waiting_reward": waiting}
    whole = {name: facts[name] for name in EPISODE_FACTS}
    whole |= {"id_": id_, "agent_episodes": states, "timelines": timelines}
    whole |= {"observation_space": None, "action_space": None, "agent_to_module_mapping_fn": None}
    whole |= {"env_t_started": 0, "len_lookback_buffer": 0}
    return MultiAgentEpisode.from_state(whole, copy=False)
