"""Rollout fragments: what parts of the copies played apart, joined on the host into one rollout."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.fast_prng import is_key
from jaxrl.core.types import PyTree
from jaxrl.outside.host_rollout import Seconds, joined_envs
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec
from jaxrl.rollout.rollout import Rollout
from jaxrl.rollout.steps import Trajectory

# The axis of the copies in each field of a `Rollout` that has one.
ROLLOUT_AXES = {"trajectories": 2, "reached": 1, "episode_done": 1, "hist_data": 1, "shown": 1}


class Fragment(NamedTuple):
    """A rollout of e of the copies."""

    envs: EnvBatch  # [e]  after it
    rollout: Rollout  # [T, e]
    seconds: Seconds


def unplayed(like: Fragment) -> Fragment:
    """A fragment of as many copies in which nobody acted, and from which nothing is learned.

    What nobody reads where nobody acted is as in `like`, and so are `hist_data` and `shown`.
    """

    def without_rows(steps: Trajectory) -> Trajectory:
        return steps.replace(
            reward=np.zeros_like(steps.reward),
            active=np.zeros_like(steps.active),
            done=np.ones_like(steps.done),
            waited=None if steps.waited is None else np.zeros_like(steps.waited),
        )

    rollout = like.rollout
    return like._replace(
        seconds=Seconds(),
        rollout=rollout.replace(
            trajectories=tuple(map(without_rows, rollout.trajectories)),
            episode_done=np.zeros_like(rollout.episode_done),
            agent_steps=np.zeros_like(rollout.agent_steps),
            num_env_steps=np.zeros_like(rollout.num_env_steps),
        ),
    )


def joined(spec: RolloutSpec, fragments: list[Fragment]) -> Fragment:
    """The rollout of all copies, in the order of the fragments.

    The seconds are those of the fragment that took longest: the others were played meanwhile.
    """
    envs, rollouts, seconds = zip(*fragments, strict=True)
    batch = joined_envs(spec, envs, _joined)
    numbers = np.arange(len(batch.state.copy), dtype=np.int32)  # each fragment counts from 0
    batch = batch.replace(state=batch.state.replace(copy=numbers))
    fields = {}
    for name, axis in ROLLOUT_AXES.items():
        fields[name] = _joined([getattr(rollout, name) for rollout in rollouts], axis)
    rollout = Rollout(
        **fields,
        agent_steps=sum(rollout.agent_steps for rollout in rollouts),
        num_env_steps=sum(rollout.num_env_steps for rollout in rollouts),
    )
    return Fragment(batch, rollout, max(seconds, key=sum))


def _joined(parts: list[PyTree], axis: int) -> PyTree:
    """The arrays of all parts as one along an axis."""
    return jax.tree.map(lambda *leaves: _concatenated(leaves, axis), *parts)


def _concatenated(leaves: tuple[Any, ...], axis: int) -> Any:
    """Arrays of the host stay there."""
    if len(leaves) == 1:
        return leaves[0]
    return (jnp if is_key(leaves[0]) else np).concatenate(leaves, axis)
