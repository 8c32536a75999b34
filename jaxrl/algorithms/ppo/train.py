"""Whole training as one pure function."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxrl.algorithms.base import Metrics, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.memory_estimate import check_sizes
from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.core.env import strongly_typed
from jaxrl.core.errors import UsageError
from jaxrl.core.types import Key, PyTree


def make_train(
    config: AlgorithmConfig | Mapping[str, Any],
) -> Callable[..., tuple[RunnerState, Metrics]]:
    """`train(key, hypers=None, env_params=None) -> (runner, metrics)` over `config.num_updates` iterations.

    Pure, so jit, vmap over keys and vmap over `config.hypers(...)` apply; the metrics lead with the
    iterations, [U].

    Args:
        config: a configuration such as `PPOConfig`, or a mapping of the names of `PPOConfig`.
    """
    if not isinstance(config, AlgorithmConfig | Mapping):
        raise UsageError(
            "make_train takes a PPOConfig or a mapping of settings such as {'env': 'arena'}, "
            f"not {config!r}"
        )
    config = config if isinstance(config, AlgorithmConfig) else PPOConfig.from_dict(config)
    algorithm = config.build()
    check_sizes(config, algorithm)

    def train(
        key: Key, hypers: PyTree = None, env_params: PyTree = None
    ) -> tuple[RunnerState, Metrics]:
        # Behind the barrier the configuration's own numbers are no constants to fold: given or not,
        # in the Trainer or here, they make the same program, to the bit.
        hypers, env_params = jax.lax.optimization_barrier(
            (
                config.hypers() if hypers is None else hypers,
                strongly_typed(algorithm.env_params if env_params is None else env_params),
            )
        )
        runner = algorithm.init(key, hypers, env_params)
        return jax.lax.scan(
            lambda runner, _: algorithm.update(runner, hypers, env_params),
            runner,
            length=config.num_updates,
        )

    return train
