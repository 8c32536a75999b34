"""The body of a Ray actor that holds copies of an environment, and acts in them with the policies.

It collects `HostRollouts` on its machine's CPU, whatever else that machine has. Ray itself is not
imported here.
"""

import logging
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.core.fast_prng import to_fast_key
from jaxrl.core.types import PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.outside.fragments import Fragment
from jaxrl.outside.host_rollout import HostRollouts
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.run.devices import compile_cache


class Start(NamedTuple):
    """The arguments from which every actor of a training is made."""

    spec: RolloutSpec
    sizes: tuple[int, int]  # copies of all actors, and steps of each in a rollout
    env_params: PyTree
    settings: dict[str, Any]  # of the environment's `vector`
    keeps_programs: bool  # whether it uses its machine's compile cache


class Collected(NamedTuple):
    """The result of an actor's rollout."""

    fragment: Fragment  # NumPy
    num_faults: int  # episodes that were dropped since it returned the last one
    num_restarts: int  # worker processes that were started again
    said: list[tuple[str, int, str]]  # (logger, level, message)


class RolloutActor:
    """Copies of an environment outside JAX, with what acts in them."""

    def __init__(self, start: Start, num_envs: int):
        if start.keeps_programs:
            compile_cache.use("auto", say=lambda line: None)
        self._said = _Messages()
        vector = start.spec.env.vector(num_envs, **start.settings)
        self._rollouts = HostRollouts(start.spec, vector, start.sizes[1], start.env_params)
        self._rollouts.num_envs = start.sizes[0]
        self._counted = 0, 0

    def collect(
        self,
        weights: tuple[PolicyWeights, ...],
        randomness: tuple[np.ndarray, str, float],
        seeds: np.ndarray | None,
    ) -> Collected:
        """Plays a rollout with these weights; with `seeds` new episodes begin before.

        Args:
            randomness: (the numbers and the implementation of env_keys, env_steps), as of
                `HostRollouts.collect`.
        """
        numbers, key_impl, env_steps = randomness
        weights, rollouts = jax.device_put(weights), self._rollouts
        if seeds is not None:
            rollouts.reset(weights, seeds)
        env_keys = to_fast_key(jax.random.wrap_key_data(numbers, impl=key_impl))
        played = jax.device_get(rollouts.collect(weights, env_keys, env_steps))
        (faults, restarts), fragment = self._counted, Fragment(*played)
        self._counted = rollouts.num_faults, rollouts.num_restarts
        new = rollouts.num_faults - faults, rollouts.num_restarts - restarts
        return Collected(fragment, *new, self._said.taken())

    def close(self) -> None:
        self._rollouts.close()


class _Messages(logging.Handler):
    """Keeps what this process logs of jaxrl, for the process that trains."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self._entries: list[tuple[str, int, str]] = []
        logger = logging.getLogger(__name__.partition(".")[0])
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._entries.append((record.name, record.levelno, record.getMessage()))

    def taken(self) -> list[tuple[str, int, str]]:
        entries, self._entries = self._entries, []
        return entries
