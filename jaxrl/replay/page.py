"""Replay page: recorded episodes and their player in one HTML file, which needs no network."""

import base64
import html
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.env import has_pictures
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.program_spaces import (
    action_space_inside,
    action_to_program,
    countable,
    num_chosen,
    unpacked,
)
from jaxrl.core.spaces import Box, Space, is_tree, parts_of, range_of, tree_of
from jaxrl.core.types import PyTree
from jaxrl.play.recording import Decisions, EpisodeRecording
from jaxrl.play.video import png_frames, write_file
from jaxrl.replay.drawings import Drawings, drawings_of, observations_drawn
from jaxrl.replay.packing import Packer

ENDING = ".html"
PLAYER = ("player.css", "painting.js", "player.js")  # the files of a replay page
MAX_BYTES = 16_000_000  # of a page
MAX_AGENTS = 16  # whose numbers are shown
MAX_ACTIONS, MAX_ELEMENTS = 64, 8  # whose probabilities, or means, are shown
NOTEBOOK_HEIGHT = 760  # pixels


@dataclass(frozen=True)
class Column:
    """The episodes of one checkpoint, shown beside those of others."""

    name: str
    recordings: tuple[EpisodeRecording, ...]
    note: str = ""


@dataclass(frozen=True)
class Replay:
    """Episodes that a browser plays: `save` writes them as a file, and a notebook shows them."""

    columns: tuple[Column, ...]
    html: str

    def save(self, path: str | Path) -> Path:
        """Writes the page, one file of its own.

        Raises:
            UsageError: a name that does not end in .html, or a file that cannot be written.
        """
        path = check_name(path)
        content = self.html.encode()
        write_file(path, lambda temporary: temporary.write_bytes(content))
        return path

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" '
            f'style="width: 100%; height: {NOTEBOOK_HEIGHT}px; border: 0"></iframe>'
        )

    def __repr__(self) -> str:
        number = len(self.columns[0].recordings)
        names = ", ".join(column.name for column in self.columns)
        return f"Replay({number} episode{'' if number == 1 else 's'} of {names})"


def check_name(path: str | Path, what: str = "page ") -> Path:
    """The path of a page, before any episode is played for it.

    Args:
        what: the first words of a refusal.
    """
    path = Path(path)
    if path.suffix != ENDING:
        raise UsageError(f"{what}{brief(str(path))}: the name must end in {ENDING}")
    if not path.parent.is_dir():
        raise UsageError(f"{what}{brief(str(path))}: there is no folder {path.parent}")
    return path


def make_replay(columns: Sequence[Column], *, first: int = 0, note: str = "") -> Replay:
    """A page of episodes: each column plays the same ones.

    Args:
        first: the number of the first episode.
        note: beside the title, where the episodes come from.

    Raises:
        UsageError: drawings that break a rule, or a page of more than `MAX_BYTES`.
    """
    page = page_of(replay_data(columns, first=first, note=note))
    check_size(page, columns)
    return Replay(tuple(columns), page)


def check_size(page: str, columns: Sequence[Column]) -> None:
    """Refuses a page of more than `MAX_BYTES`."""
    if len(page) <= MAX_BYTES:
        return
    of_steps, instead = "", "jaxrl watch shows it at any size"
    if columns:
        steps = sum(recording.num_steps for recording in _recordings(columns))
        of_steps = f" for {steps:,} steps"
        instead = "choose fewer episodes or checkpoints, or a smaller max_steps"
    raise UsageError(
        f"the page would have {len(page) / 1e6:.0f} MB{of_steps}, and at most "
        f"{MAX_BYTES / 1e6:.0f} MB are allowed: {instead}"
    )


def _recordings(columns: Sequence[Column]) -> list[EpisodeRecording]:
    return list(itertools.chain.from_iterable(column.recordings for column in columns))


