"""`TracedLogger`: the metrics logger of traced hooks, whose numbers are arrays of a program."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import metric
from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.core.metric import MetricSettings
from jaxrl.core.metrics_logger import MetricsLogger
from jaxrl.rollout.hook_contract import HookNumber, scalar

REDUCTIONS = {"mean": jnp.mean, "min": jnp.min, "max": jnp.max, "sum": jnp.sum}


class TracedMetric:
    """The numbers that one call of a hook logs under one name."""

    with_throughput = False  # which is for hooks of the host

    def __init__(self, reduce: str, source: str):
        self.reduce, self.source, self.values = reduce, source, []

    def read(self, name: str, value: Any) -> jax.Array:
        return scalar(self.source, name, value)

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

    def log_time(self, key: Any, **settings: Any) -> Any:
        """Refused: a hook runs in Python once, as it is traced."""
        raise UsageError(
            f"{self.source} is compiled: log_time measures in hooks of the host, such as "
            "on_train_result; trainer.profile() times sampling and learning"
        )

    def numbers(self) -> dict[str, HookNumber]:
        """The numbers f32[] by their names."""
        return {
            "/".join(path): HookNumber(found.value(), found.reduce, self.source)
            for path, found in self._metrics.items()
        }

    def _metric(self, reduce: Any, settings: MetricSettings) -> TracedMetric:
        for_host = {name: settings.get(name) for name in ("percentiles", "with_throughput")}
        if reduce in metric.REDUCTIONS and reduce not in REDUCTIONS:
            for_host["reduce"] = reduce
        for name, value in for_host.items():
            if value is not None and value is not False:
                raise UsageError(
                    f"{self.source} is compiled: {name}={value!r} is for hooks of the host, "
                    "on_train_result and on_episode_end(self, *, episode, metrics_logger)"
                )
        of_mean = (settings.get("window"), settings.get("ema_coeff"))
        if of_mean != (None, None) or settings.get("clear_on_reduce") is False:
            raise UsageError(
                f"{self.source} is compiled: log_value there takes reduce alone, no window and no "
                "ema_coeff; metrics_num_episodes_for_smoothing says how many episodes count"
            )
        if reduce is not None and reduce not in REDUCTIONS:
            raise unknown_name("reduction", reduce, REDUCTIONS, f"of {self.source}")
        return TracedMetric(reduce or "mean", self.source)
