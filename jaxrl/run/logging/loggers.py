"""Loggers: where the results of a run go, by name, by "module:Class" or as objects of a user's."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.core import words
from jaxrl.core.errors import UsageError, brief, is_installed, one_line, unknown_name
from jaxrl.core.trust import Kind, maker, name_of
from jaxrl.run.results import Result

LOGGERS = {
    "jsonl": "jaxrl.run.logging.text_logs:JsonLines",
    "csv": "jaxrl.run.logging.text_logs:CsvLines",
    "tensorboard": "jaxrl.run.logging.tensorboard:TensorBoard",
    "wandb": "jaxrl.run.logging.wandb:Wandb",
    "trackio": "jaxrl.run.logging.trackio:Trackio",
    "mlflow": "jaxrl.run.logging.mlflow:MLflow",
}


class RunStart(NamedTuple):
    """A run as its loggers meet it: new, or resumed."""

    folder: Path  # the run's own, which exists
    config: Mapping[str, Any]  # plain settings by name, as `config.to_dict()`
    iteration: int = 0  # of the checkpoint that the run resumes from, else 0
    env_steps: int = 0  # sampled up to that checkpoint
    result_names: tuple[str, ...] = ()  # paths at which its results may have numbers
    say: Callable[[str], None] = print  # shows one line to the user


class Logger:
    """Base class of loggers, which the setting `loggers` takes.

    A class, or "module:Class", is instantiated for each run; an object is used as it is. The
    methods are called on a background thread, never two at a time. An exception in one of them
    ends this log only: the user sees one line, and training continues.
    """

    def open(self, run: RunStart) -> None:
        """Called before the first result; drops what was logged after `run.iteration`.

        Called again if the run's folder was removed and had to be created again.
        """

    def write(self, results: list[Result]) -> None:
        """Writes the results of some iterations in order: nested dicts, as in `metrics.jsonl`."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define write(results)")

    def flush(self) -> None:
        """Called before a checkpoint: what is written must survive the end of this process."""

    def close(self) -> None:
        """Called after the last result."""


def _is_logger(found: Any) -> bool:
    return isinstance(found, Logger) or (isinstance(found, type) and issubclass(found, Logger))


LOGGER = Kind("logger", "jaxrl.loggers", "a class derived from jaxrl.Logger", _is_logger)


class Logs:
    """Results into several loggers; one that fails says so once and is left out from then on.

    All methods are for one thread at a time.

    Args:
        entries: the setting `loggers`.
        run: what they start from: what they hold beyond its iteration is cut away, and with 0
            whatever an earlier run left there. `run.say` tells of one that fails.
    Raises:
        UsageError: an entry that is no logger, or one whose package is not installed.
    """

    def __init__(self, entries: Iterable[Any], run: RunStart):
        self._say = run.say
        self.lost: dict[str, str] = {}  # {log: why it could not be written to the end}
        self._loggers: dict[Logger, str] = {}  # with the name that errors call each by
        makers = [(maker_of(entry), _shown(entry)) for entry in dict.fromkeys(entries)]
        for make, name in makers:
            try:
                logger = make()
            except Exception as error:
                self._end(name, error)
            else:
                self._loggers[logger] = name
                self._attempt(logger, "open", run)

    def write(self, results: list[Result]) -> None:
        """The results of some iterations, in order."""
        for logger in tuple(self._loggers):
            self._attempt(logger, "write", results)

    def flush(self) -> None:
        """Hands everything written so far to the operating system."""
        for logger in tuple(self._loggers):
            self._attempt(logger, "flush")

    def close(self) -> None:
        for logger in tuple(self._loggers):
            self._attempt(logger, "close")
        self._loggers.clear()

    def _attempt(self, logger: Logger, method: str, *arguments: Any) -> None:
        try:
            getattr(logger, method)(*arguments)
        except Exception as error:  # whatever goes wrong in a log is no reason to lose a training
            self._end(self._loggers.pop(logger), error)

    def _end(self, name: str, error: Exception) -> None:
        if isinstance(error, OSError):  # any other is a fault of the logger's own
            self.lost[f"the end of the {name} log"] = one_line(error)
        self._say(f"the {name} log ends here, training continues without it: {one_line(error)}")


def maker_of(entry: Any) -> Callable[[], Logger]:
    """A function that returns the logger which an entry of the setting `loggers` means.

    Raises:
        UsageError: an unknown name, no logger, arguments missing, or a package not installed.
    """
    if not isinstance(entry, str) and not _is_logger(entry):
        names = ", ".join(LOGGERS)
        raise UsageError(
            f"loggers={brief(entry)} must be a list of names ({names}), of module:Class, or of "
            "classes or objects derived from jaxrl.Logger"
        )
    if isinstance(entry, str) and ":" not in entry:
        if entry not in LOGGERS:
            raise unknown_name("log", entry, LOGGERS)
        if entry in ("wandb", "trackio", "mlflow") and not is_installed(entry):
            raise UsageError(f'the {entry} log needs its package: pip install "jaxrl[{entry}]"')
        entry = LOGGERS[entry]
    return maker(LOGGER, entry)


@words.written(words.or_none(words.several, tuple), "LOG|MODULE:CLASS")
def check_loggers(name: str, entries: Iterable[Any]) -> None:
    """Raises UsageError for an entry of the setting `loggers` that `maker_of` refuses."""
    for entry in entries:
        maker_of(entry)


def saved_form(entries: Iterable[Any]) -> list[Any]:
    """The setting `loggers` or `hooks` for a file: names, and {"object": name} without one."""
    return [
        entry if isinstance(entry, str) else name_of(entry) or {"object": _path_of(entry)}
        for entry in entries
    ]


def _shown(entry: Any) -> str:
    return entry if isinstance(entry, str) else _path_of(entry).rpartition(":")[2]


def _path_of(entry: Any) -> str:
    """ "module:Class" of a class or an object, whether or not it can be imported by that."""
    cls = entry if isinstance(entry, type) else type(entry)
    return f"{cls.__module__}:{cls.__qualname__}"
