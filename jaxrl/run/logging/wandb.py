"""Weights & Biases logger."""

import os
import re
import secrets
from pathlib import Path

from jaxrl.core.errors import UsageError
from jaxrl.run.logging.loggers import Logger, RunStart
from jaxrl.run.logging.scalars import Downsampler, charts, settings_of
from jaxrl.run.results import ENV_STEPS, ITERATIONS, Result
from jaxrl.run.storage import own_files

MOST_CHARACTERS = 128  # of an id


def _known_id(path: Path) -> str:
    """The id that a run's folder holds; W&B makes a folder's name of it."""
    with open(path, "rb", opener=own_files.without_links) as file:
        text = file.read(MOST_CHARACTERS + 1).decode(errors="replace").strip()
    if not re.fullmatch(rf"[-\w]{{1,{MOST_CHARACTERS}}}", text):
        raise UsageError(f"{path} holds no id of a run of Weights & Biases")
    return text


class Wandb(Logger):
    """A run at Weights & Biases, or the files of `WANDB_MODE=offline`; thinned as TensorBoard is.

    The project is "jaxrl", or `WANDB_PROJECT`. A resumed run continues under its id, kept in
    `wandb_run_id`; W&B itself passes over the steps that it has already.
    """

    def open(self, run: RunStart) -> None:
        import wandb

        self._wandb, self._thin = wandb, Downsampler()
        id_file = run.folder / "wandb_run_id"
        if run.iteration == 0 or not id_file.exists():
            own_files.write_text(id_file, secrets.token_hex(4))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "jaxrl"),
            dir=str(run.folder),
            name=run.folder.name,
            id=_known_id(id_file),
            resume="allow",
            config=settings_of(run.config),
        )
        self._run.define_metric("*", step_metric=ENV_STEPS)

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
