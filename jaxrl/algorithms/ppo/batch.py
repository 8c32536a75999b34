"""A policy's batch: its trajectory with advantages as rows, and which of them each minibatch holds."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.algorithms.ppo.hypers import Hypers
from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.ops.advantages import gae, standardise
from jaxrl.ops.distributions import Distribution
from jaxrl.ops.minibatch import minibatch_rows
from jaxrl.rollout.rollout import Trajectory


class Batch(struct.PyTreeNode):
    """A batch of one policy's rows, [B, ...], or a minibatch: [B, ...], with memory sequences [L, B, ...]."""

    obs: PyTree  # as the model reads them
    action: PyTree
    distribution: Distribution  # the acting one
    log_prob: jax.Array  # f32
    value: jax.Array  # f32
    advantage: jax.Array  # f32
    target: jax.Array  # f32
    weight: jax.Array  # f32  1 where the agent acted, else 0
    action_mask: PyTree = ()  # bool[..., A]; () where every action is possible
    begins: PyTree = ()  # bool  with memory: an episode begins with this row
    waited: PyTree = ()  # bool  with memory, where agents may wait: the carry stays as it is


class BatchLayout(NamedTuple):
    """How a batch of T x E x M steps is cut into what minibatches are made of: rows, or sequences of L rows."""

    number: int  # of parts that the T steps are cut into
    length: int  # L
    width: int  # E x M
    in_sequences: bool

    @property
    def num_pieces(self) -> int:
        return self.number * self.width

    def make_batch(self, piece: jax.Array) -> jax.Array:
        """The rows of pieces i32[B]: [B], or of sequences [L, B]. A piece counts as the rows of one step do."""
        if not self.in_sequences:
            return piece
        step = jnp.arange(self.length)[:, None] * self.width
        return (piece // self.width * (self.length * self.width) + piece % self.width)[None] + step

    def share(self, rows: int, blocks: int, blocks_here: int) -> int:
        """The pieces that each block of environments gives to a minibatch of about `rows` rows."""
        return min(max(1, round(rows / (blocks * self.length))), self.num_pieces // blocks_here)


def batch_layout(policy_spec: PolicySpec, shape: tuple[int, int, int]) -> BatchLayout:
    """Of a trajectory [T, E, M]."""
    num_steps, num_envs, num_agents = shape
    return BatchLayout(
        *policy_spec.sequences(num_steps), num_envs * num_agents, policy_spec.has_memory
    )


def make_batch(
    policy_spec: PolicySpec,
    moments: PyTree,
    trajectory: Trajectory,
    hypers: Hypers,
    *,
    standardised: bool,
    axis_name: str | None,
) -> Batch:
    """The trajectory with advantages and targets, flattened to rows [B, ...]; observations as the model reads them.

    Of a model with memory the rows are filled up with some of weight 0, so that all its sequences
    are of one length.

    Args:
        moments: of the observations' filter, as they were acted on.
        standardised: whether advantages are, over the whole batch.
    """
    advantages, targets = gae(
        trajectory.reward,
        trajectory.value,
        trajectory.next_value,
        trajectory.terminated,
        trajectory.ended,
        gamma=hypers.gamma,
        lambda_=hypers.lambda_,
        waited=None if isinstance(trajectory.waited, tuple) else trajectory.waited,
    )
    advantages = jnp.where(trajectory.active, advantages, 0.0)
    weights = trajectory.active.astype(jnp.float32)
    if standardised:
        advantages = standardise(advantages, weights, axis_name=axis_name)
    by_step = Batch(
        obs=policy_spec.read(moments, trajectory.obs, trajectory.inputs),
        action=trajectory.action,
        distribution=trajectory.distribution,
        log_prob=trajectory.distribution.log_prob(trajectory.action),
        value=trajectory.value,
        advantage=advantages,
        target=targets,
        weight=weights,
        action_mask=policy_spec.action_mask(trajectory.obs, trajectory.inputs),
        begins=_begins(trajectory.ended) if policy_spec.has_memory else (),
    )
    cut = batch_layout(policy_spec, trajectory.value.shape)
    num_rows = cut.num_pieces * cut.length

    def rows(tree, filler=0):
        return jax.tree.map(
            lambda leaf: _filled_up(active_rows(leaf, trajectory.active, filler), num_rows, filler),
            tree,
        )

    # All zeros are no distribution of every kind; all ones are.
    batch = rows(by_step).replace(distribution=rows(by_step.distribution, filler=1))
    if not policy_spec.has_memory or isinstance(trajectory.waited, tuple):
        return batch
    # Where an agent waits, its episode may begin all the same.
    begins, waited = (
        _filled_up(flag.reshape(-1), num_rows, 0) for flag in (by_step.begins, trajectory.waited)
    )
    return batch.replace(begins=begins, waited=waited)


def active_rows(leaf: jax.Array, active: jax.Array, filler: int = 0) -> jax.Array:
    """[T, E, M, ...] as rows [B, ...], `filler` where the agent was inactive: weight 0 times NaN would still be NaN."""
    rows = leaf.reshape(-1, *leaf.shape[3:])
    return jnp.where(active.reshape(-1, *[1] * (rows.ndim - 1)), rows, jnp.full_like(rows, filler))


def minibatch_indices(
    cut: BatchLayout,
    *,
    blocks: int,
    num_envs: int,
    rows: int,
    num_epochs: int,
    key: Key,
    axis_name: str | None,
) -> jax.Array:
    """The pieces of each minibatch, i32[num_minibatches, pieces of a minibatch held here].

    Every block of environments is shuffled by itself and gives each minibatch an equal share,
    whichever device the block lies on, so that the number of devices does not change which rows
    meet.

    Args:
        blocks: of all environments, on whatever device.
        num_envs: held here.
        rows: of a minibatch, on all devices; of sequences as many as come nearest.
    """
    num_devices = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    own_blocks = blocks // num_devices
    num_agents = cut.width // num_envs
    block_row = num_envs // own_blocks * num_agents  # pieces of a block in one part
    share = cut.share(rows, blocks, own_blocks)
    first = 0 if axis_name is None else jax.lax.axis_index(axis_name) * own_blocks

    def order(block):
        block_key = jax.random.fold_in(key, first + block)
        piece = minibatch_rows(block_key, cut.number * block_row, share, num_epochs)
        return piece // block_row * cut.width + block * block_row + piece % block_row

    pieces = jax.vmap(order)(jnp.arange(own_blocks))
    return jnp.moveaxis(pieces, 0, 1).reshape(pieces.shape[1], -1)


def _begins(ended: jax.Array) -> jax.Array:
    """Where a step is the first of its episode, bool[T, E, M]; of step 0 the rollout's own carry knows."""
    return jnp.concatenate([jnp.zeros_like(ended[:1]), ended[:-1]])


def _filled_up(rows: jax.Array, number: int, filler: int) -> jax.Array:
    missing = number - len(rows)
    if not missing:
        return rows
    return jnp.concatenate([rows, jnp.full((missing, *rows.shape[1:]), filler, rows.dtype)])
