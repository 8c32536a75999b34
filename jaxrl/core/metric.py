"""`Metric`: the values that were logged under one name, and what a result has of them."""

import dataclasses
import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypedDict

import numpy as np

from jaxrl.core.errors import UsageError, brief, reason_of, unknown_name
from jaxrl.core.fields import as_count, as_number, count, number
from jaxrl.core.frozen import is_array
from jaxrl.core.json_text import why_unreadable
from jaxrl.core.pictures import is_picture, picture

SINGLE = ("mean", "ema", "min", "max", "sum", "lifetime_sum")  # of numbers, to one number
ITEMS = ("item", "item_series")  # of anything, the last or all
REDUCTIONS = (*SINGLE, "percentiles", *ITEMS)
DEFAULT_EMA_COEFF = 0.01
DEFAULT_PERCENTILES = (0, 50, 75, 90, 95, 99, 100)  # RLlib's
PICTURES = "reduce='item' logs the last picture, 'item_series' all"
WITH_WINDOW = ("mean", "min", "max", "sum", "percentiles", "item_series")


class MetricSettings(TypedDict, total=False):
    """The settings of a name beside `reduce`, as RLlib calls them."""

    window: int | None
    ema_coeff: float | None
    clear_on_reduce: bool | None
    percentiles: Sequence[float] | bool | None
    with_throughput: bool | None


@dataclasses.dataclass(frozen=True)
class Reduction:
    """The way from the values of a name to what a result has of them."""

    reduce: str  # one of REDUCTIONS
    window: int | None = None  # how many of the last values count; None: all
    ema_coeff: float | None = None
    stays: bool = False  # whether values count in later iterations too
    percentiles: tuple[float, ...] | None = None  # 0 to 100
    with_throughput: bool = False


class Percentiles(dict):
    """Values by percentiles, whose names are texts in results; the number finds its value too."""

    def __missing__(self, percentile: Any) -> float:
        if (name := percentile_name(percentile)) not in self:
            raise KeyError(percentile)
        return self[name]


class Metric:
    """The values that were logged under one name."""

    def __init__(self, reduction: Reduction):
        self.reduction = reduction
        self.values: deque[Any] = deque(maxlen=reduction.window)
        self.added = self.added_in_session = 0.0  # since the last result, since a start or resume

    @property
    def with_throughput(self) -> bool:
        return self.reduction.with_throughput

    def read(self, name: str, value: Any) -> Any:
        """A value as it is pushed: a number, or as an item what JSON holds, or a picture.

        Raises:
            UsageError: it is none.
        """
        if self.reduction.reduce in ITEMS:
            return _item(name, value)
        try:
            return float(np.asarray(value).reshape(()))
        except (TypeError, ValueError):
            way = f": {PICTURES}" if is_picture(value) else ""
            line = f"metric {name!r} must be one number, not {brief(value)}{way}"
            raise UsageError(line) from None

    def push(self, value: Any) -> None:
        """Adds a value; as in RLlib, NaN counts for nothing, except in a series."""
        reduce = self.reduction.reduce
        if reduce != "item_series" and isinstance(value, float) and math.isnan(value):
            return
        if self.with_throughput:
            self.added, self.added_in_session = self.added + value, self.added_in_session + value
        if self.values and reduce == "ema":
            weight = self.reduction.ema_coeff
            value = (1 - weight) * self.values[0] + weight * value
        if reduce in ("ema", "item"):
            self.values.clear()
        self.values.append(value)

    def value(self) -> Any:
        """The value of all that counts; None without any."""
        reduction = self.reduction
        if not self.values:
            return None
        if reduction.reduce in ("ema", "item"):
            return self.values[0]
        if reduction.reduce == "item_series":
            return list(self.values)
        if reduction.percentiles is not None:
            found = np.percentile(self.values, reduction.percentiles).tolist()
            return Percentiles(zip(map(percentile_name, reduction.percentiles), found, strict=True))
        functions = {"mean": np.mean, "min": np.min, "max": np.max}
        return float(functions.get(reduction.reduce, np.sum)(self.values))

    def throughput(self, seconds: float, session_seconds: float) -> Any:
        """The sum of the values per second, since the last result.

        Of lifetime sums {"throughput_since_last_reduce", "throughput_since_last_restore"}.

        Args:
            seconds: of training since the last result.
            session_seconds: of training since the run began or was resumed.
        """
        rate = self.added / seconds
        if self.reduction.reduce == "sum":
            return rate
        return {
            "throughput_since_last_reduce": rate,
            "throughput_since_last_restore": self.added_in_session / session_seconds,
        }

    def next_iteration(self) -> None:
        """Forgets what counts in one iteration alone."""
        self.added = 0.0
        if not self.reduction.stays:
            self.values.clear()
        elif self.reduction.window is None and self.values:
            value = self.value()
            self.values.clear()
            self.values.append(value)

    def state(self) -> dict[str, Any]:
        """All that a checkpoint holds, as JSON: no pictures, and no time."""
        values = [value for value in self.values if not is_picture(value)]
        return {**dataclasses.asdict(self.reduction), "values": values}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Metric":
        settings = {name: state[name] for name in state if name != "values"}
        if settings.get("percentiles") is not None:
            settings["percentiles"] = tuple(settings["percentiles"])
        metric = cls(Reduction(**settings))
        metric.values.extend(state["values"])
        return metric


