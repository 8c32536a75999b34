"""Weights & Biases logger."""

import os
import secrets

from jaxrl.run.logging.loggers import ENV_STEPS, Logger, RunStart
from jaxrl.run.logging.scalars import Downsampler, charts, settings_of, tag_of
from jaxrl.run.results import ITERATIONS, Result
from jaxrl.run.storage import own_files


class Wandb(Logger):
    """A run at Weights & Biases, or the files of `WANDB_MODE=offline`; thinned as TensorBoard is.

    The project is "jaxrl", or `WANDB_PROJECT`. A resumed run continues under its id, kept in
    `wandb_run_id`; W&B itself passes over the steps that it has already.
    """

    def open(self, run: RunStart) -> None:
        import wandb

        self._wandb, self._thin = wandb, Downsampler()
        kept = run.folder / "wandb_run_id"
        if run.iteration == 0 or not kept.exists():
            own_files.write_text(kept, secrets.token_hex(4))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "jaxrl"),
            dir=str(run.folder),
            name=run.folder.name,
            id=kept.read_text().strip(),
            resume="allow",
            config=settings_of(run.config),
        )
        self._run.define_metric("*", step_metric=tag_of(ENV_STEPS))

    def write(self, results: list[Result]) -> None:
        for result in self._thin.due(results):
            scalars, histograms = charts(result)
            drawn = {
                tag: self._wandb.Histogram(np_histogram=(counts, edges))
                for tag, (edges, counts) in histograms.items()
            }
            self._run.log({**scalars, **drawn}, step=result[ITERATIONS])

    def flush(self) -> None:
        self.write(self._thin.held())

    def close(self) -> None:
        self.flush()
        self._run.finish()
