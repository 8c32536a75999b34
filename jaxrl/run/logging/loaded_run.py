"""A run's folder, read: its results as a list, a pandas DataFrame or a figure."""

from pathlib import Path

from jaxrl.core.errors import UsageError
from jaxrl.run.logging.result_rows import read_results
from jaxrl.run.logging.run_results import LOG, RunResults
from jaxrl.run.results import Result
from jaxrl.run.storage import checkpoint, run_folder, runs
from jaxrl.run.storage.runs import METRICS


class Run(RunResults):
    """A run's folder, read: its results and settings. `jaxrl.load_run` makes it.

    Attributes:
        run_dir: the folder.
        facts: the contents of `config.json` (under "config") and of `metadata.json`.
    """

    def __init__(self, run_dir: Path):
        self.run_dir, self.facts = run_dir, run_folder.read(run_dir)

    def __repr__(self) -> str:
        return f"<Run {self.run_dir}: {self.facts.get('env_name', '')}>"

    def _repr_html_(self) -> str:
        from jaxrl.run.displays import run_display

        return run_display(self).html

    def results(self) -> list[Result]:
        """The result of every iteration, as in `metrics.jsonl`, the oldest first.

        Raises:
            UsageError: the run was trained without that log.
        """
        loggers = self.facts["run_settings"].get("loggers", LOG)
        if LOG not in loggers:
            raise UsageError(f"{self.run_dir} has no {METRICS}: its loggers are {loggers}")
        return read_results(self.run_dir / METRICS)


def load_run(path: str | Path) -> Run:
    """The results of a run, finished or in training: `.results()`, `.dataframe()`, `.plot()`.

    Reads two JSON files and imports nothing that they name; `jaxrl.load_policy` loads the policies.

    Args:
        path: a run's folder, of a sweep's trial too, or `runs/arena/latest`.

    Raises:
        UsageError: it is no run's folder.
    """
    folder = runs.resolve(checkpoint.run_path(path))
    if not (folder / runs.CONFIG).exists() and (inside := runs.contents(folder)):
        raise UsageError(inside)
    return Run(folder)
