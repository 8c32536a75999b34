"""Episodes from RLlib's files: batches of steps in lines of JSON, or a step in each Parquet row.

A batch may hold pieces of several episodes, and an episode may continue in a later batch: under
its `eps_id`, from the observation at which the piece before it stopped.
"""

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.fields import only
from jaxrl.core.json_text import read_json
from jaxrl.core.machine import GIB, host_memory, in_units
from jaxrl.core.number_types import as_type
from jaxrl.episodes.errors import EpisodeError
from jaxrl.episodes.packed_arrays import DAMAGE, Unpacker
from jaxrl.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl.episodes.values import Nested, leaves, map_nested

NESTED = ("obs", "new_obs", "actions")
STEPS = (*NESTED, "rewards")
FLAGS = ("terminateds", "dones", "truncateds")  # `dones` of RLlib before 2.3
NAMES = ("eps_id", "agent_index", "t")  # what tells pieces of episodes apart
CHANCES = ("action_prob", "action_logp")
KINDS = ("SampleBatch", "MultiAgentBatch")

Waiting = dict[tuple, SingleAgentEpisode]  # episodes that may continue, by what names them


def read_batches(files: list[Path], skip_damaged: bool) -> Iterator[SingleAgentEpisode]:
    """The episodes of one agent each, as they end; at last those that did not.

    An episode that lacks its begin says so by `t_started`, and one without its end by `is_done`.
    `module_id` is the policy of a MultiAgentBatch. Of the model's outputs `action_logp` is kept.

    Args:
        skip_damaged: warn of files that cannot be read to their end, and continue with the others.

    Raises:
        UsageError: a line that is damaged, or no batch.
    """
    waiting: Waiting = {}
    for file in files:
        try:
            for key, piece in _pieces(file):
                yield from _followed(waiting, key, piece)
        except UsageError as error:
            if not skip_damaged:
                raise
            warnings.warn(str(error), stacklevel=3)
    yield from waiting.values()


def _pieces(file: Path) -> Iterator[tuple[tuple, SingleAgentEpisode]]:
    """(what names its episode, the piece) of each piece in each batch."""
    if file.suffix == ".json":
        for where, policies in _lines(file):
            yield from _pieces_of(policies.items(), where)
        return
    from jaxrl.episodes.rllib_rows import EPISODES, columns_of_rows, table_of

    table, where = table_of(file), str(file)
    if EPISODES in table.column_names:
        from jaxrl.episodes.rllib_states import episodes_of_states

        for piece in episodes_of_states(table[EPISODES].to_pylist(), where):
            yield (None, piece.id_), piece
    else:
        read_columns = (*STEPS, *FLAGS, *NAMES, *CHANCES)
        yield from _pieces_of(columns_of_rows(table, read_columns), where)


def _lines(file: Path) -> Iterator[tuple[str, dict[str | None, Any]]]:
    """(where it is, {policy: its columns}) of each line of JSON."""
    most = (host_memory() or 8 * GIB) // 32  # numbers as Python's take up to 16 times the text
    with file.open("rb") as lines:
        number = 0
        while line := lines.readline(most):
            number += 1
            where = f"{file}, line {number}"
            if len(line) == most:
                raise UsageError(f"{where} has {in_units(most)} or more, a 32nd of the memory")
            if line.isspace():
                continue
            try:
                batch = read_json(line)
            except ValueError as error:
                raise UsageError(f"{where} is damaged, or no JSON: {one_line(error)}") from None
            kind = batch.get("type") if isinstance(batch, dict) else None
            if kind not in KINDS:
                raise UsageError(f"{where} is no batch of RLlib: its type is none of {KINDS}")
            policies = {None: batch}
            if kind == "MultiAgentBatch":
                policies = batch.get("policy_batches")
            if not isinstance(policies, dict) or not all(map(_is_dict, policies.values())):
                raise UsageError(f"{where} has no columns by policy, policy_batches")
            yield where, policies


def _pieces_of(
    policies: Iterable[tuple[str | None, Any]], where: str
) -> Iterator[tuple[tuple, SingleAgentEpisode]]:
    unpacker = Unpacker()
    try:
        for policy, columns in policies:
            yield from list(_Batch.of(columns, unpacker).pieces(policy, where))
    except DAMAGE as error:
        raise UsageError(f"{where}: {one_line(error)}") from None


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _followed(
    waiting: Waiting, key: tuple, piece: SingleAgentEpisode
) -> Iterator[SingleAgentEpisode]:
    """The episodes that are complete with this piece, which may continue one that waits."""
    before = waiting.pop(key, None)
    if before is not None:
        piece.t_started, started = before.t, piece.t_started
        try:
            before.concat_episode(piece)
            piece = before
        except EpisodeError:
            piece.t_started = started
            yield before
    if piece.is_done:
        yield piece
    else:
        waiting[key] = piece


