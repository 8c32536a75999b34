"""Episodes of one agent as RLlib packs them, in the column `item` of its Parquet files.

Each is the state of RLlib's `SingleAgentEpisode` in MessagePack, whose arrays are maps of their
type, shape and bytes. Objects, which RLlib would unpickle, are refused.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, brief, one_line, require
from jaxrl.episodes.packed_arrays import DAMAGE
from jaxrl.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl.episodes.values import map_nested

PLAIN = re.compile(r"[<>|=]?[biuf]\d{1,2}")  # the types of arrays that are numbers
PLAIN_VALUES = (bool, int, float, str, bytes, type(None))  # of MessagePack without its extensions


def episodes_of_states(states: Iterable[bytes], where: str) -> Iterator[SingleAgentEpisode]:
    """The episodes, or pieces of them, of packed states. Of the model `action_logp` is kept.

    Raises:
        UsageError: msgspec is not installed; a state that is damaged, or of several agents.
    """
    require("msgspec", "reading RLlib's episodes", "msgspec")
    import msgspec

    for number, packed in enumerate(states, start=1):
        try:
            state = _unpacked(msgspec.msgpack.decode(packed))
            if "agent_episodes" in state:
                raise ValueError("it is of several agents")
            if len(state["rewards"]["data"]) <= int(state["rewards"]["lookback"]):
                continue  # of a reset alone
            episode = _episode_of(state)
        except (msgspec.MsgspecError, *DAMAGE) as error:
            why = f"{type(error).__name__}: {one_line(error)}"
            raise UsageError(f"{where}: episode {number} cannot be read: {why}") from None
        yield episode


def _episode_of(state: Mapping[str, Any]) -> SingleAgentEpisode:
    outputs = {}
    for name, column in state["extra_model_outputs"].items():
        if name == "action_logp":
            outputs[name] = _steps_of(column)
    return SingleAgentEpisode(
        str(state["id_"]),
        observations=_steps_of(state["observations"]),
        actions=_steps_of(state["actions"]),
        rewards=_steps_of(state["rewards"]),
        terminated=bool(state["is_terminated"]),
        truncated=bool(state["is_truncated"]),
        extra_model_outputs=outputs,
        t_started=int(state["t_started"]),
        len_lookback_buffer=0,
    )


def _steps_of(column: Mapping[str, Any]) -> Any:
    """The steps of a column without those before its piece, which RLlib keeps to look back at."""
    data, lookback = column["data"], int(column["lookback"])
    if column["finalized"]:
        data = _with_tuples(data)
    else:
        data = map_nested(lambda *steps: np.stack(steps), *map(_with_tuples, data))
    return map_nested(lambda leaf: leaf[lookback:], data)


def _with_tuples(value: Any) -> Any:
    """A value in which tuples are tuples again, which MessagePack has as lists."""
    if isinstance(value, dict):
        return {key: _with_tuples(part) for key, part in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _unpacked(value: Any) -> Any:
    """A value with its arrays, from the maps that stand for them."""
    if isinstance(value, list):
        return list(map(_unpacked, value))
    if not isinstance(value, dict):
        if not isinstance(value, PLAIN_VALUES):
            raise ValueError(f"it has an object of MessagePack's, {type(value).__name__}")
        return value
    if b"nd" not in value:
        return {key: _unpacked(part) for key, part in value.items()}
    dtype = value[b"type"]
    if not isinstance(dtype, str) or not PLAIN.fullmatch(dtype) or value.get(b"kind"):
        raise ValueError(f"it has an array of {brief(dtype)}, which is no number")
    array = np.frombuffer(value[b"data"], dtype)
    return array.reshape(value[b"shape"]).copy() if value[b"nd"] else array[0]
