"""Infos as files hold them, which is JSON: plain data alone, and what NumPy has for it."""

import json
import warnings
from typing import Any

import numpy as np

from jaxrl.core.errors import one_line
from jaxrl.core.json_text import read_json
from jaxrl.core.mask_parts import MASK
from jaxrl.episodes.single_agent_episode import SingleAgentEpisode


def stored_infos(episode: SingleAgentEpisode) -> list[dict]:
    """The infos without what JSON cannot hold, of which a warning says so.

    Masks are left out too where they are among what the model put out.
    """
    elsewhere = {MASK} & episode.extra_model_outputs.keys()
    found = []
    for info in episode.get_infos():
        held = filter(lambda item: item[0] not in elsewhere and _is_held(*item), info.items())
        found.append(dict(held))
    return found


def as_plain(value: Any) -> Any:
    """A value of NumPy's as `json.dumps` takes it."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no plain data")


def _is_held(name: Any, value: Any) -> bool:
    if type(name) is str and name.isascii() and type(value) in (float, bool, type(None)):
        return True
    # In as many containers as a file has it: the facts, the agents, an agent, the infos, an info.
    facts = [[[[{name: value}]]]]
    try:
        read_json(json.dumps(facts, default=as_plain))
    except (TypeError, ValueError, RecursionError) as error:
        what = f"{name!r}, of type {type(value).__name__}, is left out: {one_line(error)}"
        warnings.warn(f"files hold plain data of infos: {what}", stacklevel=2)
        return False
    return True
