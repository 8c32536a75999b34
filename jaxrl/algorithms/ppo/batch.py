"""The batch of a policy: rows of its trajectory with advantages, and shuffled minibatches."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.algorithms.ppo.hypers import Hypers, PPOSpec
from jaxrl.core.types import Key, PyTree
from jaxrl.models.model import carried
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.ops.advantages import center_values, gae, standardise
from jaxrl.ops.distributions import Distribution
from jaxrl.ops.explored import learned_of
from jaxrl.ops.minibatch import minibatch_rows
from jaxrl.ops.packing import Packed, pack
from jaxrl.rollout.steps import Trajectory


class Batch(struct.PyTreeNode):
    """Rows of a policy, [B, ...]; a minibatch of a model with memory has sequences, [L, B, ...]."""

    obs: PyTree  # as the model reads them
    action: PyTree
    distribution: Distribution  # of the policy before the update
    log_prob: jax.Array  # f32  of the action, by that policy
    value: jax.Array  # f32
    advantage: jax.Array  # f32
    target: jax.Array  # f32
    weight: jax.Array  # f32  1 where the agent acted, else 0
    action_mask: jax.Array | None = None  # bool[..., A]; None where every action is possible
    is_first: jax.Array | None = None  # bool  with memory: the row is the first of its episode
    # bool  with memory, where agents may wait: the carry stays as it is
    waited: jax.Array | None = None
    carry: PyTree | None = None  # with memory: the model's, into the first row of each sequence
    # that the step reached; None where the model gives no intrinsic reward
    next_obs: PyTree | None = None
    # f32  of the row for the policy, where a behaviour acted; None where the policy itself did
    importance: jax.Array | None = None
    # what acted, where the policy's choice with its noise learns; None elsewhere
    noise: Distribution | None = None

    @property
    def policy_weight(self) -> jax.Array:
        """f32  of the row in what the policy's choice of action decides."""
        return weighed(self.weight, self.importance)

    def learned(self, policy: Distribution) -> Distribution:
        """The distribution that learns: the policy, or its choice with the noise that acted."""
        return policy if self.noise is None else learned_of(policy, self.noise)


