"""Settings of a policy gradient beyond RLlib's PPO, each off by default and with its source."""

import dataclasses

from jaxrl.core.fields import flag, number, one_of, setting
from jaxrl.ops.distributions import ACTION_DISTRIBUTIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refinements:
    """Part of `PPOConfig`.

    action_distribution: Beta (Chou et al. 2017), or a Gaussian squashed by tanh (Haarnoja et al.
    2018).
    dual_clip: Ye et al. 2020, eq. 5; they use 3.
    target_kl: SB3's, where it is a setting of the same name; not `kl_target`, which the KL penalty
    adapts to.
    normalize_returns: as PPO2's VecNormalize and Gymnasium's NormalizeReward do, with running
        statistics. It harmed a task of 25-step episodes that the clock ends, with gamma 0.99; the
        cause is not known yet.
    """

    action_distribution: str = setting(
        "gaussian",
        "Box actions: gaussian, or beta or squashed_gaussian within bounds",
        one_of(*ACTION_DISTRIBUTIONS),
    )
    dual_clip: float | None = setting(
        None,
        "the surrogate's loss of a negative advantage A is at most this times -A; None: no bound",
        number(1, open_low=True, optional=True),
        traced=True,
    )
    target_kl: float | None = setting(
        None,
        "an iteration's gradient steps end where a minibatch's KL is above 1.5 times this; None: never",
        number(0, open_low=True, optional=True),
    )
    normalize_returns: bool = setting(
        False,
        "whether rewards are divided by the running standard deviation of the discounted return; it may harm where the "
        "clock ends episodes long before 1 / (1 - gamma) steps, so compare (docs/ppo.md)",
        flag,
    )
