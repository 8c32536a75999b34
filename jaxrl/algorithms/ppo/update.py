"""One iteration of PPO for one policy: minibatch SGD over its trajectory (Schulman et al. 2017)."""

import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms.on_policy import Iteration, LearnerState, all_finite, promoting
from jaxrl.algorithms.ppo.batch import (
    Minibatches,
    active_rows,
    advantages_and_targets,
    batch_layout,
    make_batch,
    make_minibatches,
)
from jaxrl.algorithms.ppo.behaviour import as_if_by_policy, as_if_played_now
from jaxrl.algorithms.ppo.hypers import Hypers, PPOSpec
from jaxrl.algorithms.ppo.loss import Sums, Terms, gradient, learner_metrics
from jaxrl.algorithms.ppo.optimizer import GLOBAL_NORM, NORM, clipped_apart
from jaxrl.algorithms.ppo.without_critic import without_critic
from jaxrl.core.fast_prng import with_fast_keys
from jaxrl.core.types import Key, PyTree
from jaxrl.models.model import ActorCritic
from jaxrl.ops.advantages import moments, standardise
from jaxrl.ops.collectives import over_axis, total
from jaxrl.ops.losses import is_past_target, next_kl_coeff
from jaxrl.ops.packing import Packed, pack
from jaxrl.ops.running_stats import RunningMeanStd, init_running_stats, update
from jaxrl.ops.scan_some import scan_some
from jaxrl.rollout.steps import Trajectory

MAX_PACKED_SIZE = 2048  # numbers of a layer; packing a larger one costs more copying than it saves


class PPOState(LearnerState, kw_only=True):
    """The state of a policy that learns with PPO."""

    kl_coeff: jax.Array  # f32[]
    return_filter: RunningMeanStd | None = None  # of the discounted return, where it is scaled
    intrinsic_filter: RunningMeanStd | None = None  # of that of intrinsic rewards


def init_learner(spec: PPOSpec, hypers: Hypers, key: Key) -> PPOState:
    """The start of learning."""
    params = with_fast_keys(spec.policy_spec.model.init, key)
    return PPOState(
        params=params,
        opt_state=_optimizer(spec, hypers.at(0.0)).init(params),
        kl_coeff=hypers.kl_coeff * float(spec.use_kl_loss),
        filter=spec.policy_spec.initial_filter(),
        return_filter=init_running_stats(()) if spec.normalize_returns else None,
        intrinsic_filter=init_running_stats(()) if spec.normalize_intrinsic_rewards else None,
    )


def update_policy(
    spec: PPOSpec, learner: PPOState, trajectory: Trajectory, iteration: Iteration
) -> tuple[PPOState, dict[str, jax.Array]]:
    """One iteration of a policy on its trajectory [T, E, M, ...].

    Returns:
        (learner, metrics {name: f32[]}): the metrics over the last pass; "parameters_finite" is 0.0
        when NaN or infinity is in the parameters or the optimiser's state afterwards, else 1.0. A
        policy without active rows keeps its learner as it is.
    """
    hypers = iteration.hypers.at(iteration.env_steps).replace(kl_coeff=learner.kl_coeff)
    if trajectory.is_stale:
        trajectory = as_if_played_now(spec, learner.weights, trajectory)
    if spec.policy_spec.exploration is not None or trajectory.log_prob is not None:
        trajectory = as_if_by_policy(trajectory)
    if spec.use_critic:
        estimates = advantages_and_targets(spec, trajectory, hypers)
    else:
        trajectory, estimates = without_critic(spec, trajectory, hypers)
    batch = make_batch(spec, learner.filter, trajectory, estimates)
    layout = batch_layout(spec.policy_spec, trajectory.value.shape)
    minibatches = make_minibatches(spec, layout, batch, iteration.key)

    (params, opt_state), finite, steps = _sgd_epochs(spec, learner, minibatches, hypers)

    _, target_variance = moments(batch.target, batch.weight, axis_name=spec.axis_name)
    metrics = learner_metrics(steps, minibatches.num_per_pass, target_variance, hypers)
    if not spec.use_critic:
        del metrics["vf_explained_var"]
    metrics["parameters_finite"] = finite.astype(jnp.float32)
    has_rows = total(batch.weight, spec.axis_name) > 0
    kl_coeff = next_kl_coeff(hypers.kl_coeff, metrics["mean_kl_loss"], hypers.kl_target)
    kl_coeff = jnp.where(has_rows, kl_coeff, hypers.kl_coeff)
    learner = learner.replace(params=params, opt_state=opt_state, kl_coeff=kl_coeff)
    return learner.replace(filter=_next_filter(spec, learner, trajectory)), metrics


