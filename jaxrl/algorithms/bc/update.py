"""One iteration of behaviour cloning or MARWIL for one policy: minibatch SGD over drawn steps."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxrl.algorithms.offline import Drawn
from jaxrl.algorithms.offline_data import Steps
from jaxrl.algorithms.on_policy import Iteration, LearnerSpec, LearnerState, all_finite, promoting
from jaxrl.core.fast_prng import with_fast_keys
from jaxrl.core.types import Key, PyTree

MAX_WEIGHT = 20.0  # of an action; beyond it a few lucky ones would be all that counts


@dataclass(frozen=True, kw_only=True)
class BCSpec(LearnerSpec):
    """The static settings of one policy's learning."""

    is_weighted: bool = False  # by the advantage, as MARWIL does


class AdvantageNorm(struct.PyTreeNode):
    """The moving average of the squared advantage, which begins with the first minibatch."""

    total: jax.Array  # f32[]
    weight: jax.Array  # f32[]  of all minibatches so far

    def updated(self, squares: jax.Array, rate: jax.Array) -> "AdvantageNorm":
        return AdvantageNorm(
            (1.0 - rate) * self.total + rate * squares, (1.0 - rate) * self.weight + rate
        )

    @property
    def scale(self) -> jax.Array:
        """c, f32[]."""
        return jnp.sqrt(self.total / jnp.maximum(self.weight, 1e-8)) + 1e-8


class BCState(LearnerState, kw_only=True):
    """The state of a policy that learns from recorded episodes."""

    advantage_norm: AdvantageNorm | None = None  # of MARWIL


class Terms(NamedTuple):
    """The metrics of a minibatch, f32[] each: means over its steps."""

    log_prob: jax.Array  # of the recorded actions
    entropy: jax.Array
    policy_loss: jax.Array
    vf_loss: jax.Array | None = None  # of MARWIL, as the next
    weight: jax.Array | None = None


def init_learner(spec: BCSpec, hypers: dict[str, jax.Array], key: Key) -> BCState:
    """The start of learning."""
    params = with_fast_keys(spec.policy_spec.model.init, key)
    zero = jnp.zeros(())
    return BCState(
        params=params,
        opt_state=optax.adam(1.0).init(params),
        filter=spec.policy_spec.initial_filter(),
        advantage_norm=AdvantageNorm(zero, zero) if spec.is_weighted else None,
    )


def update_policy(
    spec: BCSpec, learner: BCState, drawn: Drawn, iteration: Iteration
) -> tuple[BCState, dict[str, jax.Array]]:
    """A step of Adam for each of the T minibatches of B steps.

    Returns:
        (learner, metrics {name: f32[]}): means over the minibatches; "parameters_finite" is 0.0
        when NaN or infinity is in the parameters or the optimiser's state afterwards, else 1.0.
    """
    hypers, learner = iteration.hypers, learner.replace(filter=drawn.filter)
    lr = jnp.interp(iteration.env_steps, hypers["lr"][:, 0], hypers["lr"][:, 1])
    optimizer = promoting(optax.adam(lr))
    end_values = _end_values(spec, learner, drawn.ends)

    def step(learner, steps):
        minibatch = _minibatch(spec, learner, steps, end_values)
        gradient = jax.value_and_grad(_loss, argnums=1, has_aux=True)
        (loss, (terms, norm)), grads = gradient(spec, learner.params, minibatch, hypers)
        size = optax.tree.norm(grads)
        scale = jnp.minimum(1.0, hypers["grad_clip"] / jnp.maximum(size, 1e-12))
        grads = jax.tree.map(lambda leaf: leaf * scale, grads)
        updates, opt_state = optimizer.update(grads, learner.opt_state)
        params = optax.apply_updates(learner.params, updates)
        learner = learner.replace(params=params, opt_state=opt_state, advantage_norm=norm)
        return learner, (loss, terms, size)

    learner, reported = jax.lax.scan(step, learner, drawn.steps)
    loss, terms, size = jax.tree.map(jnp.mean, reported)
    weighted = {"vf_loss": terms.vf_loss, "mean_weight": terms.weight} if spec.is_weighted else {}
    return learner, {
        "total_loss": loss,
        "policy_loss": terms.policy_loss,
        "log_prob": terms.log_prob,
        "entropy": terms.entropy,
        **weighted,
        "gradients_default_optimizer_global_norm": size,
        "num_module_steps_trained": jnp.float32(drawn.num_steps),
        "default_optimizer_learning_rate": lr,
        "parameters_finite": all_finite((learner.params, learner.opt_state)).astype(jnp.float32),
    }


class Minibatch(NamedTuple):
    """B steps of a policy, [B, ...]."""

    inputs: PyTree  # as the model reads them
    action_mask: PyTree
    action: PyTree
    target: jax.Array | None  # f32  of the value, with MARWIL
    advantage_norm: AdvantageNorm | None  # before this minibatch


def _minibatch(
    spec: BCSpec, learner: BCState, steps: Steps, end_values: jax.Array | None
) -> Minibatch:
    target, policy_spec = None, spec.policy_spec
    if spec.is_weighted:
        target = steps.return_to_go + steps.discount * end_values[steps.end]
    inputs = policy_spec.read(learner.filter, steps.obs, steps.inputs)
    mask = policy_spec.action_mask(steps.obs, steps.inputs)
    return Minibatch(inputs, mask, steps.action, target, learner.advantage_norm)


def _end_values(spec: BCSpec, learner: BCState, ends: Steps | None) -> jax.Array | None:
    """V of the observations after the last steps, f32[F], which MARWIL needs."""
    if not spec.is_weighted:
        return None
    inputs = spec.policy_spec.read(learner.filter, ends.obs, ends.inputs)
    return spec.policy_spec.evaluate_actions(learner.params, inputs, None)[1]


def _loss(
    spec: BCSpec, params: PyTree, minibatch: Minibatch, hypers: dict[str, jax.Array]
) -> tuple[jax.Array, tuple[Terms, AdvantageNorm | None]]:
    """(loss, (terms, the moving average after it)); Wang et al. 2018, algorithm 1."""
    evaluate = spec.policy_spec.evaluate_actions
    distribution, value = evaluate(params, minibatch.inputs, minibatch.action_mask)
    log_prob = distribution.log_prob(minibatch.action)
    means = jnp.mean(log_prob), jnp.mean(distribution.entropy())
    if not spec.is_weighted:
        return -means[0], (Terms(*means, policy_loss=-means[0]), None)
    error = minibatch.target - value
    advantage = jax.lax.stop_gradient(error)
    rate = hypers["moving_average_sqd_adv_norm_update_rate"]
    norm = minibatch.advantage_norm.updated(jnp.mean(advantage**2), rate)
    weight = jnp.exp(jnp.minimum(hypers["beta"] * advantage / norm.scale, math.log(MAX_WEIGHT)))
    policy_loss, vf_loss = -jnp.mean(weight * log_prob), 0.5 * jnp.mean(error**2)
    terms = Terms(*means, policy_loss, vf_loss, jnp.mean(weight))
    return policy_loss + hypers["vf_coeff"] * vf_loss, (terms, norm)