class BatchLayout(NamedTuple):
    """The pieces of minibatches: rows, or of a model with memory sequences of L rows."""

    number: int  # of parts that the T steps are cut into
    length: int  # L
    num_envs: int
    num_agents: int
    in_sequences: bool

    @property
    def width(self) -> int:
        return self.num_envs * self.num_agents

    @property
    def num_pieces(self) -> int:
        return self.number * self.width

    def rows(self, piece: jax.Array) -> jax.Array:
        """The rows of pieces i32[B]: [B], or of sequences [L, B], counted as the rows of a step."""
        if not self.in_sequences:
            return piece
        step = jnp.arange(self.length)[:, None] * self.width
        return (piece // self.width * (self.length * self.width) + piece % self.width)[None] + step

    def pieces_per_block(self, num_rows: int, blocks: int, blocks_here: int) -> int:
        """The pieces that a block of environments gives to a minibatch of about `num_rows` rows."""
        pieces = round(num_rows / (blocks * self.length))
        return min(max(1, pieces), self.num_pieces // blocks_here)


class Minibatches(NamedTuple):
    """A batch, and the pieces of it that each minibatch holds."""

    rows: Packed  # few wide arrays, since gathering costs by the array
    carry: PyTree  # [num_pieces, ...]
    layout: BatchLayout
    indices: jax.Array  # i32[num_minibatches, pieces of a minibatch held here]
    num_active: jax.Array | None  # f32[num_minibatches]  rows in which an agent acted, held here

    @property
    def num_per_pass(self) -> int:
        """The minibatches of one pass over the batch."""
        return -(-self.layout.num_pieces // self.indices.shape[1])

    def gather(self, pieces: jax.Array) -> Batch:
        """The minibatch of `pieces`, a row of `indices`."""
        index = self.layout.rows(pieces)
        minibatch = jax.tree.map(lambda leaf: leaf[index], self.rows).unpack()
        return minibatch.replace(carry=jax.tree.map(lambda leaf: leaf[pieces], self.carry))


def batch_layout(policy_spec: PolicySpec, shape: tuple[int, int, int]) -> BatchLayout:
    """The layout of the batch of a trajectory [T, E, M]."""
    num_steps, num_envs, num_agents = shape
    number, length = policy_spec.sequences(num_steps)
    return BatchLayout(number, length, num_envs, num_agents, policy_spec.has_memory)


def advantages_and_targets(
    spec: PPOSpec, trajectory: Trajectory, hypers: Hypers
) -> tuple[jax.Array, jax.Array]:
    """(advantages, value targets) by GAE, f32[T, E, M]; standardised if that is over the batch.

    With `center_values` the targets leave the mean of the network's values where it is.
    """
    ends = {
        "terminated": trajectory.terminated,
        "ended": trajectory.done,
        "gamma": hypers.gamma,
        "lambda_": hypers.lambda_,
        "waited": trajectory.waited,
    }
    values = trajectory.value, trajectory.next_value
    advantages, targets = gae(trajectory.reward, *values, **ends)
    advantages = jnp.where(trajectory.active, advantages, 0.0)
    weights = weighed(trajectory.active.astype(jnp.float32), trajectory.importance)
    if spec.center_values:
        advantages = center_values(advantages, weights, axis_name=spec.axis_name, **ends)
        targets = advantages + trajectory.value
    if spec.normalize_advantages == "batch":
        advantages = standardise(advantages, weights, axis_name=spec.axis_name)
    return advantages, targets


def make_batch(
    spec: PPOSpec,
    obs_stats: PyTree,
    trajectory: Trajectory,
    estimates: tuple[jax.Array, jax.Array],
) -> Batch:
    """The trajectory's rows [B, ...], observations as the model reads them.

    Of a model with memory there are further rows of weight 0, so that all sequences are of one
    length, and the carries into the sequences.

    Args:
        obs_stats: the observation filter's, as they were acted on.
        trajectory: with the policy's distributions, whatever acted.
        estimates: of `advantages_and_targets`.
    """
    policy_spec, shape = spec.policy_spec, trajectory.value.shape
    (advantages, targets), learned = estimates, trajectory.distribution
    if trajectory.noise is not None:
        learned = learned_of(learned, trajectory.noise)
    by_step = Batch(
        obs=policy_spec.read(obs_stats, trajectory.obs, trajectory.inputs),
        action=trajectory.action,
        distribution=trajectory.distribution,
        log_prob=learned.log_prob(trajectory.action),
        value=trajectory.value,
        advantage=advantages,
        target=targets,
        weight=trajectory.active.astype(jnp.float32),
        action_mask=policy_spec.action_mask(trajectory.obs, trajectory.inputs),
        next_obs=(
            policy_spec.read_alone(obs_stats, trajectory.next_obs)
            if policy_spec.rewards_itself
            else None
        ),
        importance=trajectory.importance,
        noise=trajectory.noise,
    )
    rows = jax.tree.map(lambda leaf: active_rows(leaf, trajectory.active), by_step)
    # All zeros are no distribution of every kind; all ones are.
    distribution, noise = jax.tree.map(
        lambda leaf: active_rows(leaf, trajectory.active, filler=1),
        (by_step.distribution, by_step.noise),
    )
    batch = rows.replace(distribution=distribution, noise=noise)
    if not policy_spec.has_memory:
        return batch
    return _with_memory(batch, batch_layout(policy_spec, shape), policy_spec, trajectory)


def make_minibatches(spec: PPOSpec, layout: BatchLayout, batch: Batch, key: Key) -> Minibatches:
    """All minibatches of an iteration's epochs, shuffled."""
    indices = minibatch_indices(spec, layout, key)
    by_piece = batch.weight.reshape(layout.number, -1, layout.width).sum(axis=1).reshape(-1)
    rows = pack(batch.replace(carry=None), num_axes=1)
    return Minibatches(rows, batch.carry, layout, indices, by_piece[indices].sum(axis=1))


def minibatch_indices(spec: PPOSpec, layout: BatchLayout, key: Key) -> jax.Array:
    """The pieces of each minibatch, i32[num_minibatches, pieces of a minibatch held here].

    Every block of environments is shuffled by itself and gives each minibatch an equal share,
    whichever device holds the block, so that the number of devices does not change which rows
    meet. A minibatch has `spec.minibatch_size` rows over all devices, or as many sequences as come
    nearest.
    """
    axis_name = spec.axis_name
    num_devices = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    blocks_here = spec.blocks // num_devices
    first_block = 0 if axis_name is None else jax.lax.axis_index(axis_name) * blocks_here
    # The pieces of a block: in one part of the steps, and in a minibatch.
    in_a_part = layout.num_envs // blocks_here * layout.num_agents
    in_a_minibatch = layout.pieces_per_block(spec.minibatch_size, spec.blocks, blocks_here)

    def indices_of(block):
        block_key = jax.random.fold_in(key, first_block + block)
        number = layout.number * in_a_part
        piece = minibatch_rows(block_key, number, in_a_minibatch, spec.num_epochs)
        return piece // in_a_part * layout.width + block * in_a_part + piece % in_a_part

    indices = jax.vmap(indices_of)(jnp.arange(blocks_here))
    return jnp.moveaxis(indices, 0, 1).reshape(indices.shape[1], -1)


def weighed(values: jax.Array, importance: jax.Array | None) -> jax.Array:
    """`values` times the importance of their rows, f32[...]; as they are where that is None."""
    return values if importance is None else values * importance


def active_rows(leaf: jax.Array, active: jax.Array, filler: int = 0) -> jax.Array:
    """[T, E, M, ...] as rows [B, ...], `filler` where inactive: NaN times weight 0 is NaN."""
    rows = leaf.reshape(-1, *leaf.shape[3:])
    return jnp.where(active.reshape(-1, *[1] * (rows.ndim - 1)), rows, jnp.full_like(rows, filler))


def _with_memory(
    batch: Batch, layout: BatchLayout, policy_spec: PolicySpec, trajectory: Trajectory
) -> Batch:
    """The batch filled up to whole sequences, with what a model with memory needs besides."""
    # Of step 0 the carry that the rollout began with knows.
    done, active = trajectory.done, trajectory.active
    is_first = jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])
    carry, waited = trajectory.carry, None
    if trajectory.waited is None:
        is_first = is_first & active
        # A fresh carry where the agent is away, whose own may be NaN.
        away = ~active[:: layout.length]  # [C, E, M]
        carry = carried(away, policy_spec.model.initial_carry(away.shape), carry)
    else:
        # An agent that waits keeps its carry, and its episode may begin all the same.
        waited = trajectory.waited.reshape(-1)
    carry = jax.tree.map(lambda leaf: leaf.reshape(layout.num_pieces, *leaf.shape[3:]), carry)
    rows = batch.replace(is_first=is_first.reshape(-1), waited=waited)
    missing = layout.num_pieces * layout.length - len(rows.weight)
    filled = jax.tree.map(lambda leaf: _filled_up(leaf, missing, 0), rows)
    distribution, noise = jax.tree.map(
        lambda leaf: _filled_up(leaf, missing, 1), (rows.distribution, rows.noise)
    )
    return filled.replace(distribution=distribution, noise=noise, carry=carry)


def _filled_up(rows: jax.Array, missing: int, filler: int) -> jax.Array:
    if not missing:
        return rows
    return jnp.concatenate([rows, jnp.full((missing, *rows.shape[1:]), filler, rows.dtype)])
