"""`TracedLogger`: the metrics logger of traced hooks, whose numbers are arrays of a program."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.core.metrics_logger import MetricsLogger
from jaxrl.rollout.hook_contract import HookNumber, scalar

REDUCTIONS = {"mean": jnp.mean, "min": jnp.min, "max": jnp.max, "sum": jnp.sum}


class TracedMetric:
    """The numbers that one call of a hook logs under one name."""

    def __init__(self, reduce: str):
        self.reduce, self.values = reduce, []

    def push(self, value: jax.Array) -> None:
        self.values.append(value)

    def value(self) -> jax.Array:
        """f32[]"""
        if len(self.values) == 1:
            return self.values[0]
        return REDUCTIONS[self.reduce](jnp.stack(self.values))


class TracedLogger(MetricsLogger):
    """The numbers that one call of a traced hook logs; `source` names the hook in errors."""

    def __init__(self, source: str):
        super().__init__()
        self.source = source

    def numbers(self) -> dict[str, HookNumber]:
        """The numbers f32[] by their names."""
        return {
            "/".join(path): HookNumber(metric.value(), metric.reduce, self.source)
            for path, metric in self._metrics.items()
        }

    def _metric(
        self, reduce: Any, window: Any, ema_coeff: Any, clear_on_reduce: bool | None
    ) -> TracedMetric:
        if window is not None or ema_coeff is not None or clear_on_reduce is False:
            raise UsageError(
                f"{self.source} is compiled: log_value there takes reduce alone, no window and no "
                "ema_coeff; metrics_num_episodes_for_smoothing says how many episodes count"
            )
        if reduce is not None and reduce not in REDUCTIONS:
            raise unknown_name("reduction", reduce, REDUCTIONS, f"of {self.source}")
        return TracedMetric(reduce or "mean")

    def _number(self, name: str, value: Any) -> jax.Array:
        return scalar(self.source, name, value)
