"""Proximal policy optimisation: `make_train`, a whole training, and `make_ppo`, its parts."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.memory_estimate import check_sizes
from jaxrl.algorithms.on_policy import HypersByPolicy, on_policy
from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.algorithms.ppo.diagnostics import concerns
from jaxrl.algorithms.ppo.hypers import PPOSpec
from jaxrl.algorithms.ppo.loss import HEADLINE_METRICS, ROOT_CAUSE_METRICS
from jaxrl.algorithms.ppo.optimizer import optimizer_of
from jaxrl.algorithms.ppo.rewards import check_rewards_itself, prepare_rewards
from jaxrl.algorithms.ppo.summary import describe
from jaxrl.algorithms.ppo.update import init_learner, update_policy
from jaxrl.algorithms.sharding import blocks_of
from jaxrl.algorithms.task_settings import refuse_what_the_host_does
from jaxrl.core.env import strongly_typed
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.outside_env import refuse_outside
from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.models.policy_spec import PolicySpec


def make_train(
    config: AlgorithmConfig | Mapping[str, Any],
) -> Callable[..., tuple[RunnerState, Metrics]]:
    """Returns `train(key, hypers=None, env_params=None) -> (runner, metrics)`: all iterations.

    Pure, so jit, vmap over keys and vmap over `config.hypers(...)` apply; the metrics lead with the
    iterations, [U].

    Args:
        config: a configuration such as `PPOConfig`, or a mapping of the names of `PPOConfig`.
    """
    if not isinstance(config, AlgorithmConfig | Mapping):
        raise UsageError(
            "make_train takes a PPOConfig or a mapping of settings such as {'env': 'arena'}, "
            f"not {brief(config)}"
        )
    config = config if isinstance(config, AlgorithmConfig) else PPOConfig.from_dict(config)
    refuse_what_the_host_does(config, "make_train is one program")
    refuse_outside(config.setup().env, "make_train")
    algorithm = config.build()
    check_sizes(config, algorithm)
    num_updates = config.num_updates

    def train(
        key: Key, hypers: HypersByPolicy = None, env_params: PyTree = None
    ) -> tuple[RunnerState, Metrics]:
        hypers = config.hypers() if hypers is None else hypers
        env_params = strongly_typed(algorithm.env_params if env_params is None else env_params)
        # Behind the barrier the configuration's own numbers are no constants to fold: given or not,
        # in the Trainer or here, they make the same program, to the bit.
        hypers, env_params = jax.lax.optimization_barrier((hypers, env_params))

        def update(runner, _):
            runner, rollout = algorithm.collect(runner, env_params=env_params)
            return algorithm.learn(runner, rollout, hypers)

        runner = algorithm.init(key, hypers, env_params)
        return jax.lax.scan(update, runner, length=num_updates)

    return train


def make_ppo(config: PPOConfig, *, axis_name: str | None = None) -> Algorithm:
    """PPO over the configuration's environment and policies, see `on_policy`.

    Over an `axis_name` gradients, the advantages' moments and the KL are taken as well.
    """
    return on_policy(
        config,
        init_learner,
        update_policy,
        learner_spec=functools.partial(_ppo_spec, config),
        prepare_rewards=prepare_rewards,
        axis_name=axis_name,
        headline_metrics=HEADLINE_METRICS,
        root_cause_metrics=ROOT_CAUSE_METRICS,
        diagnostics=concerns,
        describe=describe,
    )


def _ppo_spec(
    config: PPOConfig, policy: PolicyId, policy_spec: PolicySpec, trained: bool
) -> PPOSpec:
    config = config.for_policy(policy)
    check_rewards_itself(config, policy, policy_spec)
    return PPOSpec(
        policy_spec=policy_spec,
        trained=trained,
        normalize_returns=config.normalize_returns,
        blocks=blocks_of(config),
        minibatch_size=config.minibatch_size,
        num_epochs=config.num_epochs,
        use_kl_loss=config.use_kl_loss,
        normalize_advantages=config.normalize_advantages,
        value_clip=config.value_clip,
        optimizer=optimizer_of(config.optimizer),
        target_kl=config.target_kl,
        center_values=config.center_values,
        normalize_intrinsic_rewards=config.normalize_intrinsic_rewards,
        grad_clip_by=config.grad_clip_by,
        clip_rewards=config.clip_rewards,
        use_critic=config.use_critic,
    )