class _Batch(NamedTuple):
    """The columns of n steps."""

    steps: dict[str, Nested]  # [n, ...]
    terminated: np.ndarray  # bool[n]
    truncated: np.ndarray  # bool[n]
    names: dict[str, np.ndarray]  # [n]

    @classmethod
    def of(cls, columns: Mapping[str, Any], unpacker: Unpacker) -> "_Batch":
        """Raises ValueError where they are no steps."""
        for name in STEPS:
            if name not in columns:
                raise ValueError(f"it has no column {name!r}, but {brief(list(columns))}")
        read = {}
        for name in (*STEPS, *FLAGS, *NAMES, *CHANCES):
            if name in columns:
                read[name] = _column(name, columns[name], unpacker)
                is_row = name not in NESTED
                if is_row and (not isinstance(read[name], np.ndarray) or read[name].ndim != 1):
                    raise ValueError(f"column {name!r} is no row of single values")
        count = len(read["rewards"])
        for name, column in read.items():
            if {leaf.shape[:1] for leaf in leaves(column)} != {(count,)}:
                raise ValueError(f"column {name!r} has not the {count} rows of 'rewards'")
        steps = {name: read[name] for name in STEPS}
        if "action_prob" in read:
            with np.errstate(divide="ignore", invalid="ignore"):
                steps["action_logp"] = np.log(read["action_prob"])
        steps |= only(read, ["action_logp"])
        terminated, dones, truncated = (
            as_type(read.get(name, np.zeros(count)), bool) for name in FLAGS
        )
        return cls(steps, terminated | dones, truncated, only(read, NAMES))

    def pieces(self, policy: str | None, where: str) -> Iterator[tuple[tuple, SingleAgentEpisode]]:
        """(what names its episode, the piece) of rows that follow each other."""
        begins, began = self._begins(), 0
        edges = np.append(np.flatnonzero(begins | self._breaks()), len(begins))
        for start, stop in itertools.pairwise(edges):
            began = start if begins[start] else began
            named = {name: column[start].item() for name, column in self.names.items()}
            t = named.pop("t", start - began)
            id_ = str(named.get("eps_id", f"{where}, row {began}"))
            yield (policy, id_, *named.values()), self._piece(slice(start, stop), id_, policy, t)

    def _begins(self) -> np.ndarray:
        """Returns whether each row is of another episode than the one before, bool[n]."""
        done = self.terminated | self.truncated
        begins = np.append(True, done)[: len(done)]
        for column in only(self.names, ["eps_id", "agent_index"]).values():
            begins[1:] |= column[1:] != column[:-1]
        return begins

    def _breaks(self) -> np.ndarray:
        """Returns whether each row begins elsewhere than the one before ended, bool[n]."""
        breaks = np.zeros(len(self.terminated), bool)
        pairs = map_nested(lambda *leaves: [leaves], self.steps["obs"], self.steps["new_obs"])
        for ((obs, new_obs),) in leaves(pairs):
            differs = obs[1:] != new_obs[:-1]
            differs &= ~(np.isnan(obs[1:]) & np.isnan(new_obs[:-1]))
            breaks[1:] |= differs.any(axis=tuple(range(1, differs.ndim)))
        return breaks

    def _piece(self, rows: slice, id_: str, policy: str | None, t: Any) -> SingleAgentEpisode:
        part = {}
        for name, column in self.steps.items():
            part[name] = map_nested(lambda leaf: leaf[rows], column)
        joined = lambda obs, new_obs: np.concatenate([obs, new_obs[-1:]])
        return SingleAgentEpisode(
            id_,
            observations=map_nested(joined, part.pop("obs"), part.pop("new_obs")),
            actions=part.pop("actions"),
            rewards=part.pop("rewards"),
            terminated=self.terminated[rows.stop - 1],
            truncated=self.truncated[rows.stop - 1],
            extra_model_outputs=part,
            t_started=t,
            len_lookback_buffer=0,
            module_id=policy,
        )


def _column(name: str, value: Any, unpacker: Unpacker) -> Nested:
    """Arrays in dicts and tuples, of numbers; of an `eps_id` texts too."""
    if isinstance(value, str):
        try:
            return unpacker.unpack(value)
        except ValueError as error:
            raise ValueError(f"column {name!r}: {one_line(error)}") from None
    if isinstance(value, dict) and value:
        return {key: _column(name, part, unpacker) for key, part in value.items()}
    array = np.asarray(value)
    if array.dtype.kind not in ("biufU" if name == "eps_id" else "biuf") or not array.ndim:
        raise ValueError(f"column {name!r} holds no arrays of numbers, but {brief(value)}")
    return array