def _sgd_epochs(
    spec: PPOSpec, learner: PPOState, minibatches: Minibatches, hypers: Hypers
) -> tuple[tuple[PyTree, PyTree], jax.Array, tuple[Sums, jax.Array]]:
    """A step of the optimiser for each minibatch that has an active row.

    Returns:
        ((params, opt_state), finite, (sums, norms)): bool[], whether both hold finite numbers
        alone; what each minibatch summed up, and the norm of its gradient, [num_minibatches, ...].
    """
    optimizer = _optimizer(spec, hypers)
    layers = jax.tree.structure(learner.params)

    def step(state, pieces):
        params, opt_state, stopped = state
        minibatch = minibatches.gather(pieces)
        if spec.normalize_advantages == "minibatch":
            weight = minibatch.policy_weight
            advantage = standardise(minibatch.advantage, weight, axis_name=spec.axis_name)
            minibatch = minibatch.replace(advantage=advantage)

        grads, sums = gradient(_unpacked(params), spec, minibatch, hypers)
        grads, sums = over_axis((_packed(spec, grads, layers), sums), spec.axis_name)
        terms = Terms(*sums.terms)
        count = jnp.maximum(terms.weight, 1.0)
        norm = optax.tree.norm(grads) / count
        if spec.grad_clip_by == GLOBAL_NORM:
            scale = jnp.minimum(1.0, hypers.grad_clip / jnp.maximum(norm, 1e-12)) / count
            grads = jax.tree.map(lambda leaf: leaf * scale, grads)
        else:
            grads = clipped_apart(grads, count, hypers.grad_clip, spec.grad_clip_by)
        updates, next_opt_state = optimizer.update(grads, opt_state, params)
        before, after = (params, opt_state), (optax.apply_updates(params, updates), next_opt_state)

        if spec.target_kl is not None:
            stopped = stopped | is_past_target(terms.mean_kl_loss / count, spec.target_kl)
            after = _where(stopped, before, after)
        return (*after, stopped), (sums, norm)

    state = _packed(spec, (learner.params, learner.opt_state), layers)
    start = *state, jnp.array(False)
    if spec.always_active:
        (*state, _), steps = jax.lax.scan(step, start, minibatches.indices)
    else:
        has_rows = over_axis(minibatches.num_active, spec.axis_name) > 0
        (*state, _), steps = scan_some(step, start, minibatches.indices, has_rows)
    return tuple(_unpacked(state)), all_finite(state), steps


def _optimizer(spec: PPOSpec, hypers: Hypers) -> optax.GradientTransformation:
    """Made again in every trace from the present numbers; its state alone is kept."""
    if spec.optimizer is not None:
        return promoting(spec.optimizer(hypers.lr))
    return promoting(optax.adam(hypers.lr, eps=hypers.adam_epsilon))


def _next_filter(
    spec: PPOSpec, learner: PPOState, trajectory: Trajectory
) -> RunningMeanStd | ActorCritic | None:
    """The filter with this iteration's observations, which it did not normalise itself."""
    weights = trajectory.active.astype(jnp.float32).reshape(-1)

    def with_rows(moments: RunningMeanStd, numbers: PyTree) -> RunningMeanStd:
        as_rows = lambda leaf: active_rows(leaf, trajectory.active).astype(jnp.float32)
        return update(moments, jax.tree.map(as_rows, numbers), weights, spec.axis_name)

    observed = trajectory.obs, trajectory.inputs
    return spec.policy_spec.next_filter(learner.filter, *observed, with_rows)


def _where(condition: jax.Array, tree: PyTree, other: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), tree, other)


def _packed(spec: PPOSpec, tree: PyTree, layers: jax.tree_util.PyTreeDef) -> PyTree:
    """Parts of `tree` with the parameters' structure as few wide arrays, for faster steps.

    A user's optimiser sees layers, and so does clipping by each array's norm. Parameters that are
    one bare array stay as they are: by its structure nothing tells it from any other.
    """
    if spec.optimizer or spec.grad_clip_by == NORM or jax.tree_util.treedef_is_leaf(layers):
        return tree
    is_layers = lambda node: jax.tree.structure(node) == layers
    as_wide = lambda node: pack(node, 0, MAX_PACKED_SIZE) if is_layers(node) else node
    return jax.tree.map(as_wide, tree, is_leaf=is_layers)


def _unpacked(tree: PyTree) -> PyTree:
    """The inverse of `_packed`: a product needs a leaf for each layer."""
    is_packed = lambda node: isinstance(node, Packed)
    as_layers = lambda node: node.unpack() if is_packed(node) else node
    return jax.tree.map(as_layers, tree, is_leaf=is_packed)
