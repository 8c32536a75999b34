"""`MetricsLogger`: numbers that hooks log by name, and what they become in results, as in RLlib."""

import math
from collections import deque
from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.fields import as_count, as_number, count, number

REDUCTIONS = ("mean", "ema", "min", "max", "sum", "lifetime_sum", "item")
DEFAULT_EMA_COEFF = 0.01
Path = tuple[str, ...]


class UnknownMetric(UsageError, KeyError):
    """A name under which nothing was logged."""

    __str__ = UsageError.__str__


class Metric:
    """The values that were logged under one name.

    Args:
        reduce: one of REDUCTIONS.
        window: how many of the last values count; None: all.
        stays: whether values count in later iterations too.
    """

    def __init__(self, reduce: str, window: int | None, ema_coeff: float | None, stays: bool):
        self.reduce, self.window, self.ema_coeff, self.stays = reduce, window, ema_coeff, stays
        self.values: deque[float] = deque(maxlen=window)

    def push(self, value: float) -> None:
        """Adds a value; as in RLlib, NaN counts for nothing."""
        if math.isnan(value):
            return
        if self.values and self.reduce == "ema":
            value = (1 - self.ema_coeff) * self.values[0] + self.ema_coeff * value
        if self.reduce in ("ema", "item"):
            self.values.clear()
        self.values.append(value)

    def value(self) -> float | None:
        """The value of all that counts; None without any."""
        if not self.values:
            return None
        if self.reduce in ("ema", "item"):
            return self.values[0]
        functions = {"mean": np.mean, "min": np.min, "max": np.max}
        return float(functions.get(self.reduce, np.sum)(self.values))

    def next_iteration(self) -> None:
        """Forgets what counts in one iteration alone."""
        if not self.stays:
            self.values.clear()
        elif self.window is None and self.values:
            value = self.value()
            self.values.clear()
            self.values.append(value)

    def state(self) -> dict[str, Any]:
        values = list(self.values)
        return {**vars(self), "values": values}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Metric":
        metric = cls(*(state[name] for name in ("reduce", "window", "ema_coeff", "stays")))
        metric.values.extend(state["values"])
        return metric


def metric_of(reduce: Any, window: Any, ema_coeff: Any, clear_on_reduce: bool | None) -> Metric:
    """The metric of RLlib's settings; of those that a later version replaced, too.

    Raises:
        UsageError: there is no such reduction, or settings that exclude each other.
    """
    window, ema_coeff = as_count(window), as_number(ema_coeff)
    if window == math.inf:
        window, clear_on_reduce = None, True
        reduce = reduce or "mean"
    count(optional=True)("window", window)
    number(0, 1, optional=True)("ema_coeff", ema_coeff)
    if reduce is None:
        reduce = "ema" if window is None and not clear_on_reduce else "mean"
    if reduce == "mean" and window is None and (ema_coeff is not None or clear_on_reduce is False):
        reduce = "ema"
    if reduce not in REDUCTIONS:
        raise unknown_name("reduction", reduce, REDUCTIONS)
    if window is not None and (reduce not in ("mean", "min", "max", "sum") or ema_coeff):
        raise UsageError(f"reduce={reduce!r} takes no window")
    if ema_coeff is not None and reduce != "ema":
        raise UsageError(f"reduce={reduce!r} takes no ema_coeff")
    stays = window is not None or reduce in ("ema", "lifetime_sum")
    stays = stays if clear_on_reduce is None else not clear_on_reduce
    coeff = None
    if reduce == "ema":
        coeff = DEFAULT_EMA_COEFF if ema_coeff is None else float(ema_coeff)
    return Metric(reduce, None if window is None else int(window), coeff, stays)