def page_of(data: Any, files: Sequence[str] = PLAYER) -> str:
    """A page of these styles and scripts, which reads the data as JSON.

    Args:
        files: in `jaxrl/replay`, as `PLAYER` and others of `jaxrl.replay.run_pages`.
    """
    folder = resources.files("jaxrl.replay")
    read = lambda name: folder.joinpath(name).read_text(encoding="utf-8")
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = read("player.html")
    for mark, ending in (("@STYLE@", ".css"), ("@SCRIPT@", ".js")):
        parts = [read(name) for name in files if name.endswith(ending)]
        page = page.replace(mark, "\n".join(parts), 1)
    return page.replace("@DATA@", text, 1)


def replay_data(columns: Sequence[Column], *, first: int = 0, note: str = "") -> dict[str, Any]:
    """The data of the player; the arrays are references into "arrays"."""
    shown, packer = columns[0].recordings[0], Packer()
    names = tuple(getattr(shown.env, "action_names", ()))
    agents, episodes = [], []
    for agent in shown.agents[:MAX_AGENTS]:
        facts = shown.facts[agent]
        actions = _action_facts(facts.action_space, names, columns, agent)
        agents.append({"name": agent, "policy": facts.module_id, **actions})
    for i in range(len(columns[0].recordings)):
        tracks = [_track(column.recordings[i], packer) for column in columns]
        episodes.append({"number": first + i, "tracks": tracks})
    return {
        "title": shown.env.name,
        "note": note,
        "agents": agents,
        "hidden_agents": len(shown.agents) - len(agents),
        "columns": [{"name": column.name, "note": column.note} for column in columns],
        "episodes": episodes,
        "arrays": packer.text(),
    }


def _track(recording: EpisodeRecording, packer: Packer) -> dict[str, Any]:
    """One episode of one checkpoint."""
    env, shown = recording.env, recording.agents[:MAX_AGENTS]
    rewards, decisions = _finite(recording.rewards), recording.decisions
    track = {
        "steps": recording.num_steps,
        "end": recording.end,
        "returns": _finite(recording.running_returns[-1]).tolist(),
        "rewards": packer.add(rewards[:, : len(shown)], bits=32),
        "totals": packer.add(rewards.sum(axis=1, dtype=np.float64), bits=32),
        "active": packer.add(recording.active[:, : len(shown)]),
        "decisions": [],
    }
    for agent in shown:
        space = recording.facts[agent].action_space
        track["decisions"].append(_decisions(decisions[agent], space, packer))
    if hasattr(env, "draw"):
        return {**track, "drawing": _packed(drawings_of(recording), packer)}
    if has_pictures(env):
        steps, pictures = png_frames(recording)
        urls = []
        for picture in pictures:
            urls.append("data:image/png;base64," + base64.b64encode(picture).decode("ascii"))
        return {**track, "frames": {"steps": list(map(int, steps)), "images": urls}}
    drawn = observations_drawn(recording)
    if drawn.numbers is not None:
        track["observation"] = packer.add(drawn.numbers)
    return {**track, "drawing": _packed(drawn, packer)}


def _packed(drawings: Drawings, packer: Packer) -> dict[str, Any]:
    shapes = []
    for look, arrays in zip(drawings.looks, drawings.arrays, strict=True):
        references = {name: packer.add(array) for name, array in arrays.items()}
        shapes.append({**look, "arrays": references})
    return {"bounds": packer.add(drawings.bounds), "shapes": shapes}


def _decisions(decisions: Decisions, space: Space, packer: Packer) -> dict[str, Any]:
    """The packed decisions: integers as the places of their names, before the Boxes' numbers."""
    rows = lambda array: _finite(array).reshape(len(array), -1)[:, :MAX_ACTIONS]
    packed = {"action": packer.add(rows(_taken(space, decisions.action)))}
    if decisions.value is not None:
        packed["value"] = packer.add(_finite(decisions.value))
    probabilities = decisions.probabilities
    if probabilities is not None and probabilities.shape[1] <= MAX_ACTIONS:
        packed["probabilities"] = packer.add(_finite(probabilities), bits=8)
    if decisions.spread is not None:
        packed["spread"] = [packer.add(rows(part)[:, :MAX_ELEMENTS]) for part in decisions.spread]
    return packed


