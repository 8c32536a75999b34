"""Stale rollouts: the distributions and values of the weights that learn from them.

What weights before the last update played is a behaviour that is not the policy, as an exploration
is (`jaxrl.algorithms.ppo.behaviour`).
"""

import jax
import jax.numpy as jnp

from jaxrl.algorithms.ppo.batch import Batch, Minibatches, batch_layout, make_batch
from jaxrl.algorithms.ppo.behaviour import behaviour_log_prob
from jaxrl.algorithms.ppo.hypers import PPOSpec
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.ops.distributions import Distribution
from jaxrl.ops.exploration import Explored
from jaxrl.ops.packing import pack
from jaxrl.rollout.rollout import Trajectory

ROWS_AT_ONCE = 512  # that are evaluated, at least: every round of a compiled loop has its cost


def as_if_played_now(spec: PPOSpec, weights: PolicyWeights, trajectory: Trajectory) -> Trajectory:
    """The trajectory [T, E, M, ...] with the distributions and values of `weights`.

    `log_prob` remains that of the behaviour. A `next_value` that repeats the next row's value
    changes with it. Where agents wait, values stay as they were played.
    """
    nothing = jnp.zeros_like(trajectory.value)
    batch = make_batch(spec, weights.filter, trajectory, (nothing, nothing))
    distribution, value = _evaluated(spec, weights, batch, trajectory.value.shape)
    next_value = trajectory.next_value
    if trajectory.waited is None:
        moved = value - trajectory.value
        following = jnp.concatenate([moved[1:], jnp.zeros_like(moved[:1])])
        next_value = next_value + jnp.where(trajectory.done, 0.0, following)
    else:
        value = trajectory.value
    if isinstance(trajectory.distribution, Explored):
        distribution = trajectory.distribution.replace(policy=distribution)
    return trajectory.replace(
        distribution=distribution,
        value=value,
        next_value=next_value,
        log_prob=behaviour_log_prob(trajectory),
    )


def _evaluated(
    spec: PPOSpec, weights: PolicyWeights, batch: Batch, shape: tuple[int, ...]
) -> tuple[Distribution, jax.Array]:
    """(distributions, values) of a batch's rows by `weights`, [T, E, M, ...].

    Args:
        shape: (T, E, M).
    """
    layout = batch_layout(spec.policy_spec, shape)
    size = layout.pieces_per_block(max(spec.minibatch_size, ROWS_AT_ONCE), 1, 1)
    count = -(-layout.num_pieces // size)
    pieces = (jnp.arange(count * size) % layout.num_pieces).reshape(count, size)
    rows = Minibatches(pack(batch.replace(carry=None), 1), batch.carry, layout, pieces, None)

    def evaluate(pieces):
        minibatch = rows.gather(pieces)
        return spec.policy_spec.evaluate_actions(
            weights.params,
            minibatch.obs,
            minibatch.action_mask,
            minibatch.carry,
            minibatch.is_first,
            minibatch.waited,
        )

    def by_step(leaf):
        """[count, size, ...] or of sequences [count, L, size, ...], as [T, E, M, ...]."""
        rest = leaf.shape[3 if layout.in_sequences else 2 :]
        leaf = leaf.reshape(count, -1, size, *rest).swapaxes(1, 2)
        leaf = leaf.reshape(count * size, -1, *rest)[: layout.num_pieces]
        leaf = leaf.reshape(layout.number, layout.width, -1, *rest).swapaxes(1, 2)
        return leaf.reshape(-1, *shape[1:], *rest)[: shape[0]]

    return jax.tree.map(by_step, jax.lax.map(evaluate, pieces))