def percentile_name(percentile: Any) -> str:
    """The name of a percentile in results: "50", "99.9"; another name is as it was."""
    return str(percentile).removesuffix(".0") if isinstance(percentile, Real) else percentile


def reduction_of(reduce: Any, settings: MetricSettings) -> Reduction:
    """The reduction of RLlib's settings; of those that a later version replaced, too.

    Raises:
        UsageError: there is no such reduction, or settings exclude each other.
    """
    window, ema_coeff = as_count(settings.get("window")), as_number(settings.get("ema_coeff"))
    clear_on_reduce = settings.get("clear_on_reduce")
    if window == math.inf:
        window, clear_on_reduce = None, True
        reduce = reduce or "mean"
    count(optional=True)("window", window)
    number(0, 1, optional=True)("ema_coeff", ema_coeff)
    percentiles = _percentiles(reduce, settings.get("percentiles"))
    if percentiles:
        reduce = "percentiles"
    if reduce is None:
        reduce = "ema" if window is None and not clear_on_reduce else "mean"
    if reduce == "mean" and window is None and (ema_coeff is not None or clear_on_reduce is False):
        reduce = "ema"
    stays = window is not None or reduce in ("ema", "lifetime_sum")
    stays = stays if clear_on_reduce is None else not clear_on_reduce
    has_throughput = bool(settings.get("with_throughput"))
    reduction = Reduction(reduce, window, ema_coeff, stays, percentiles, has_throughput)
    _check(reduction)
    if reduce == "ema" and ema_coeff is None:
        return dataclasses.replace(reduction, ema_coeff=DEFAULT_EMA_COEFF)
    return reduction


def _check(reduction: Reduction) -> None:
    """Raises UsageError for an unknown reduction, and settings that it does not take."""
    reduce = reduction.reduce
    if reduce not in REDUCTIONS:
        raise unknown_name("reduction", reduce, REDUCTIONS)
    if reduction.window is not None and (reduce not in WITH_WINDOW or reduction.ema_coeff):
        raise UsageError(f"reduce={reduce!r} takes no window")
    if reduction.ema_coeff is not None and reduce != "ema":
        raise UsageError(f"reduce={reduce!r} takes no ema_coeff")
    if reduction.stays and reduction.window is None and reduce in ("percentiles", "item_series"):
        raise UsageError(f"reduce={reduce!r} needs a window to keep values of earlier iterations")
    if reduction.with_throughput and reduce not in ("sum", "lifetime_sum"):
        raise UsageError(f"with_throughput is for reduce='sum' and 'lifetime_sum', not {reduce!r}")


def _percentiles(reduce: Any, percentiles: Any) -> tuple[float, ...] | None:
    """The percentiles that are asked for; None of another reduction."""
    if is_array(percentiles):
        percentiles = np.asarray(percentiles).tolist()
    if not percentiles and reduce != "percentiles":
        return None
    if reduce not in (None, "percentiles"):
        raise UsageError(f"reduce={reduce!r} takes no percentiles: reduce='percentiles' does")
    if percentiles in (None, True):
        return DEFAULT_PERCENTILES
    if not isinstance(percentiles, list | tuple) or not percentiles:
        raise UsageError(f"percentiles={brief(percentiles)} must be a list of numbers in [0, 100]")
    for percentile in percentiles:
        number(0, 100)("percentiles", percentile)
    return tuple(map(as_number, percentiles))


def _item(name: str, value: Any) -> Any:
    """A value of any kind that results can hold."""
    if is_array(value):
        value = np.asarray(value)
        if value.ndim > 2:
            return picture(f"metric {name!r}", value)
        value = value.tolist()
    try:
        value = json.loads(json.dumps(value, default=_plain))
        why = why_unreadable(value)
    except Exception as error:
        why = reason_of(error)
    if why:
        raise UsageError(f"metric {name!r} must be what JSON holds, and {brief(value)} is not")
    return value


def _plain(value: Any) -> Any:
    """An array or a number of NumPy or JAX within an item, as JSON holds it."""
    if is_array(value) and np.ndim(value) < 3:
        return np.asarray(value).tolist()
    raise UsageError(f"{brief(value)} is none of JSON's values")