def _taken(space: Space, action: PyTree) -> np.ndarray:
    """Actions [T, *shape] in rows: integers from 0, then numbers."""
    action = action_to_program(space, action)
    if not is_tree(space):
        return action
    inside = action_space_inside(space)
    integers, numbers = [], []
    for _, part, leaf in parts_of(inside, unpacked(inside, action)):
        rows = numbers if isinstance(part, Box) else integers
        rows.append(leaf.reshape(len(leaf), -1))
    return np.concatenate(integers + numbers, axis=1)


def _finite(array: Any) -> np.ndarray:
    """The array with 0 for NaN and infinity, for which JSON has no number."""
    return np.nan_to_num(np.asarray(array), posinf=0.0, neginf=0.0)


def _action_facts(
    space: Space, names: tuple[str, ...], columns: Sequence[Column], agent: str
) -> dict[str, Any]:
    """The names of an agent's actions, and the bounds of those of a Box."""
    recordings = _recordings(columns)
    taken = [_taken(space, recording.decisions[agent].action) for recording in recordings]
    taken = _finite(np.concatenate(taken))
    if is_tree(space):
        return _facts_of_parts(space, taken)
    space = countable(space)
    if isinstance(space, Box):
        if len(names) != space.size:
            names = tuple(map(str, range(space.size)))
        bounds = _bounds(_in_a_row(space, space.low), _in_a_row(space, space.high), taken)
        return {"names": list(names[:MAX_ELEMENTS]), **bounds}
    parts = list(space.counts)
    if len(parts) == 1 and len(names) == parts[0]:
        return {"names": list(names[:MAX_ACTIONS]), "parts": parts}
    numbered, lows = [], np.ravel(range_of(space)[0]).tolist()
    for i, (low, count) in enumerate(zip(lows, parts, strict=True)):
        prefix = f"{i}: " if len(parts) > 1 else ""
        numbered += [f"{prefix}{low + value}" for value in range(count)]
    return {"names": numbered[:MAX_ACTIONS], "parts": parts}


def _facts_of_parts(space: Space, taken: np.ndarray) -> dict[str, Any]:
    """The facts of an action in parts: its integers, and "numbers" of its Boxes."""
    names, counts, numbers, low, high = [], [], [], [], []
    for path, part, _ in parts_of(space, tree_of(space)):
        choices = countable(part)
        several = [""] if choices.shape == () else [f" {i}" for i in range(num_chosen(choices))]
        if isinstance(choices, Box):
            numbers += [f"{path}{which}" for which in several]
            low += _in_a_row(choices, choices.low)
            high += _in_a_row(choices, choices.high)
            continue
        lows, size = np.ravel(range_of(choices)[0]).tolist(), choices.counts
        for which, first, count in zip(several, lows, size, strict=True):
            names += [f"{path}{which}: {first + value}" for value in range(count)]
        counts += size
    facts = {}
    if counts:
        facts = {"names": names[:MAX_ACTIONS], "parts": counts}
    if numbers:
        bounds = _bounds(low, high, taken[:, len(counts) :])
        facts |= {"numbers": numbers[:MAX_ELEMENTS], **bounds}
    return facts


def _in_a_row(space: Box, bound: np.ndarray) -> list[float]:
    return np.broadcast_to(bound, space.shape).reshape(-1).tolist()


def _bounds(low: list[float], high: list[float], taken: np.ndarray) -> dict[str, list[float]]:
    """The bounds of numbers; where there are none, the extremes of `taken`, [n, k]."""
    taken = taken.reshape(len(taken), -1).astype(np.float64)
    low = np.where(np.greater(low, -1e30), low, taken.min(axis=0))
    high = np.where(np.less(high, 1e30), high, taken.max(axis=0))
    return {"low": low[:MAX_ELEMENTS].tolist(), "high": high[:MAX_ELEMENTS].tolist()}
