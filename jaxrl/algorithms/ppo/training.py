"""What training goes by, of PPO's settings: environment, policies, sizes, and every number of the objective."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxrl.algorithms import rllib_values, validators
from jaxrl.algorithms.validators import schedule
from jaxrl.core.fields import INT64, UINT32, count, flag, number, one_of, pairs, setting
from jaxrl.core.registry import ENVIRONMENT
from jaxrl.models.policy_spec import FILTERS
from jaxrl.rollout.episode_callbacks import CALLBACKS


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """The settings of `PPOConfig` but for those of its networks."""

    env: Any = setting(
        None,
        "environment: a name, gymnax:NAME, module:Class, or an environment object",
        validators.environment,
        kind=ENVIRONMENT,
    )
    env_args: Any = setting(
        (),
        "arguments of the environment by name, structure and numbers alike",
        pairs("{name: value}"),
    )
    policies: Any = setting(
        None,
        "shared, per-agent, {policy: [agents]}, a function from agent to policy, or the names alone",
        validators.policies,
    )
    policies_to_train: Any = setting(
        None,
        "the policies that learn: names, or a function of the name; the others stay as they are; None: all",
        validators.to_train,
        read=rllib_values.names_of_policies,
    )
    per_policy: Any = setting(
        (), "settings that differ by policy: {policy: {setting: value}}", validators.per_policy
    )
    seed: int = setting(
        0, "the run's random seed; None draws one", count(0, UINT32), read=rllib_values.drawn_seed
    )
    total_env_steps: int = setting(
        1_000_000,
        "environment steps to train for, rounded up to whole iterations",
        count(most=INT64),
    )
    num_envs: int | None = setting(
        None, "environments stepped side by side (40)", count(optional=True)
    )
    rollout_length: int | None = setting(
        None, "steps of each environment in one iteration (100)", count(optional=True)
    )
    train_batch_size: int | None = setting(
        None,
        "environment steps in one iteration: num_envs * rollout_length (4000)",
        count(optional=True),
    )
    minibatch_size: int = setting(128, "rows of one gradient step", count())
    num_epochs: int = setting(30, "passes over each iteration's rows", count())
    lr: Any = setting(
        5e-5, "learning rate, or a schedule [[env step, value], ...]", schedule(), traced=True
    )
    gamma: float = setting(0.99, "discount", number(0, 1), traced=True)
    lambda_: float = setting(
        1.0, "lambda of generalised advantage estimation", number(0, 1), traced=True
    )
    clip_param: float = setting(
        0.3, "the surrogate's ratio is clipped to 1 +- this", number(0), traced=True
    )
    vf_clip_param: float | None = setting(
        10.0,
        "bound of the value's clipping (see value_clip); None: no clipping",
        number(0, optional=True),
        traced=True,
    )
    vf_loss_coeff: float = setting(1.0, "weight of the value loss", number(0), traced=True)
    entropy_coeff: Any = setting(
        0.0, "weight of the entropy bonus, or a schedule", schedule(), traced=True
    )
    use_kl_loss: bool = setting(True, "whether KL(old || new) is penalised", flag)
    kl_coeff: float = setting(
        0.2, "the KL penalty's first coefficient; adapts towards kl_target", number(0), traced=True
    )
    kl_target: float = setting(
        0.01, "the KL in nats that an iteration should move by", number(0), traced=True
    )
    grad_clip: float | None = setting(
        None,
        "bound of the gradient's global norm; None: no clipping",
        number(0, open_low=True, optional=True),
        traced=True,
    )
    adam_epsilon: float = setting(1e-8, "Adam's epsilon", number(0, open_low=True), traced=True)
    normalize_advantages: str | None = setting(
        "batch",
        "standardise advantages over the policy's batch, each minibatch, or None",
        one_of("batch", "minibatch", None),
    )
    value_clip: str | None = setting(
        "loss",
        "clip the squared error (loss), the value's move (prediction), or nothing",
        one_of("loss", "prediction", None),
    )
    observation_filter: str | None = setting(
        None,
        "MeanStdFilter: observations by their running mean and standard deviation; or None",
        one_of(*FILTERS),
        read=rllib_values.no_filter,
    )
    normalize_actions: bool = setting(
        True, "Box actions: [-1, 1] of the policy is the space's low to high, clipped", flag
    )
    clip_actions: bool = setting(
        False, "Box actions: clip to the space's bounds, where they are not normalized", flag
    )
    optimizer: Callable | str | None = setting(
        None,
        "module:name or a function, from learning rate to optax transformation; None: Adam",
        validators.optimizer,
        read=rllib_values.no_options,
        kind=validators.OPTIMIZER,
    )
    shuffle_blocks: int | None = setting(
        None,
        "blocks of environments that minibatches draw equally from; None: up to 8",
        count(optional=True),
    )
    metrics_num_episodes_for_smoothing: int = setting(
        100, "finished episodes that statistics are over", count()
    )
    callbacks: Any = setting(
        (),
        "hooks of episodes and of the run: module:Class, a class, an instance, or several",
        read=validators.several,
        kind=CALLBACKS,
    )
