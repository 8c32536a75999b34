"""`PPOConfig`: every setting of a PPO training, by RLlib's names and with RLlib's defaults."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from jaxrl.algorithms import sharding
from jaxrl.algorithms.config import AlgorithmConfig, algorithm_config, make_env
from jaxrl.algorithms.model_config import NETWORK
from jaxrl.algorithms.ppo.clipped_rewards import check_clip, read_clip
from jaxrl.algorithms.ppo.fast import fast_settings
from jaxrl.algorithms.ppo.hypers import Hypers
from jaxrl.algorithms.ppo.keywords import PPOKeywords, TunedKeywords
from jaxrl.algorithms.ppo.optimizer import (
    GLOBAL_NORM,
    GRAD_CLIPS,
    OPTIMIZER,
    check_optimizer,
    optimizer_of,
)
from jaxrl.algorithms.ppo.tuned import resolve_tuned
from jaxrl.algorithms.rllib_values import read_settings
from jaxrl.algorithms.validators import schedule
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import count, flag, number, one_of, setting
from jaxrl.core.frozen import freeze
from jaxrl.core.types import PolicyId


@algorithm_config
class PPOConfig(AlgorithmConfig):
    """Everything about a training with PPO: one object, or one dict of the same names.

    `train_batch_size = num_envs * rollout_length`: any two give the third, one alone rescales
    another (`num_envs` alone the rollout's length, either of the others the number of
    environments).

    Seven settings are not RLlib's, and off by default:

    - action_distribution: Beta (Chou et al. 2017), or a Gaussian squashed by tanh (Haarnoja et al.
      2018).
    - dual_clip: Ye et al. 2020, eq. 5; they use 3.
    - target_kl: SB3's, where it is a setting of the same name; not `kl_target`, which the KL
      penalty adapts to.
    - normalize_returns: as PPO2's VecNormalize and Gymnasium's NormalizeReward do, with running
      statistics. It can harm where most rewards are negative: values begin at 0, so states that
      were never seen look best, and the policy goes there.
    - center_values: the cure for that; it takes away the exploration that comes of it, too.
    - intrinsic_reward_coeff, normalize_intrinsic_rewards: for a model with `intrinsic_reward`, as
      random network distillation has it (Burda et al. 2018).
    """

    algorithm = "jaxrl.algorithms.ppo.ppo:make_ppo"
    hypers_class = Hypers
    one_for_all = AlgorithmConfig.one_for_all | {"shuffle_blocks", "target_kl"}
    initial_numbers = frozenset({"kl_coeff"})

    minibatch_size: int = setting(128, "rows of one gradient step", count())
    num_epochs: int = setting(30, "passes over each iteration's rows", count())
    shuffle_blocks: int | None = setting(
        None,
        "blocks of environments that minibatches draw equally from; None: up to 8",
        count(optional=True),
    )
    lr: Any = setting(
        5e-5, "learning rate, or a schedule [[env step, value], ...]", schedule(), traced=True
    )
    gamma: float = setting(0.99, "discount", number(0, 1), traced=True)
    lambda_: float = setting(
        1.0, "lambda of generalised advantage estimation", number(0, 1), traced=True
    )
    use_critic: bool = setting(
        True,
        "whether a value function is learned as the baseline of advantages; False: advantages are "
        "discounted sums of rewards (docs/ppo.md)",
        flag,
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
    value_clip: str | None = setting(
        "loss",
        "clip the squared error (loss), the value's move (prediction), or nothing",
        one_of("loss", "prediction", None),
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
    normalize_advantages: str | None = setting(
        "batch",
        "standardise advantages over the policy's batch, each minibatch, or None",
        one_of("batch", "minibatch", None),
    )
    clip_rewards: float | str | None = setting(
        None,
        "rewards to learn from: their sign (sign, or True), or clipped to +- a number; None: as "
        "they are",
        check_clip,
        read=read_clip,
    )
    normalize_returns: bool = setting(
        False,
        "whether rewards are divided by the running standard deviation of the discounted return; "
        "where most rewards are negative and the world has no walls, see center_values",
        flag,
    )
    center_values: bool = setting(
        False,
        "whether the mean of the values is solved for in each iteration and not learned, so that "
        "unseen states do not look better than seen ones (docs/ppo.md)",
        flag,
    )
    dual_clip: float | None = setting(
        None,
        "the surrogate's loss of a negative advantage A is at most this times -A; None: no bound",
        number(1, open_low=True, optional=True),
        traced=True,
    )
    target_kl: float | None = setting(
        None,
        "an iteration's gradient steps end where a minibatch's KL is above 1.5 times this; None: "
        "never",
        number(0, open_low=True, optional=True),
    )
    intrinsic_reward_coeff: Any = setting(
        1.0,
        "weight of the model's intrinsic reward, or a schedule",
        schedule(),
        traced=True,
    )
    normalize_intrinsic_rewards: bool = setting(
        False,
        "whether the model's intrinsic reward is divided by the running standard deviation of its "
        "discounted return, before intrinsic_reward_coeff",
        flag,
    )
    optimizer: Callable | str | None = setting(
        None,
        "module:name or a function, from learning rate to optax transformation; None: Adam",
        check_optimizer,
        kind=OPTIMIZER,
    )
    adam_epsilon: float = setting(1e-8, "Adam's epsilon", number(0, open_low=True), traced=True)
    grad_clip: float | None = setting(
        None,
        "bound of the gradient's global norm; None: no clipping",
        number(0, open_low=True, optional=True),
        traced=True,
    )
    grad_clip_by: str = setting(
        GLOBAL_NORM,
        "what grad_clip bounds: the global_norm of all arrays together, the norm of each array, or "
        "the value of each number",
        one_of(*GRAD_CLIPS),
    )

    def check_together(self) -> None:
        blocks = sharding.blocks_of(self)
        if self.num_envs % blocks or self.minibatch_size % blocks:
            raise UsageError(
                f"shuffle_blocks={self.shuffle_blocks} must divide num_envs={self.num_envs} and "
                f"minibatch_size={self.minibatch_size}"
            )

    def check_policy(self, policy: PolicyId, num_agents: int) -> None:
        optimizer_of(self.optimizer)
        if self.center_values and not self.use_critic:
            raise UsageError("use_critic=False leaves no values for center_values=True: give one")
        rows = self.train_batch_size * num_agents
        if self.minibatch_size > rows:
            raise UsageError(
                f"minibatch_size={self.minibatch_size} is more than the batch of policy "
                f"{policy!r}, {rows} rows (train_batch_size={self.train_batch_size})"
            )

    @classmethod
    def tuned(cls, env: Any, env_args: Any = (), **changes: Unpack[TunedKeywords]) -> "PPOConfig":
        """The environment's own tuned settings (`env.tuned`), with `changes` on top.

        For an environment without any, those of `fast`. A `model` or a setting of the built-in
        networks among the changes (`use_gru=True`) replaces a tuned `model`, and `per_policy`
        leaves the tuned settings that it does not name; see `jaxrl.algorithms.ppo.tuned`.
        """
        tuned = getattr(make_env(env, freeze(env_args))[0], "tuned", None)
        if not tuned:
            return cls.fast(env, env_args, **changes)
        plain = cls(env=env, env_args=env_args)
        named = read_settings(changes, NETWORK, cls.__name__)
        tuned, named = resolve_tuned(plain, tuned, named)
        return plain.replace(**tuned).replace(**named)

    @classmethod
    def fast(cls, env: Any, env_args: Any = (), **changes: Unpack[TunedKeywords]) -> "PPOConfig":
        """Settings that suit any compiled environment, with `changes` on top.

        See `jaxrl.algorithms.ppo.fast`. The learning rate falls over `total_env_steps`, and the
        sizes follow `num_envs`. It turns on `normalize_returns`, which can harm where most
        rewards are negative and the world has no walls: compare a run with
        `normalize_returns=False`, or with `center_values=True`.
        """
        chosen: Mapping[str, Any] = read_settings(changes, NETWORK, cls.__name__)
        plain = cls(env=env, env_args=env_args, policies=chosen.get("policies"))
        return plain.replace(**{**chosen, **fast_settings(plain, chosen)})

    def replace(self, **changes: Unpack[PPOKeywords]) -> "PPOConfig":
        """A copy with `changes`; of the three sizes, those not named follow from those that are."""
        return super().replace(**changes)
