"""Where results go: several logs side by side, none of which can stop training."""

import importlib.util
import itertools
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.run.logging.records import record
from jaxrl.run.logging.scalars import Downsampler, charts, settings_of, tag_of
from jaxrl.run.logging.text_logs import CsvLines, JsonLines, append
from jaxrl.run.results import ITERATIONS, RETURN, Result
from jaxrl.run.storage.runs import METRICS, PROGRESS

ENV_STEPS = "num_env_steps_sampled_lifetime"
HYPERPARAMETER_METRICS = (RETURN, "evaluation/episode_return_mean")


class Start(NamedTuple):
    """What every log starts from."""

    folder: Path
    config: Mapping[str, Any]  # plain settings by name, as `config.to_dict()`
    iteration: int  # of the checkpoint that the run resumes from, else 0
    env_steps: int


class Logs:
    """Results into several logs; one that fails says so once and is left out from then on, and training continues.

    All methods are for one thread at a time.

    Args:
        names: of `SINKS`.
        folder: the run's folder, which exists.
        config: the settings, shown as hyperparameters.
        warn: is called with one line when a log fails.
        iteration, env_steps: of the checkpoint that a resumed run continues from: what logs hold
            beyond it is cut away, and with 0 whatever an earlier run left there.

    Raises:
        UsageError: a name that no log has, or a log whose package is not installed.
    """

    def __init__(
        self,
        names: Iterable[str],
        folder: Path,
        *,
        config: Mapping[str, Any],
        warn: Callable[[str], None],
        iteration: int = 0,
        env_steps: int = 0,
    ):
        names = tuple(dict.fromkeys(names))
        check_logs(names)
        self._warn = warn
        self._sinks: dict[str, Any] = {}
        start = Start(Path(folder), config, iteration, env_steps)
        for name in names:
            sink = self._attempt(name, SINKS[name], start)
            if sink is not None:
                self._sinks[name] = sink

    def write(self, results: list[Result]) -> None:
        """The results of some iterations, in order."""
        for name, sink in tuple(self._sinks.items()):
            self._attempt(name, sink.write, results)

    def flush(self) -> None:
        """After it everything written so far is with the operating system."""
        for name, sink in tuple(self._sinks.items()):
            self._attempt(name, sink.flush)

    def close(self) -> None:
        for name, sink in tuple(self._sinks.items()):
            self._attempt(name, sink.close)
        self._sinks.clear()

    def _attempt(self, name: str, action: Callable, *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except UsageError:
            raise
        except Exception as error:  # whatever goes wrong in a log is no reason to lose a training
            self._sinks.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            self._warn(f"the {name} log ends here, training continues without it: {reason}")
            return None


def check_logs(names: Iterable[str]) -> None:
    """Raises UsageError for a name that no log has, or a log whose package is not installed."""
    for name in names:
        if name not in SINKS:
            raise unknown_name("log", name, SINKS)
        if (
            name == "wandb"
            and sys.modules.get("wandb") is None
            and importlib.util.find_spec("wandb") is None
        ):
            raise UsageError('the wandb log needs its package: pip install "jaxrl[wandb]"')


class TensorBoard:
    """Event files in the run's folder: an event per result with all its numbers, over environment steps.

    Charts are grouped by `tag_of`; histograms are histograms, and the settings stand under HPARAMS
    beside the run's latest returns. Of iterations that follow each other faster than 20 times per
    second of training some are left out, but not the latest before a `flush`, nor one with an
    evaluation. Records are written here and not by tensorboardX's queue and thread: that one would
    neither tell of a full disk nor end when it met one.
    """

    def __init__(self, start: Start):
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import hparams

        self._Event, self._thin = Event, Downsampler()
        earlier = sorted(start.folder.glob("events.out.tfevents.*"))
        stamps = [
            int(path.name.split(".")[3]) for path in earlier if path.name.split(".")[3].isdecimal()
        ]
        # Files are read in the order of their names: this one's comes last, even within the same
        # second.
        stamp = max(int(time.time()), *(stamp + 1 for stamp in stamps), 0)
        self.path = start.folder / f"events.out.tfevents.{stamp:010d}.jaxrl"
        self.path.touch(exist_ok=False)
        *opening, self._ending = hparams(
            settings_of(start.config), dict.fromkeys(HYPERPARAMETER_METRICS)
        )
        now = time.time()
        events = [Event(wall_time=now, file_version="brain.Event:2")]
        if earlier:  # readers drop what earlier files hold from this step on
            purge_step = start.env_steps + 1 if start.iteration > 0 else 0
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
        return event

    def _append(self, events: list) -> None:
        append(self.path, (record(event.SerializeToString()) for event in events))


class Wandb:
    """A run at Weights & Biases, or what `WANDB_MODE=offline` leaves in the run's folder; thinned as TensorBoard is.

    The project is "jaxrl", or `WANDB_PROJECT`. A resumed run continues under its id, kept in
    `wandb_run_id`; W&B itself passes over the steps that it has already.
    """

    def __init__(self, start: Start):
        import wandb

        self._wandb, self._thin = wandb, Downsampler()
        kept = start.folder / "wandb_run_id"
        if start.iteration == 0 or not kept.exists():
            kept.write_text(secrets.token_hex(4))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "jaxrl"),
            dir=str(start.folder),
            name=start.folder.name,
            id=kept.read_text().strip(),
            resume="allow",
            config=settings_of(start.config),
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


SINKS: dict[str, Callable[[Start], Any]] = {
    "jsonl": lambda start: JsonLines(start.folder / METRICS, start.iteration),
    "csv": lambda start: CsvLines(start.folder / PROGRESS, start.iteration),
    "tensorboard": TensorBoard,
    "wandb": Wandb,
}
