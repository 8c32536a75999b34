"""How one policy learns from its own rows: the walk of minibatches, and what it leaves behind."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxrl.algorithms.ppo.batch import (
    Batch,
    BatchLayout,
    active_rows,
    batch_layout,
    make_batch,
    minibatch_indices,
)
from jaxrl.algorithms.ppo.hypers import Hypers
from jaxrl.algorithms.ppo.loss import Sums, gradient, num_microbatches
from jaxrl.algorithms.ppo.metrics import Coefficients, Terms, learner_metrics
from jaxrl.core.types import Key, PyTree
from jaxrl.models.model import carried
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.ops.advantages import moments, standardise
from jaxrl.ops.collectives import over_axis, total
from jaxrl.ops.losses import is_past_target, next_kl_coeff
from jaxrl.ops.packing import Packed, pack
from jaxrl.ops.running_stats import RunningMeanStd, init_running_stats, scale_rewards, update
from jaxrl.rollout.rollout import Trajectory

SMALL = 2048  # numbers of a layer; packing a larger one costs more copying than it saves


class LearnerState(struct.PyTreeNode):
    """What a policy learns with."""

    params: PyTree
    opt_state: PyTree
    kl_coeff: jax.Array  # f32[]
    filter: RunningMeanStd | tuple  # of the observations; () without a filter
    return_filter: (
        RunningMeanStd | tuple
    ) = ()  # of the discounted return; () where rewards are left as they are

    @property
    def weights(self) -> PolicyWeights:
        return PolicyWeights(self.params, self.filter)

    def with_weights(self, weights: PolicyWeights) -> "LearnerState":
        return self.replace(params=weights.params, filter=weights.filter)


class LearnerSpec(NamedTuple):
    """What is static about learning a policy; policies with equal ones are stacked."""

    policy_spec: PolicySpec
    trained: bool
    blocks: int  # of environments, that a minibatch draws equally from
    minibatch_size: int
    num_epochs: int
    use_kl_loss: bool
    normalize_advantages: str | None
    value_clip: str | None
    optimizer: Callable | None
    target_kl: float | None = None
    normalize_returns: bool = False
    always_active: bool = (
        True  # whether every agent acts in every step, so that no minibatch is without rows
    )


def init_learner(structure: LearnerSpec, hypers: Hypers, key: Key) -> LearnerState:
    """The start of learning."""
    params = structure.policy_spec.model.init(key)
    opt_state = _optimizer(structure, hypers, hypers.lr[0, 1]).init(params)
    kl_coeff = hypers.kl_coeff * structure.use_kl_loss
    return_filter = init_running_stats(()) if structure.normalize_returns else ()
    return LearnerState(
        params, opt_state, kl_coeff, structure.policy_spec.initial_filter(), return_filter
    )


def update_policy(
    structure: LearnerSpec,
    axis_name: str | None,
    learner: LearnerState,
    trajectory: Trajectory,
    returns: PyTree,
    hypers: Hypers,
    key: Key,
    env_steps: jax.Array,
) -> tuple[LearnerState, PyTree, dict[str, jax.Array]]:
    """One iteration of a policy on its trajectory [T, E, M, ...].

    Args:
        axis_name: a mapped axis over which the environments are split, or None.
        returns: f32[E, M], discounted, of the episodes until this iteration; () without
        `normalize_returns`.
        env_steps: f32[], lifetime environment steps before this iteration; the schedules are read
        there.

    Returns:
        (learner, returns, metrics {name: f32[]}), the metrics over the last pass;
        "parameters_finite" is 0.0 when NaN or infinity stands in the parameters or the optimiser's
        state afterwards, else 1.0. A policy without active rows keeps its learner as it is.
    """
    policy_spec, cut = (
        structure.policy_spec,
        batch_layout(structure.policy_spec, trajectory.value.shape),
    )
    trajectory = _with_own_reward(policy_spec, learner.params, trajectory)
    trajectory, return_filter, returns = _scale_rewards(
        learner, trajectory, returns, hypers, axis_name
    )
    rows = make_batch(
        policy_spec,
        learner.filter,
        trajectory,
        hypers,
        standardised=structure.normalize_advantages == "batch",
        axis_name=axis_name,
    )
    order = minibatch_indices(
        cut,
        blocks=structure.blocks,
        num_envs=trajectory.value.shape[1],
        rows=structure.minibatch_size,
        num_epochs=structure.num_epochs,
        key=key,
        axis_name=axis_name,
    )
    coefficients = Coefficients(
        _at(hypers.lr, env_steps), _at(hypers.entropy_coeff, env_steps), learner.kl_coeff
    )
    batch = rows, _carries(policy_spec, cut, trajectory), cut
    before, state, sums, norms = _sgd_epochs(
        structure, axis_name, learner, batch, order, hypers, coefficients
    )
    last_pass = -(-cut.num_pieces // order.shape[1])
    _, target_variance = moments(rows.target, rows.weight, axis_name=axis_name)
    metrics = learner_metrics(sums, norms, last_pass, target_variance, hypers, coefficients)
    kl_coeff = next_kl_coeff(learner.kl_coeff, metrics["mean_kl_loss"], hypers.kl_target)
    has_rows = total(rows.weight, axis_name) > 0
    learned = (
        state,
        kl_coeff,
        _next_filter(policy_spec, learner, trajectory, axis_name),
        return_filter,
    )
    held = before, learner.kl_coeff, learner.filter, learner.return_filter
    state, *others = jax.tree.map(lambda new, old: jnp.where(has_rows, new, old), learned, held)
    metrics |= {
        "curr_kl_coeff": coefficients.kl,
        "curr_entropy_coeff": coefficients.entropy,
        "default_optimizer_learning_rate": coefficients.lr,
        "parameters_finite": _all_finite(state).astype(jnp.float32),
    }
    return LearnerState(*_as_layers(state), *others), returns, metrics


def _sgd_epochs(
    structure: LearnerSpec,
    axis_name: str | None,
    learner: LearnerState,
    batch: tuple[Batch, PyTree, BatchLayout],
    order: jax.Array,
    hypers: Hypers,
    coefficients: Coefficients,
) -> tuple[PyTree, PyTree, Sums, jax.Array]:
    """A step of the optimiser for each minibatch that has an active row.

    Args:
        batch: the rows, the carries into its pieces, and how it is cut into them.
        order: i32[num_minibatches, ...], the pieces of each.

    Returns:
        (before, state, sums, norms): (parameters, optimiser's state) as they are stored, before and
        after; what each minibatch summed up, and its gradient's norm, [num_minibatches, ...].
    """
    rows, carries, cut = batch
    policy_spec = structure.policy_spec
    optimizer = _optimizer(structure, hypers, coefficients.lr)
    # A product needs a leaf for each layer, everything else one array: the optimiser's arithmetic,
    # and gathering rows.
    packed_rows, layers = pack(rows, num_axes=1), jax.tree.structure(learner.params)

    def step(state, pieces):
        params, opt_state, stopped = state
        index = cut.make_batch(pieces)
        minibatch = jax.tree.map(lambda leaf: leaf[index], packed_rows).unpack()
        carry = jax.tree.map(lambda leaf: leaf[pieces], carries)
        if structure.normalize_advantages == "minibatch":
            advantage = standardise(minibatch.advantage, minibatch.weight, axis_name=axis_name)
            minibatch = minibatch.replace(advantage=advantage)
        parts = 1 if policy_spec.has_memory else num_microbatches(len(pieces), axis_name)
        grads, sums = gradient(
            policy_spec,
            structure.value_clip,
            _as_layers(params),
            minibatch,
            carry,
            hypers,
            coefficients,
            parts,
        )
        grads, sums = over_axis((_as_stored(structure, grads, layers), sums), axis_name)
        count = jnp.maximum(Terms(*sums[0]).weight, 1.0)
        norm = optax.tree.norm(grads) / count
        scale = jnp.minimum(1.0, hypers.grad_clip / jnp.maximum(norm, 1e-12)) / count
        grads = jax.tree.map(lambda leaf: leaf * scale, grads)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        after = optax.apply_updates(params, updates), opt_state
        if structure.target_kl is not None:
            stopped = stopped | is_past_target(
                Terms(*sums[0]).mean_kl_loss / count, structure.target_kl
            )
            after = jax.tree.map(lambda new, old: jnp.where(stopped, old, new), after, state[:2])
        if not structure.always_active:
            has_rows = Terms(*sums[0]).weight > 0
            after = jax.tree.map(lambda new, old: jnp.where(has_rows, new, old), after, state[:2])
        return (*after, stopped), (sums, norm)

    before = _as_stored(structure, (learner.params, learner.opt_state), layers)
    (*state, _), (sums, norms) = jax.lax.scan(step, (*before, jnp.array(False)), order)
    return before, tuple(state), sums, norms


def _as_stored(structure: LearnerSpec, tree: PyTree, layers: jax.tree_util.PyTreeDef) -> PyTree:
    """Parts of `tree` that have the parameters' structure as few wide arrays; a user's optimiser sees layers.

    Parameters that are one bare array stay as they are: by its structure nothing tells it from any
    other.
    """
    if structure.optimizer is not None or jax.tree_util.treedef_is_leaf(layers):
        return tree
    is_layers = lambda node: jax.tree.structure(node) == layers
    return jax.tree.map(
        lambda node: pack(node, 0, SMALL) if is_layers(node) else node, tree, is_leaf=is_layers
    )


def _as_layers(tree: PyTree) -> PyTree:
    """The inverse of `_as_stored`."""
    is_packed = lambda node: isinstance(node, Packed)
    return jax.tree.map(
        lambda node: node.unpack() if is_packed(node) else node, tree, is_leaf=is_packed
    )


def _carries(policy_spec: PolicySpec, cut: BatchLayout, trajectory: Trajectory) -> PyTree:
    """The model's carry into each piece, [C * E * M, ...]; a fresh one where the agent is away: its own may be NaN.

    One that waits keeps its carry, which nothing it observes meanwhile changes.
    """
    if not policy_spec.has_memory:
        return ()
    carry = trajectory.carry
    if isinstance(trajectory.waited, tuple):
        away = ~trajectory.active[:: cut.length]  # [C, E, M]
        carry = carried(away, policy_spec.model.initial_carry(away.shape), carry)
    return jax.tree.map(lambda leaf: leaf.reshape(cut.num_pieces, *leaf.shape[3:]), carry)


def _with_own_reward(policy_spec: PolicySpec, params: PyTree, trajectory: Trajectory) -> Trajectory:
    """The trajectory with what the model itself rewards, if it does."""
    if not hasattr(policy_spec.model, "intrinsic_reward"):
        return trajectory
    return trajectory.replace(
        reward=trajectory.reward + policy_spec.model.intrinsic_reward(params, trajectory)
    )


def _scale_rewards(
    learner: LearnerState,
    trajectory: Trajectory,
    returns: PyTree,
    hypers: Hypers,
    axis_name: str | None,
) -> tuple[Trajectory, RunningMeanStd | tuple, PyTree]:
    """(trajectory, filter, returns): rewards in units of the return's deviation, if that is wanted."""
    if not isinstance(learner.return_filter, RunningMeanStd):
        return trajectory, (), returns
    rewards, return_filter, returns = scale_rewards(
        learner.return_filter,
        returns,
        trajectory.reward,
        trajectory.ended,
        trajectory.active,
        hypers.gamma,
        axis_name,
        None if isinstance(trajectory.waited, tuple) else trajectory.waited,
    )
    return trajectory.replace(reward=rewards), return_filter, returns


def _next_filter(
    policy_spec: PolicySpec, learner: LearnerState, trajectory: Trajectory, axis_name: str | None
):
    """The filter with this iteration's observations in it, which were acted on and learned from by the old one."""
    if not isinstance(learner.filter, RunningMeanStd):
        return learner.filter
    obs = active_rows(policy_spec.observed(trajectory.obs), trajectory.active).astype(jnp.float32)
    weights = trajectory.active.astype(jnp.float32).reshape(-1)
    return update(learner.filter, obs, weights, axis_name)


def _all_finite(tree: PyTree) -> jax.Array:
    """Whether every floating-point number is one, bool[]."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def _optimizer(
    structure: LearnerSpec, hypers: Hypers, lr: jax.Array
) -> optax.GradientTransformation:
    """Made anew in every trace from the numbers of the moment; its state alone is kept."""
    if structure.optimizer is not None:
        return structure.optimizer(lr)
    return optax.adam(lr, eps=hypers.adam_epsilon)


def _at(knots: jax.Array, env_steps: jax.Array) -> jax.Array:
    """The value of a schedule f32[K, 2] at a step."""
    return jnp.interp(env_steps, knots[:, 0], knots[:, 1])