class MetricsLogger:
    """Numbers by name. A name is a text, whose "/" begins a deeper one, or a tuple of texts.

    The settings of a name are those of its first value, as in RLlib.
    """

    def __init__(self):
        self._metrics: dict[Path, Metric] = {}

    def log_value(
        self,
        key: str | Path,
        value: Any,
        *,
        reduce: str | None = None,
        window: int | None = None,
        ema_coeff: float | None = None,
        clear_on_reduce: bool | None = None,
        **more: Any,
    ) -> None:
        """Logs a number under a name.

        Args:
            reduce: what the iteration's values become in its result: "mean", "min", "max", "sum",
                "item" (the last one), "lifetime_sum", or "ema", an average that moves by
                `ema_coeff` with each value. None: "mean" with a window, "ema" without.
            window: the last so many values count, of earlier iterations too.
            ema_coeff: the weight of a new value; None: 0.01.
            clear_on_reduce: whether only the iteration's own values count; None: without a window
                they alone do, but for "ema" and "lifetime_sum".
        """
        if more:
            raise UsageError(f"log_value takes no {next(iter(more))}: it has no counterpart")
        path = path_of(key)
        if not all(path) or not path:
            raise UsageError(f"a metric's name must not be empty: {brief(key)}")
        if path not in self._metrics:
            self._check_is_free(path)
            self._metrics[path] = self._metric(reduce, window, ema_coeff, clear_on_reduce)
        self._metrics[path].push(self._number("/".join(path), value))

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

    def peek(self, key: str | Path = (), default: Any = None) -> Any:
        """The value under a name as it stands, or all values under it as a nested dict.

        Raises:
            UnknownMetric: a KeyError: nothing was logged there, and there is no default.
        """
        path = path_of(key)
        found = {}
        for name, metric in self._metrics.items():
            if name[: len(path)] == path:
                found[name[len(path) :]] = metric
        if () in found:
            value = found[()].value()
            return default if value is None else value
        if not found and default is None and path:
            raise UnknownMetric(str(unknown_name("metric", "/".join(path), self.names())))
        return nested(found) if found else default

    def names(self) -> list[str]:
        """The names under which something was logged."""
        return ["/".join(path) for path in self._metrics]

    def next_result(self) -> dict[str, Any]:
        """The values of an iteration, nested; then those that count for it alone are forgotten."""
        values = nested(self._metrics)
        for metric in self._metrics.values():
            metric.next_iteration()
        return values

    def state(self) -> dict[str, Any]:
        """All that was logged and counts in later iterations, as JSON holds it."""
        return {"/".join(path): metric.state() for path, metric in self._metrics.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave."""
        self._metrics = {
            tuple(name.split("/")): Metric.of_state(metric) for name, metric in state.items()
        }

    def _check_is_free(self, path: Path) -> None:
        """Refuses a name that lies under another one, or above it."""
        for other in self._metrics:
            length = min(len(path), len(other))
            if path[:length] == other[:length]:
                raise UsageError(
                    f"metric {'/'.join(path)!r} cannot be logged beside {'/'.join(other)!r}: "
                    "one of them would be both a number and a group of numbers"
                )

    _metric: Callable[..., Any] = staticmethod(metric_of)

    def _number(self, name: str, value: Any) -> Any:
        try:
            return float(np.asarray(value).reshape(()))
        except (TypeError, ValueError):
            raise UsageError(f"metric {name!r} must be one number, not {brief(value)}") from None


def path_of(key: Any) -> Path:
    """The parts of a name."""
    parts = (key,) if isinstance(key, str) else key
    if not isinstance(parts, tuple | list) or not all(isinstance(part, str) for part in parts):
        raise UsageError(f"a metric's name must be a text or a tuple of texts, not {brief(key)}")
    return tuple(piece for part in parts for piece in part.split("/"))


def nested(metrics: Mapping[Path, Any]) -> dict[str, Any]:
    """The values of metrics as a tree; without those that have none."""
    values = {path: metric.value() for path, metric in metrics.items()}
    return tree_of({path: value for path, value in values.items() if value is not None})


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
        if is_group and isinstance(result.setdefault(name, {}), dict):
            merge(result[name], value, source, replaced, f"{path}/")
        elif not is_group and (name not in result or path in replaced):
            result[name] = value
        else:
            raise UsageError(f"{source} logs {path!r}, which the result has already: rename it")
