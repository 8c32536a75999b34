"""How one policy learns from its own rows: advantages, the clipped objective, and the walk of minibatches."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxrl.core.types import Key, PyTree
from jaxrl.loop.rollout import Trajectory
from jaxrl.models.player import Player, Weights
from jaxrl.ops.advantages import gae, moments, over_axis, standardise, total
from jaxrl.ops.distributions import Distribution
from jaxrl.ops.filters import Moments, update
from jaxrl.ops.losses import clip_fraction, clipped_surrogate, next_kl_coeff, value_clip_fraction, value_loss
from jaxrl.ops.minibatch import minibatch_rows
from jaxrl.ops.packing import Packed, pack
from jaxrl.ppo.hypers import Hypers
from jaxrl.ppo.metrics import Coefficients, Terms, learner_metrics

CACHED_ROWS = 1024  # whose activations, of layers 64 wide, a core's cache of 1 MiB holds
SMALL = 2048  # numbers of a layer; packing a larger one costs more copying than it saves


class Learner(struct.PyTreeNode):
    """What a policy learns with."""

    params: PyTree
    opt_state: PyTree
    kl_coeff: jax.Array  # f32[]
    filter: Moments | tuple  # of the observations; () without a filter

    @property
    def weights(self) -> Weights:
        return Weights(self.params, self.filter)

    def with_weights(self, weights: Weights) -> "Learner":
        return self.replace(params=weights.params, filter=weights.filter)


class Structure(NamedTuple):
    """What is static about learning a policy; policies with equal ones are stacked."""

    player: Player
    trained: bool
    blocks: int  # of environments, that a minibatch draws equally from
    minibatch_size: int
    num_epochs: int
    use_kl_loss: bool
    normalize_advantages: str | None
    value_clip: str | None
    optimizer: Callable | None


class Rows(struct.PyTreeNode):
    """A batch, or a minibatch, of one policy's rows: [B, ...]."""

    obs: PyTree
    action: PyTree
    distribution: Distribution  # the acting one
    log_prob: jax.Array  # f32
    value: jax.Array  # f32
    advantage: jax.Array  # f32
    target: jax.Array  # f32
    weight: jax.Array  # f32  1 where the agent acted, else 0


def init_learner(structure: Structure, hypers: Hypers, key: Key) -> Learner:
    """The start of learning."""
    params = structure.player.model.init(key)
    opt_state = _optimizer(structure, hypers, hypers.lr[0, 1]).init(params)
    return Learner(params, opt_state, hypers.kl_coeff * structure.use_kl_loss, structure.player.initial_filter())


