"""Weights & Biases logger."""

import os

from jaxrl.run.logging.loggers import RunStart
from jaxrl.run.logging.scalars import settings_of
from jaxrl.run.logging.tracker import PROJECT, Histograms, Tracker, drawn
from jaxrl.run.results import ENV_STEPS, ITERATIONS, Result


class Wandb(Tracker):
    """A run at Weights & Biases, or the files of `WANDB_MODE=offline`.

    The project is "jaxrl", or `WANDB_PROJECT`. In a resumed run W&B itself passes over the steps
    that it has already.
    """

    tracker, id_file = "Weights & Biases", "wandb_run_id"

    def begin(self, run: RunStart, run_id: str, *, resumed: bool) -> str:
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(run.folder),
            name=run.folder.name,
            id=run_id,
            resume="allow",
            config=settings_of(run.config),
        )
        self._run.define_metric("*", step_metric=ENV_STEPS)
        return run_id

    def log(self, result: Result, scalars: dict[str, float], histograms: Histograms) -> None:
        values = {**scalars, **drawn(result, histograms, self._wandb)}
        self._run.log(values, step=result[ITERATIONS])

    def end(self) -> None:
        self._run.finish()
