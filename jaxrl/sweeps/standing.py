"""Where one trial of a sweep stands between two turns of training, on the host."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.loop.runner import Algorithm, Metrics
from jaxrl.run.devices import on_host, on_one
from jaxrl.run.recorder import Snapshot
from jaxrl.run.results import Lifetime, Result, iteration_results
from jaxrl.sweeps.members import Numbers, State
from jaxrl.sweeps.outcome import DIVERGED, DROPPED, STOPPED, TERMINATED, Outcome
from jaxrl.sweeps.plan import Trial


@dataclass
class Standing:
    """One trial's."""

    trial: Trial
    algorithm: Algorithm
    last: int  # updates that it has at most
    state: State | None = None  # without the axis of members
    scores: list[float] = field(default_factory=list)  # by update
    seconds: float = 0.0  # of the program that trained it

    @property
    def score(self) -> float | None:
        """The last one that is a number."""
        return next((score for score in reversed(self.scores) if not math.isnan(score)), None)

    @property
    def updates(self) -> int:
        return int(self.state.runner.num_updates)

    @property
    def status(self) -> str:
        """As it would be called if it ended here; "dropped": it could go on."""
        if bool(self.state.diverged):
            return DIVERGED
        return STOPPED if bool(self.state.met) else TERMINATED if self.updates >= self.last else DROPPED

    def conclude(self) -> tuple[Outcome, Snapshot]:
        """What came of it, and all that a checkpoint holds."""
        (hypers, env_params), steps = self.trial.numbers, self.algorithm.num_env_steps
        result, lifetime = None, Lifetime()
        if self.updates:
            lifetime = Lifetime(self.updates, self.updates * steps, int(self.state.num_episodes), self.seconds)
            result = last_result(self.algorithm, self.state.metrics, lifetime, self.seconds / self.updates)
            result["done"] = True
        curve = [steps * (i + 1) for i in range(len(self.scores))], self.scores
        outcome = Outcome(self.trial, self.status, result, self.score, curve)
        return outcome, Snapshot(self.state.runner, hypers, env_params, lifetime, result, [])


def last_result(algorithm: Algorithm, metrics: Metrics, lifetime: Lifetime, seconds: float) -> Result:
    """The result tree of one member's last update.

    Args:
        metrics: of that update.
        lifetime: as that update left it.
        seconds: that the update took.
    """
    before = Lifetime(
        training_iteration=lifetime.training_iteration - 1,
        num_env_steps=lifetime.num_env_steps - algorithm.num_env_steps,
        num_episodes=lifetime.num_episodes - int(metrics.episodes.iteration.count),
        time_total_s=lifetime.time_total_s - seconds,
    )
    last = jax.tree.map(lambda leaf: np.asarray(leaf)[None], metrics)
    return iteration_results(algorithm, last, 1, seconds, before)[0]


def numbers_for(standings: Sequence[Standing], lasts: Sequence[int], goals: Sequence[float]) -> Numbers:
    """Of members [S], each to stop after its own of `lasts`, or at one of the goals."""
    keys = [jax.random.key(own.trial.config.seed, impl="threefry2x32") for own in standings]
    hypers, env_params = stacked([own.trial.numbers for own in standings])
    goals = jnp.broadcast_to(jnp.asarray(goals, jnp.float32), (len(keys), len(goals)))
    return Numbers(jnp.stack(keys), hypers, env_params, jnp.asarray(lasts, jnp.int32), goals)


def stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def hand_back(standings: Sequence[Standing], state: State) -> None:
    """Gives each trial its part of the members' state [S]; what only filled the batch up comes last and goes."""
    held = jax.tree.map(on_host, on_one(state))
    for i, own in enumerate(standings):
        own.state = jax.tree.map(lambda leaf, i=i: leaf[i], held)
