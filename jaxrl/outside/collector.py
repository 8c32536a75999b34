"""Collector: a thread that plays rollouts of environments outside JAX while the learner works."""

import threading
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import RunnerState
from jaxrl.algorithms.on_policy import rollout_keys
from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.outside.host_rollout import HostRollouts, Seconds, Stopped
from jaxrl.outside.ray_rollouts import RayRollouts
from jaxrl.outside.rollout_actor import Start
from jaxrl.outside.workers.env_functions import EnvFunction
from jaxrl.outside.workers.pool import pickled
from jaxrl.outside.workers.vector import FaultCount
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec
from jaxrl.rollout.rollout import Rollout
from jaxrl.run.settings import RunSettings

PATIENCE_S = 10.0  # for a rollout that is given up

_compiled_keys = jax.jit(rollout_keys)


class Rollouts(Protocol):
    """Rollouts of E copies of an environment, one after the other, wherever the copies are.

    Attributes:
        stopping: set: the rollout under way is given up, with `Stopped`.
        num_faults: dropped episodes so far.
        num_restarts: processes or actors that were replaced.
    """

    stopping: threading.Event
    num_faults: int
    num_restarts: int

    def reset(self, weights: tuple[PolicyWeights, ...], seeds: np.ndarray) -> None:
        """Begins new episodes in all copies; `seeds` is u32[E]."""

    def collect(
        self, weights: tuple[PolicyWeights, ...], env_keys: Key, env_steps: float
    ) -> tuple[EnvBatch, Rollout, Seconds]:
        """The copies after a rollout by these weights, the rollout, and where its time went."""

    def foreach_env(self, function: EnvFunction, seeds: np.ndarray | None) -> list[Any]:
        """Calls a function with each environment, as a `VectorEnv` does."""

    def close(self) -> None:
        """Ends what steps the copies."""


@dataclass
class Played:
    """A rollout that is under way or done."""

    weights_seq_no: int  # updates that its weights had learned from
    envs: EnvBatch | None = None
    rollout: Rollout | None = None
    seconds: Seconds | None = None
    error: BaseException | None = None


class Collector:
    """A thread that collects one rollout after another, when asked.

    Args:
        seeds: of the first episodes, u32[E].
        num_env_steps: of an iteration.
    """

    def __init__(self, rollouts: Rollouts, seeds: np.ndarray, num_env_steps: int):
        self.rollouts = rollouts
        self._seeds: np.ndarray | None = seeds  # None: the episodes have begun
        self._index, self._num_env_steps = jnp.arange(len(seeds)), num_env_steps
        self._threads: list[threading.Thread] = []  # the last one that was begun
        self._played: Played | None = None
        # Also at the process's end, where nobody calls `close`.
        self.close = weakref.finalize(self, _end, self._threads, rollouts)

    @property
    def has_begun(self) -> bool:
        return self._played is not None

    def begin(self, runner: RunnerState, update: int) -> None:
        """Begins the rollout that `update`, counted from 1, learns from, with the weights now."""
        self._played = played = Played(int(runner.num_updates))
        weights = tuple(learner.weights for learner in runner.learners)
        env_steps = (update - 1) * self._num_env_steps
        arguments = played, weights, _compiled_keys(runner.key, update, self._index), env_steps
        self._threads[:] = [threading.Thread(target=self._collect, args=arguments, daemon=True)]
        self._threads[0].start()

    def take(self) -> Played:
        """The rollout that was begun, once it is done; raises what it raised."""
        self._threads[0].join()  # after a Ctrl-C here the rollout can still be taken
        played, self._played = self._played, None
        if played.error is not None:
            raise played.error
        return played

    def foreach_env(self, function: EnvFunction) -> list[Any]:
        """Calls a function with each environment, once a rollout under way is done."""
        for thread in self._threads:
            thread.join()
        return self.rollouts.foreach_env(function, self._seeds)

    def _collect(
        self,
        played: Played,
        weights: tuple[PolicyWeights, ...],
        env_keys: Key,
        env_steps: int,
    ) -> None:
        try:
            if self._seeds is not None:
                self.rollouts.reset(weights, self._seeds)
                self._seeds = None
            found = self.rollouts.collect(weights, env_keys, env_steps)
            played.envs, played.rollout, played.seconds = found
        except Stopped:
            pass
        except BaseException as error:
            played.error = error


def _end(threads: list[threading.Thread], rollouts: Rollouts) -> None:
    """Gives up the rollout under way, and ends what steps the copies."""
    rollouts.stopping.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    rollouts.close()


def rollouts_of(
    spec: RolloutSpec,
    sizes: tuple[int, int],
    env_params: PyTree,
    settings: RunSettings,
    created: EnvFunction | None,
) -> Rollouts:
    """Rollouts of a run's copies, here or in Ray actors.

    Args:
        sizes: (copies, steps of each).
        created: is called with each copy's environment and context when it was made.
    """
    (num_envs, num_steps), of_copies = sizes, {**settings.of_copies, "created": created}
    if not settings.num_ray_actors:
        copies = spec.env.vector(num_envs, **of_copies)
        return HostRollouts(spec, copies, num_steps, env_params)
    # Its process steps while the actor chooses actions, and may hang or die.
    in_actor = {**of_copies, "num_workers": 1}
    keeps_programs = bool(jax.config.jax_compilation_cache_dir)
    start = Start(spec, sizes, env_params, in_actor, keeps_programs)
    num_actors = min(settings.num_ray_actors, num_envs)
    most_faults = settings.max_consecutive_faults
    if most_faults:  # a machine may take all its actors with it, each of which is a fault
        most_faults = max(most_faults, num_actors)
    faults = FaultCount(spec.env.name, most_faults)
    pickled_start = pickled(start, spec.env.name, "Ray actors")
    return RayRollouts(spec, pickled_start, (num_envs, num_actors), faults)
