"""REINFORCE (Williams 1992): log-probabilities times the standardised returns of the rollout.

A second algorithm in one file. Its author reads four others: `jaxrl/algorithms/config.py` (the
settings), `base.py` (what a run needs), `on_policy.py` (the two functions to write) and
`jaxrl/rollout/rollout.py` (what a policy learns from).
"""

import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms.base import Algorithm, HeadlineMetric
from jaxrl.algorithms.config import AlgorithmConfig, algorithm_config
from jaxrl.algorithms.on_policy import LearnerState, on_policy
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import number, setting
from jaxrl.ops.advantages import gae, standardise
from jaxrl.ops.collectives import over_axis, total


@algorithm_config
class ReinforceConfig(AlgorithmConfig):
    """Settings of REINFORCE."""

    algorithm = f"{__name__}:make_reinforce"

    lr: float = setting(1e-2, "learning rate", number(0), traced=True)
    gamma: float = setting(0.99, "discount", number(0, 1), traced=True)

    def check_together(self):
        if self.use_lstm or self.use_gru or self.use_attention or self.observation_filter:
            raise UsageError("REINFORCE has neither memory nor a filter of observations")


def init_learner(spec, hypers, key):
    params = spec.policy_spec.model.init(key)
    return LearnerState(params, optax.adam(hypers["lr"]).init(params))


def update_policy(spec, learner, trajectory, iteration):
    """One gradient step on a rollout [T, E, M, ...]; returns end with the rollout."""
    policy_spec, axis_name, hypers = spec.policy_spec, spec.axis_name, iteration.hypers
    nothing, active = jnp.zeros_like(trajectory.reward), trajectory.active
    ends = trajectory.terminated, trajectory.done
    returns, _ = gae(trajectory.reward, nothing, nothing, *ends, gamma=hypers["gamma"], lambda_=1.0)
    returns = standardise(returns, active.astype(jnp.float32), axis_name=axis_name)
    count = jnp.maximum(total(active.astype(jnp.float32), axis_name), 1.0)

    def loss(params):
        seen = policy_spec.read(learner.filter, trajectory.obs, trajectory.inputs)
        mask = policy_spec.action_mask(trajectory.obs, trajectory.inputs)
        distribution, _ = policy_spec.evaluate_actions(params, seen, mask)
        weighted = returns * distribution.log_prob(trajectory.action)
        return -jnp.sum(jnp.where(active, weighted, 0.0)) / count

    value, grads = over_axis(jax.value_and_grad(loss)(learner.params), axis_name)
    updates, opt_state = optax.adam(hypers["lr"]).update(grads, learner.opt_state)
    params = optax.apply_updates(learner.params, updates)
    metrics = {"policy_loss": value, "grad_norm": optax.tree.norm(grads)}
    metrics["num_module_steps_trained"] = count
    return learner.replace(params=params, opt_state=opt_state), metrics


def make_reinforce(config: ReinforceConfig, *, axis_name: str | None = None) -> Algorithm:
    return on_policy(
        config,
        init_learner,
        update_policy,
        axis_name=axis_name,
        headline_metrics=(
            HeadlineMetric("policy_loss", "policy loss", label="loss", linear=True),
            HeadlineMetric("grad_norm", "norm of the gradient"),
        ),
    )
