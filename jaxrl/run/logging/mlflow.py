"""MLflow logger: runs in a SQLite file of this machine, or at a tracking server."""

import os
import re
import time

from jaxrl.run.logging.loggers import RunStart
from jaxrl.run.logging.scalars import pictures, settings_of
from jaxrl.run.logging.tracker import PROJECT, Histograms, Tracker
from jaxrl.run.results import ENV_STEPS, Result

FORBIDDEN = re.compile(r"[^\w\-. :/]")  # in the name of a metric or a parameter
MOST_METRICS, MOST_PARAMETERS = 1000, 100  # of one call
LONGEST_VALUE = 500  # characters of a parameter, which every server takes


class MLflow(Tracker):
    """A run at MLflow, over environment steps; histograms are left out, MLflow has none.

    Pictures are artifacts of the run, by default below `mlruns` in the current folder.

    The experiment is "jaxrl", or `MLFLOW_EXPERIMENT_NAME`. `MLFLOW_TRACKING_URI` says where runs
    go; by default that is `mlflow.db` in the current folder. A resumed run may repeat results after
    its checkpoint.
    """

    tracker, id_file = "MLflow", "mlflow_run_id"

    def begin(self, run: RunStart, run_id: str, *, resumed: bool) -> str:
        from mlflow import MlflowClient, entities

        self._entities, self._client = entities, MlflowClient()
        if resumed:
            self._id = run_id
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.create_run(self._experiment(name), run_name=run.folder.name)
        self._id = found.info.run_id
        parameters = []
        for setting, value in settings_of(run.config).items():
            text = str(value)[:LONGEST_VALUE]
            parameters.append(entities.Param(FORBIDDEN.sub("_", setting), text))
        for begin in range(0, len(parameters), MOST_PARAMETERS):
            part = parameters[begin : begin + MOST_PARAMETERS]
            self._client.log_batch(self._id, params=part)
        return self._id

    def _experiment(self, name: str) -> str:
        """The id of an experiment, which another process may create meanwhile."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return self._client.create_experiment(name)
            except Exception:  # MLflow's, where it exists now
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return found.experiment_id

    def log(self, result: Result, scalars: dict[str, float], histograms: Histograms) -> None:
        now, step = int(1000 * time.time()), int(result[ENV_STEPS])
        metrics = []
        for path, value in scalars.items():
            name = FORBIDDEN.sub("_", path)
            metrics.append(self._entities.Metric(name, value, now, step))
        for begin in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[begin : begin + MOST_METRICS])
        for path, pixels in pictures(result).items():
            key = FORBIDDEN.sub("_", path)
            self._client.log_image(self._id, pixels, key=key, step=step)

    def end(self) -> None:
        self._client.set_terminated(self._id)