def learn_policy(
    structure: Structure,
    axis_name: str | None,
    learner: Learner,
    trajectory: Trajectory,
    hypers: Hypers,
    key: Key,
    env_steps: jax.Array,
) -> tuple[Learner, dict[str, jax.Array]]:
    """One iteration of a policy on its trajectory [T, E, M, ...].

    Args:
        axis_name: a mapped axis over which the environments are split, or None.
        env_steps: f32[], lifetime environment steps before this iteration; the schedules are read there.

    Returns:
        (learner, metrics {name: f32[]}), the metrics over the last pass of minibatches; "parameters_finite" is 0.0
        when NaN or infinity stands in the parameters or the optimiser's state afterwards, else 1.0. A policy without
        active rows keeps its learner as it is.
    """
    rows = _rows(structure, axis_name, learner, trajectory, hypers)
    coefficients = Coefficients(_at(hypers.lr, env_steps), _at(hypers.entropy_coeff, env_steps), learner.kl_coeff)
    optimizer = _optimizer(structure, hypers, coefficients.lr)
    # A product needs a leaf for each layer, everything else one array: the optimiser's arithmetic, and gathering rows.
    packed_rows, layers = pack(rows, num_axes=1), jax.tree.structure(learner.params)

    def step(state, index):
        params, opt_state = state
        minibatch = jax.tree.map(lambda leaf: leaf[index], packed_rows).unpack()
        if structure.normalize_advantages == "minibatch":
            advantage = standardise(minibatch.advantage, minibatch.weight, axis_name=axis_name)
            minibatch = minibatch.replace(advantage=advantage)
        parts = _num_parts(index.shape[0], axis_name)
        grads, sums = _gradient(structure, _as_layers(params), minibatch, hypers, coefficients, parts)
        grads, sums = over_axis((_as_stored(structure, grads, layers), sums), axis_name)
        count = jnp.maximum(Terms(*sums).weight, 1.0)
        norm = optax.tree.norm(grads) / count
        scale = jnp.minimum(1.0, hypers.grad_clip / jnp.maximum(norm, 1e-12)) / count
        updates, opt_state = optimizer.update(jax.tree.map(lambda leaf: leaf * scale, grads), opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), (sums, norm)

    order = _row_order(structure, axis_name, key, trajectory.value.shape)
    before = _as_stored(structure, (learner.params, learner.opt_state), layers)
    state, (sums, norms) = jax.lax.scan(step, before, order)
    last_pass = -(-rows.weight.shape[0] // order.shape[1])
    _, target_variance = moments(rows.target, rows.weight, axis_name=axis_name)
    metrics = learner_metrics(sums, norms, last_pass, target_variance, hypers, coefficients)
    kl_coeff = next_kl_coeff(learner.kl_coeff, metrics["mean_kl_loss"], hypers.kl_target)
    has_rows = total(rows.weight, axis_name) > 0
    learned = state, kl_coeff, _next_filter(learner, trajectory, rows.weight, axis_name)
    held = before, learner.kl_coeff, learner.filter
    state, *others = jax.tree.map(lambda new, old: jnp.where(has_rows, new, old), learned, held)
    metrics |= {
        "curr_kl_coeff": coefficients.kl,
        "curr_entropy_coeff": coefficients.entropy,
        "default_optimizer_learning_rate": coefficients.lr,
        "parameters_finite": _all_finite(state).astype(jnp.float32),
    }
    return Learner(*_as_layers(state), *others), metrics


def _as_stored(structure: Structure, tree: PyTree, layers: jax.tree_util.PyTreeDef) -> PyTree:
    """Parts of `tree` that have the parameters' structure as few wide arrays; a user's optimiser sees layers."""
    if structure.optimizer is not None:
        return tree
    is_layers = lambda node: jax.tree.structure(node) == layers
    return jax.tree.map(lambda node: pack(node, 0, SMALL) if is_layers(node) else node, tree, is_leaf=is_layers)


def _as_layers(tree: PyTree) -> PyTree:
    """The inverse of `_as_stored`."""
    is_packed = lambda node: isinstance(node, Packed)
    return jax.tree.map(lambda node: node.unpack() if is_packed(node) else node, tree, is_leaf=is_packed)


def _rows(
    structure: Structure, axis_name: str | None, learner: Learner, trajectory: Trajectory, hypers: Hypers
) -> Rows:
    """The trajectory with advantages and targets, flattened to rows [B, ...]; observations as the model reads them."""
    advantages, targets = gae(
        trajectory.reward,
        trajectory.value,
        trajectory.next_value,
        trajectory.terminated,
        trajectory.ended,
        gamma=hypers.gamma,
        lambda_=hypers.lambda_,
    )
    advantages = jnp.where(trajectory.active, advantages, 0.0)
    weights = trajectory.active.astype(jnp.float32)
    if structure.normalize_advantages == "batch":
        advantages = standardise(advantages, weights, axis_name=axis_name)
    by_step = Rows(
        obs=structure.player.filtered(learner.filter, trajectory.obs),
        action=trajectory.action,
        distribution=trajectory.distribution,
        log_prob=trajectory.distribution.log_prob(trajectory.action),
        value=trajectory.value,
        advantage=advantages,
        target=targets,
        weight=weights,
    )
    return jax.tree.map(lambda leaf: _active_rows(leaf, trajectory.active), by_step)


def _active_rows(leaf: jax.Array, active: jax.Array) -> jax.Array:
    """[T, E, M, ...] as rows [B, ...], 0 where the agent was inactive: weight 0 times NaN would still be NaN."""
    rows = leaf.reshape(-1, *leaf.shape[3:])
    return jnp.where(active.reshape(-1, *[1] * (rows.ndim - 1)), rows, jnp.zeros_like(rows))


def _next_filter(learner: Learner, trajectory: Trajectory, weights: jax.Array, axis_name: str | None):
    """The filter with this iteration's observations in it, which were acted on and learned from by the old one."""
    if not isinstance(learner.filter, Moments):
        return learner.filter
    obs = _active_rows(trajectory.obs, trajectory.active).astype(jnp.float32)
    return update(learner.filter, obs, weights, axis_name)


def _row_order(structure: Structure, axis_name: str | None, key: Key, shape: tuple[int, int, int]) -> jax.Array:
    """The rows of each minibatch, i32[num_minibatches, rows of a minibatch held here].

    Every block of environments is shuffled by itself and gives each minibatch an equal share, whichever device the
    block lies on, so that the number of devices does not change which rows meet.
    """
    num_steps, num_envs, num_agents = shape
    num_devices = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    blocks = structure.blocks // num_devices
    block_row = num_envs // blocks * num_agents  # rows of a block in one step
    share = structure.minibatch_size // structure.blocks
    first = 0 if axis_name is None else jax.lax.axis_index(axis_name) * blocks

    def order(block):
        block_key = jax.random.fold_in(key, first + block)
        row = minibatch_rows(block_key, num_steps * block_row, share, structure.num_epochs)
        return row // block_row * (num_envs * num_agents) + block * block_row + row % block_row

    rows = jax.vmap(order)(jnp.arange(blocks))
    return jnp.moveaxis(rows, 0, 1).reshape(rows.shape[1], -1)


def _gradient(
    structure: Structure, params: PyTree, rows: Rows, hypers: Hypers, coefficients: Coefficients, parts: int
) -> tuple[PyTree, jax.Array]:
    """The gradient of `_objective` and its sums, a part of the rows after the other."""
    gradient = jax.grad(functools.partial(_objective, structure), has_aux=True)
    if parts == 1:
        return gradient(params, rows, hypers, coefficients)

    def add(sums, part):
        return jax.tree.map(jnp.add, sums, gradient(params, part, hypers, coefficients)), None

    nothing = jax.tree.map(jnp.zeros_like, (params, jnp.zeros(len(Terms._fields))))
    rows = jax.tree.map(lambda leaf: leaf.reshape(parts, -1, *leaf.shape[1:]), rows)
    return jax.lax.scan(add, nothing, rows)[0]


def _num_parts(num_rows: int, axis_name: str | None) -> int:
    """Into how many parts to cut a minibatch: where every core is a device, so that a part fits the core's cache.

    One device for all cores spreads large products over them, and an accelerator wants them as large as they are.
    """
    if axis_name is None or jax.default_backend() != "cpu":
        return 1
    least = max(1, num_rows // CACHED_ROWS)
    return next((parts for parts in range(least, 2 * least) if num_rows % parts == 0), 1)


def _objective(
    structure: Structure,
    params: PyTree,
    rows: Rows,
    hypers: Hypers,
    coefficients: Coefficients,
) -> tuple[jax.Array, jax.Array]:
    """The loss of some rows, to be divided by their weight, and the sums f32[len(Terms)] over the active ones.

    sum(w l),    l = surrogate + vf_loss_coeff vf_loss - entropy_coeff H + kl_coeff KL(old || new)
    """
    distribution, value = structure.player.model.apply(params, rows.obs)
    log_prob = distribution.log_prob(rows.action)
    surrogate = clipped_surrogate(log_prob, rows.log_prob, rows.advantage, hypers.clip_param)
    value_terms = (value, rows.value, rows.target, hypers.vf_clip_param, structure.value_clip)
    vf_loss = value_loss(*value_terms)
    entropy, kl = distribution.entropy(), rows.distribution.kl(distribution)
    loss = surrogate + hypers.vf_loss_coeff * vf_loss - coefficients.entropy * entropy + coefficients.kl * kl
    error = rows.target - value
    terms = Terms(
        policy_loss=surrogate,
        vf_loss=vf_loss,
        vf_loss_unclipped=error**2,
        error=error,
        entropy=entropy,
        mean_kl_loss=kl,
        clip_fraction=clip_fraction(log_prob, rows.log_prob, hypers.clip_param),
        vf_clip_fraction=value_clip_fraction(*value_terms),
        weight=jnp.ones_like(loss),
    )
    stacked = jax.lax.stop_gradient(jnp.stack(terms))  # one product costs less than a sum for each
    sums = jnp.matmul(stacked, rows.weight, precision="highest")
    return jnp.sum(rows.weight * loss), sums


def _all_finite(tree: PyTree) -> jax.Array:
    """Whether every floating-point number is one, bool[]."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def _optimizer(structure: Structure, hypers: Hypers, lr: jax.Array) -> optax.GradientTransformation:
    """Made anew in every trace from the numbers of the moment; its state alone is kept."""
    if structure.optimizer is not None:
        return structure.optimizer(lr)
    return optax.adam(lr, eps=hypers.adam_epsilon)


def _at(knots: jax.Array, env_steps: jax.Array) -> jax.Array:
    """The value of a schedule f32[K, 2] at a step."""
    return jnp.interp(env_steps, knots[:, 0], knots[:, 1])
