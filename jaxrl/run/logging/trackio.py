"""Trackio logger: runs in a SQLite file of this machine, or in a Space at Hugging Face."""

import os
import re

from jaxrl.run.logging.loggers import RunStart
from jaxrl.run.logging.scalars import settings_of
from jaxrl.run.logging.tracker import PROJECT, Histograms, Tracker, drawn
from jaxrl.run.results import ENV_STEPS, Result


class Trackio(Tracker):
    """A run at Trackio, over environment steps; `trackio show --project jaxrl` shows it.

    The project is "jaxrl", or `TRACKIO_PROJECT`; its file is below `TRACKIO_DIR`, by default in
    Hugging Face's cache. Nothing leaves this machine unless `TRACKIO_SPACE_ID` or
    `TRACKIO_SERVER_URL` says so. A resumed run may repeat results after its checkpoint.
    """

    tracker, id_file = "Trackio", "trackio_run_id"

    def begin(self, run: RunStart, run_id: str, *, resumed: bool) -> str:
        import trackio

        self._trackio = trackio
        # Trackio resumes by the name, which shall say more than the random digits.
        folder = re.sub(r"[^-\w]+", "-", run.folder.name, flags=re.ASCII)[:100]
        name = run_id if resumed else f"{folder}-{run_id}"
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=name,
            config=settings_of(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return name

    def log(self, result: Result, scalars: dict[str, float], histograms: Histograms) -> None:
        values = {**scalars, **drawn(result, histograms, self._trackio)}
        self._run.log(values, step=int(result[ENV_STEPS]))

    def end(self) -> None:
        self._run.finish()
