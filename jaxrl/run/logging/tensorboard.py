"""TensorBoard logger: event files in a run's folder."""

import itertools
import time
from pathlib import Path

from jaxrl.core.errors import require
from jaxrl.core.pictures import png
from jaxrl.run.logging.loggers import Logger, RunStart
from jaxrl.run.logging.scalars import Downsampler, charts, pictures, settings_of
from jaxrl.run.logging.text_logs import append
from jaxrl.run.results import ENV_STEPS, RETURN, Result

HYPERPARAMETER_METRICS = (RETURN, f"evaluation/{RETURN}")


SCHEME = "jaxrl-events"  # how tensorboardX knows that `_EventFile` opens a path


class TensorBoard(Logger):
    """Event files in the run's folder: an event for each result, over environment steps.

    A chart's tag is the result's path; histograms are histograms, pictures are images, and the
    settings are shown under HPARAMS beside the run's latest returns. Of iterations that follow each
    other faster than ten times per second of training some are left out, but not the latest before
    a `flush`, nor one with an evaluation. Records are written by tensorboardX's `RecordWriter`,
    without the queue and the thread of its `SummaryWriter`, which would neither report a full disk
    nor end there.
    """

    def open(self, run: RunStart) -> None:
        require("tensorboardX", "it")
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.record_writer import RecordWriter, register_writer_factory
        from tensorboardX.summary import hparams

        self._Event, self._thin = Event, Downsampler()
        earlier = sorted(run.folder.glob("events.out.tfevents.*"))
        stamps = [
            int(path.name.split(".")[3]) for path in earlier if path.name.split(".")[3].isdecimal()
        ]
        # Files are read in the order of their names: this one comes last, even in the same second.
        stamp = max(int(time.time()), *(stamp + 1 for stamp in stamps), 0)
        path = run.folder / f"events.out.tfevents.{stamp:010d}.jaxrl"
        path.touch(exist_ok=False)
        register_writer_factory(SCHEME, _EventFile)
        self._records = RecordWriter(f"{SCHEME}:{path}")
        *opening, self._ending = hparams(
            settings_of(run.config), dict.fromkeys(HYPERPARAMETER_METRICS)
        )
        now = time.time()
        events = [Event(wall_time=now, file_version="brain.Event:2")]
        if earlier:  # readers drop what earlier files hold from this step on
            purge_step = run.env_steps + 1 if run.iteration > 0 else 0
            events.append(
                Event(
                    wall_time=now, step=purge_step, session_log=SessionLog(status=SessionLog.START)
                )
            )
        self._append([*events, *(Event(wall_time=now, summary=summary) for summary in opening)])

    def write(self, results: list[Result]) -> None:
        self._append([self._event(result, results[-1]) for result in self._thin.due(results)])

    def flush(self) -> None:
        self._append([self._event(result, result) for result in self._thin.held()])

    def close(self) -> None:
        self.flush()
        self._append([self._Event(wall_time=time.time(), summary=self._ending)])

    def _event(self, result: Result, latest: Result):
        """The event of a result that came with others, the `latest` of them just now."""
        ago = latest.get("time_total_s", 0.0) - result.get("time_total_s", 0.0)
        event = self._Event(wall_time=time.time() - ago, step=int(result.get(ENV_STEPS, 0)))
        scalars, histograms = charts(result)
        add = event.summary.value.add
        for tag, value in scalars.items():
            add(tag=tag, simple_value=value)
        for tag, (edges, counts) in histograms.items():
            centres = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
            value = add(tag=tag)
            value.histo.min, value.histo.max, value.histo.num = edges[0], edges[-1], sum(counts)
            value.histo.sum = sum(
                count * centre for count, centre in zip(counts, centres, strict=True)
            )
            value.histo.sum_squares = sum(
                count * centre**2 for count, centre in zip(counts, centres, strict=True)
            )
            value.histo.bucket_limit.extend(edges[1:])
            value.histo.bucket.extend(counts)
        for tag, pixels in pictures(result).items():
            image = add(tag=tag).image
            image.height, image.width, image.colorspace = pixels.shape
            image.encoded_image_string = png(pixels)
        return event

    def _append(self, events: list) -> None:
        for event in events:
            self._records.write(event.SerializeToString())
        self._records.flush()


class _EventFile:
    """The file below tensorboardX's record writer: whole events are appended, none is cut off.

    Nothing is open between two writes, so a sweep's trials need no file descriptors.
    """

    def __init__(self, path: Path):
        self._path, self._pieces = path, []

    @classmethod
    def open(cls, path: str) -> "_EventFile":
        return cls(Path(path.removeprefix(f"{SCHEME}:")))

    def write(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        append(self._path, [b"".join(pieces)])
