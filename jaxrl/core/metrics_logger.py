"""`MetricsLogger`: values that hooks log by name, and what they become in results, as in RLlib."""

import contextlib
import time
from collections.abc import Container, Iterator, Mapping
from typing import Any, Unpack

from jaxrl.core.errors import AnswersOtherWords, UsageError, brief, unknown_name
from jaxrl.core.metric import Metric, MetricSettings, reduction_of

Path = tuple[str, ...]


class UnknownMetric(UsageError, KeyError):
    """A name under which nothing was logged."""

    __str__ = UsageError.__str__


class MetricsLogger(AnswersOtherWords):
    """Values by name. A name is a text, whose "/" begins a deeper one, or a tuple of texts.

    The settings of a name are those of its first value, as in RLlib.
    """

    def __init__(self):
        self._metrics: dict[Path, Any] = {}
        self._began = self._last = self._now = 0.0  # seconds of training

    def log_value(
        self,
        key: str | Path,
        value: Any,
        *,
        reduce: str | None = None,
        **settings: Unpack[MetricSettings],
    ) -> None:
        """Logs a value under a name.

        Args:
            reduce: what the iteration's values become in its result: "mean", "min", "max", "sum",
                "lifetime_sum", "ema", an average that moves by `ema_coeff` with each value,
                "percentiles", "item" (the last one, which may be a picture, or anything that JSON
                holds), or "item_series", the list of them. None: "mean" with a window, "ema"
                without.
            settings: `window`: the last so many values count, of earlier iterations too.
                `ema_coeff`: the weight of a new value; None: 0.01. `clear_on_reduce`: whether only
                the iteration's own values count; None: without a window they alone do, but for
                "ema" and "lifetime_sum". `percentiles`: numbers in [0, 100]. `with_throughput`: the
                result has "<name>_throughput" too, the sum per second of training.
        """
        for setting in settings.keys() - MetricSettings.__annotations__.keys():
            names = ("reduce", *MetricSettings.__annotations__)
            raise unknown_name("argument", setting, names, "of log_value")
        path = path_of(key)
        if not all(path) or not path:
            raise UsageError(f"a metric's name must not be empty: {brief(key)}")
        if path not in self._metrics:
            metric = self._metric(reduce, settings)
            self._check_is_free(path, metric)
            self._metrics[path] = metric
        metric = self._metrics[path]
        metric.push(metric.read("/".join(path), value))

    @contextlib.contextmanager
    def log_time(self, key: str | Path, **settings: Any) -> Iterator[None]:
        """Logs the seconds that a `with` block takes, as `log_value` does with these settings."""
        began = time.perf_counter()
        yield
        self.log_value(key, time.perf_counter() - began, **settings)

    def log_dict(
        self,
        value_dict: Mapping[str, Any],
        *,
        key: str | Path = (),
        reduce: str | None = "mean",
        **settings: Any,
    ) -> None:
        """Logs every number of a mapping, perhaps nested, as `log_value` does."""
        if not isinstance(value_dict, Mapping):
            raise UsageError(f"log_dict takes {{name: number}}, not {brief(value_dict)}")
        if reduce == "mean" and settings.get("window") is None and settings.get("ema_coeff"):
            reduce = "ema"
        for name, value in value_dict.items():
            path = (*path_of(key), *path_of(name))
            if isinstance(value, Mapping):
                self.log_dict(value, key=path, reduce=reduce, **settings)
            else:
                self.log_value(path, value, reduce=reduce, **settings)

    def peek(
        self, key: str | Path | None = None, default: Any = None, *, throughput: bool = False
    ) -> Any:
        """The value under a name as it stands, or all values under it as a nested dict.

        Args:
            throughput: asks for what the result has as "<name>_throughput" instead.

        Raises:
            UnknownMetric: a KeyError: nothing was logged there, and there is no default.
        """
        path = path_of(key or ())
        found = {}
        for name, metric in self._metrics.items():
            if name[: len(path)] == path:
                found[name[len(path) :]] = metric
        if not found and default is None and path:
            raise UnknownMetric(str(unknown_name("metric", "/".join(path), self.names())))
        if () in found:
            value = self._throughput(found[()]) if throughput else found[()].value()
            return default if value is None else value
        values = self._throughputs(found) if throughput else _values(found)
        return tree_of(values) if found else default

    def names(self) -> list[str]:
        """The names under which something was logged."""
        return ["/".join(path) for path in self._metrics]

    def set_time(self, now: float, seconds: float) -> None:
        """Says when the next result is, in seconds of training; throughputs are per second of it.

        Args:
            now: at its end.
            seconds: that its iteration took.
        """
        if self._now == 0.0:  # the first since the run began or was resumed
            self._began = self._last = now - seconds
        self._now = now

    def next_result(self) -> dict[str, Any]:
        """The values of an iteration, nested; then those that count for it alone are forgotten."""
        values = tree_of({**_values(self._metrics), **self._throughputs(self._metrics)})
        for metric in self._metrics.values():
            metric.next_iteration()
        self._last = self._now
        return values

    def state(self) -> dict[str, Any]:
        """All that was logged and counts in later iterations, as JSON holds it."""
        return {"/".join(path): metric.state() for path, metric in self._metrics.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave."""
        self._metrics = {
            tuple(name.split("/")): Metric.of_state(metric) for name, metric in state.items()
        }

    def _throughputs(self, metrics: Mapping[Path, Any]) -> dict[Path, Any]:
        found = {}
        for path, metric in metrics.items():
            rate = self._throughput(metric)
            if path and rate is not None:
                found[_throughput_of(path)] = rate
        return found

    def _throughput(self, metric: Metric) -> Any:
        """None without one, before the first result, and where there is no value."""
        seconds = self._now - self._last
        if not metric.with_throughput or seconds <= 0 or metric.value() is None:
            return None
        return metric.throughput(seconds, self._now - self._began)

    def _check_is_free(self, path: Path, metric: Any) -> None:
        """Refuses a name that lies under another one, or above it; of a throughput too."""
        for other, other_metric in self._metrics.items():
            for place in _places(path, metric):
                for taken in _places(other, other_metric):
                    length = min(len(place), len(taken))
                    if place[:length] == taken[:length]:
                        why = "one of them would be both a number and a group of numbers"
                        if place == taken:
                            why = f"with_throughput=True adds {'/'.join(taken)!r}"
                        names = f"{'/'.join(path)!r} cannot be logged beside {'/'.join(other)!r}"
                        raise UsageError(f"metric {names}: {why}")

    def _metric(self, reduce: str | None, settings: MetricSettings) -> Any:
        return Metric(reduction_of(reduce, settings))


def _throughput_of(path: Path) -> Path:
    return *path[:-1], f"{path[-1]}_throughput"


def _places(path: Path, metric: Any) -> list[Path]:
    """The paths that a metric has in results."""
    return [path, _throughput_of(path)] if metric.with_throughput else [path]


def path_of(key: Any) -> Path:
    """The parts of a name."""
    parts = (key,) if isinstance(key, str) else key
    if not isinstance(parts, tuple | list) or not all(isinstance(part, str) for part in parts):
        raise UsageError(f"a metric's name must be a text or a tuple of texts, not {brief(key)}")
    return tuple(piece for part in parts for piece in part.split("/"))


def _values(metrics: Mapping[Path, Any]) -> dict[Path, Any]:
    """The values of metrics; without those that have none."""
    values = {path: metric.value() for path, metric in metrics.items()}
    return {path: value for path, value in values.items() if value is not None}


def tree_of(values: Mapping[Path, Any]) -> dict[str, Any]:
    """A tree with each value at its path.

    Raises:
        UsageError: a path lies under another one.
    """
    tree: dict[str, Any] = {}
    for path, value in values.items():
        for part in reversed(path):
            value = {part: value}
        merge(tree, value, "a hook")
    return tree


def merge(
    result: dict[str, Any],
    values: Mapping[str, Any],
    source: str,
    replaced: Container[str] = (),
    above: str = "",
) -> None:
    """Adds values to a result tree.

    Args:
        source: the hook that they are of.
        replaced: paths of numbers whose place they may take.
        above: the path of `result` in a larger tree, with "/" at its end.

    Raises:
        UsageError: the result has a number of that name, or a group of numbers in place of one.
    """
    for name, value in values.items():
        path, is_group = f"{above}{name}", isinstance(value, Mapping)
        if is_group and isinstance(result.setdefault(name, type(result)()), dict):
            merge(result[name], value, source, replaced, f"{path}/")
        elif not is_group and (name not in result or path in replaced):
            result[name] = value
        else:
            raise UsageError(f"{source} logs {path!r}, which the result has already: rename it")
