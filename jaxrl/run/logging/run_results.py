"""Results of a trainer: as a list, a pandas DataFrame or a figure."""

import fnmatch
import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.core.errors import UsageError, require, unknown_result
from jaxrl.run.logging.panels import panels_of
from jaxrl.run.logging.result_rows import read_results
from jaxrl.run.results import ENV_STEPS, RETURN, Result, flatten, lookup
from jaxrl.run.storage.runs import METRICS

LOG = "jsonl"  # the logger that writes what is read here
NARROW = (  # the columns of a data frame that most people look at
    "training_iteration",
    ENV_STEPS,
    "time_total_s",
    RETURN,
    "env_runners/episode_len_mean",
    f"evaluation/{RETURN}",
    "env_runners/agent_episode_returns_mean/*",
    "env_runners/custom_metrics/*_mean",
    "perf/env_steps_per_s",
)

if TYPE_CHECKING:
    from jaxrl.run.logging.history import Thinned


class RunResults:
    """The methods of `Trainer` and `Run` that give results to their user."""

    run_dir: Path | None
    facts: Mapping[str, Any]  # the configuration and the panels, as `metadata.json` has them

    def results(self) -> list[Result]:
        """The result of every iteration so far, the oldest first."""
        raise NotImplementedError

    def dataframe(self, columns: str | Sequence[str] | None = None) -> Any:
        """`results` as a pandas DataFrame: a row for each iteration, a column for each path.

        Args:
            columns: paths, or patterns such as `learners/*/entropy`; "all": every path; None: steps
                and time, returns and lengths, the agents' returns, the means of custom metrics, and
                the metrics that `plot` draws.

        Raises:
            UsageError: pandas is not installed, or no path is like one of `columns`.
        """
        rows = list(map(dict, map(flatten, self.results())))
        frame = dataframe_of(rows, "results()")
        if columns == "all":
            return frame
        if columns is None:
            panels = (f"learners/*/{panel.name}" for panel in panels_of(self.facts))
            return frame[_like((*NARROW, *panels), frame.columns)]
        patterns = [columns] if isinstance(columns, str) else list(columns)
        for pattern in patterns:
            if rows and not _like([pattern], frame.columns):
                raise unknown_result("column", pattern, list(frame.columns))
        return frame[_like(patterns, frame.columns)]

    def plot(self) -> Any:
        """The learning curves as a matplotlib figure, drawn as `curves.png`; notebooks show it.

        Raises:
            UsageError: matplotlib is not installed.
        """
        from jaxrl.run.logging.curves import Curves, source_line
        from jaxrl.run.logging.figures import figure, inline
        from jaxrl.run.storage import run_folder

        require("matplotlib", "plot()")
        curves = Curves(panels_of(self.facts))
        curves.add(self.results())
        made = self.facts if self.run_dir is None else run_folder.read(self.run_dir)
        footer = source_line(made, self.facts["config"].get("seed"))
        return inline(
            figure(curves.series(), curves.panels, self.facts.get("env_name", ""), footer)
        )


def _like(patterns: Iterable[str], paths: Iterable[str]) -> list[str]:
    """The paths that are like one of the patterns, in the order of the patterns."""
    paths = list(paths)
    found = (fnmatch.filter(paths, pattern) for pattern in patterns)
    return list(dict.fromkeys(itertools.chain.from_iterable(found)))


class TrainerResults(RunResults):
    """The results of a trainer, from its log, or from its memory where it writes none."""

    @cached_property
    def _by_step(self) -> "Thinned":
        from jaxrl.run.logging.history import Thinned

        return Thinned()

    def __repr__(self) -> str:
        steps, mean = self.lifetime.num_env_steps, lookup(self.last_result, RETURN)
        so_far = f"after iteration {self.iteration:,}, {steps:,} steps"
        shown = "" if mean is None else f", return {mean:.4g}"
        where = "no folder" if self.run_dir is None else self.run_dir
        return f"<{type(self).__name__} {self.config.env_name}: {so_far}{shown}, {where}>"

    def _repr_html_(self) -> str:
        from jaxrl.run.displays import trainer_display

        return trainer_display(self).html

    def keep_results(self, results: list[Result]) -> None:
        """Remembers a chunk's results, where no log has them."""
        if not self._has_log:
            for result in results:
                self._by_step.add(result[ENV_STEPS], result)

    def results(self) -> list[Result]:
        """The result of every iteration so far, as in `metrics.jsonl`, the oldest first.

        A trainer without that log remembers 2,000 iterations, evenly spaced, of those since it was
        made.
        """
        if not self._has_log:
            return [result for _, result in self._by_step.points()]
        self.keeping.hurry()
        return read_results(self.run_dir / METRICS)

    @property
    def _has_log(self) -> bool:
        return self.run_dir is not None and LOG in self.settings.loggers


def dataframe_of(rows: Iterable[Mapping[str, Any]], instead: str) -> Any:
    """A pandas DataFrame of these rows.

    Args:
        instead: the call that gives the same without pandas.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise UsageError(
            f"dataframe needs pandas: pip install pandas; {instead} gives the same as dicts"
        ) from None
    return pandas.DataFrame(list(rows))
