"""Learning curves of a run: returns and the algorithm's metrics over environment steps."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.algorithms.task_settings import COPY, EVERYBODY
from jaxrl.run.logging.history import History, Series
from jaxrl.run.logging.panels import WIN_RATE, Panel
from jaxrl.run.logging.result_rows import read_result
from jaxrl.run.logging.statistics import spread_along
from jaxrl.run.results import ENV_STEPS, Result, lookup
from jaxrl.run.storage.json_lines import Damage, whole_lines

MAX_LINES = 5  # of more agents only the sum is drawn, of more policies a mean and a band
BAND_POINTS = 200
WINDOW_SHARE = 0.04  # of the curve, that a smoothed point is the mean of


class Curves:
    """The data of a run's `curves.png`. One thread may add while another draws.

    Names of series: "return", "agent/<agent>", "evaluation", "<metric>/<policy>" of each panel, and
    "win_rate/<opponent>".
    """

    def __init__(self, panels: Sequence[Panel] = ()):
        self.panels = tuple(panels)
        self._training, self._evaluation = History(), History()
        self._lock = threading.Lock()

    @classmethod
    def from_jsonl(cls, path: str | Path, panels: Sequence[Panel] = ()) -> "Curves":
        """The curves of all intact results in `metrics.jsonl`; reads only those that it keeps."""
        curves, damage, unread = cls(panels), Damage(Path(path)), []
        for number, line in whole_lines(Path(path)):
            if not curves._training.is_due and b'"evaluation"' not in line:
                curves._training.skip()
                unread.append((number, line))
            elif curves._add_line(line):
                unread.clear()
            else:
                damage.note(number)
        for number, line in reversed(unread):  # the newest intact one is always drawn
            curves._training.take_back()
            if curves._add_line(line):
                break
            damage.note(number)
        damage.say()
        return curves

    def add(self, results: list[Result]) -> int:
        """Adds results in their order; returns how many are left out, for they hold no numbers."""
        num_damaged = 0
        with self._lock:
            for result in results:
                try:
                    self._add(result, is_last=result is results[-1])
                except (TypeError, ValueError, AttributeError, KeyError):
                    num_damaged += 1
        return num_damaged

    def _add(self, result: Result, is_last: bool) -> None:
        evaluated = lookup(result, "evaluation/env_runners/episode_return_mean")
        evaluation = {} if evaluated is None else {"evaluation": float(evaluated)}
        if self._training.is_due or is_last:
            self._training.add(result[ENV_STEPS], training_values(result, self.panels))
        else:
            self._training.skip()
        if evaluation:
            self._evaluation.add(result[ENV_STEPS], evaluation)

    def series(self) -> dict[str, Series]:
        """{name: (steps, values)}, whatever is finite."""
        with self._lock:
            return {**self._training.series(), **self._evaluation.series()}

    def _add_line(self, line: bytes) -> bool:
        """Adds the result on a line; whether there is one."""
        result = read_result(line)
        return result is not None and not self.add([result])


def training_values(result: Result, panels: Sequence[Panel]) -> dict[str, float]:
    """The values of one result, by series; those that it does not have are left out."""
    runners = result.get("env_runners", {})
    values = {"return": runners.get("episode_return_mean")}
    agents = runners.get("agent_episode_returns_mean", {})
    values |= {f"agent/{agent}": mean for agent, mean in agents.items()}
    for policy, learner in result.get("learners", {}).items():
        values |= {f"{panel.name}/{policy}": learner.get(panel.name) for panel in panels}
    if any(panel.name == WIN_RATE for panel in panels):
        values |= {f"{WIN_RATE}/{name}": rate for name, rate in _win_rates(runners)}
    return {name: float(value) for name, value in values.items() if value is not None}


def _win_rates(runners: Result) -> Iterator[tuple[str, float | None]]:
    """(opponent, the win rate against it): all together, and those that stay who they are."""
    against = runners.get("opponents", {})
    yield EVERYBODY, against.get("win_rate")
    for name, scores in against.items():
        if isinstance(scores, Mapping) and not name.startswith(COPY):
            yield name, scores.get("win_rate")


def source_line(metadata: Mapping[str, Any], seed: int | None = None) -> str:
    """The source of a figure, from a run's metadata.json: `seed 0, commit ad19d27, 2026-11-22`."""
    commit, date = metadata.get("commit"), metadata.get("time")
    parts = [
        f"seed {seed}" if seed is not None else "",
        f"commit {str(commit)[:7]}" if commit else "",
        str(date)[:10] if date else "",
    ]
    return ", ".join(part for part in parts if part)


def of_kind(series: Mapping[str, Series], kind: str) -> dict[str, Series]:
    """{agent or policy: series} of those with a value."""
    return {
        name.partition("/")[2]: line
        for name, line in series.items()
        if name.startswith(f"{kind}/") and len(line[0])
    }


def aligned(lines: Iterable[Series]) -> tuple[np.ndarray, np.ndarray]:
    """(steps f64[P], values f64[lines, P]) at the steps of the longest line."""
    lines = list(lines)
    steps = max((steps for steps, _ in lines), key=len)
    return steps, np.stack([np.interp(steps, *line) for line in lines])


def band_of(lines: Sequence[Series], *, interval: bool) -> tuple[np.ndarray, np.ndarray]:
    """(steps f64[P], f64[3, P] of `spread_along`) of several seeds.

    Values are interpolated; a line that has ended keeps its last.
    """
    begin, end = (extreme(steps[i] for steps, _ in lines) for i, extreme in ((0, min), (-1, max)))
    steps = np.linspace(begin, end, BAND_POINTS)
    values = np.stack([np.interp(steps, *line, left=np.nan) for line in lines])
    return steps, spread_along(values, interval=interval)


def smooth(values: np.ndarray, *, logarithmic: bool = False) -> np.ndarray:
    """The moving average f64[P], P >= 3, over a window that shrinks near the ends.

    On a logarithmic axis the geometric mean: there an arithmetic one would turn a spike into a
    plateau.
    """
    if logarithmic:
        return np.exp(smooth(np.log(values)))
    window = np.ones(2 * max(1, round(WINDOW_SHARE * len(values) / 2)) + 1)
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def spans_decades(lines: Mapping[str, Series]) -> bool:
    """Returns whether a logarithmic scale is better: positive values, spread by a factor of 30."""
    values = np.concatenate([values for _, values in lines.values()]) if lines else np.zeros(1)
    return bool(values.min() > 0 and np.percentile(values, 99.5) > 30 * np.percentile(values, 0.5))


def last_step(runs: Iterable[Mapping[str, Series]]) -> float:
    return max(
        (float(steps[-1]) for series in runs for steps, _ in series.values() if len(steps)),
        default=0.0,
    )
