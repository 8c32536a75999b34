"""Learning from a behaviour that is not the policy: explorations, stale rollouts, recorded actions.

The objective is decoupled (Hilton et al. 2022, "Batch size-invariance for policy optimization").
With mu the behaviour that acted, pi_old the policy before the update, and pi the one that learns:

    rho = pi / pi_old              clipped to 1 - c .. 1 + c, as always
    w   = min(pi_old / mu, 1)      weighs the row; V-trace's truncation (Espeholt et al. 2018)

The weights belong to the surrogate, to the value's error, and to the moments by which advantages
are standardised. Then values and advantages are those of the policy's own choice of action, and
sum(w A) is 0 where the policy can gain nothing. PPO's own ratio, pi / mu, may begin outside of the
clip, where the gradient is 0: there a greedy behaviour leaves every row of a policy that is far
from deterministic.

Of a policy's own choice with noise (`GaussianNoise`) it is the noisy policy that learns: pi and
pi_old above are that noise around the means of the present and of the old policy. Then rho and w
are 1 at first however wide the noise is, and the gradient reaches the mean.
"""

import jax
import jax.numpy as jnp

from jaxrl.ops.distributions import Distribution
from jaxrl.ops.exploration import Explored, is_noise, learned_of, policy_of
from jaxrl.rollout.rollout import Trajectory

MAX_IMPORTANCE = 1.0


def behaviour_log_prob(trajectory: Trajectory) -> jax.Array:
    """The log-probability that each action was drawn with, f32[T, E, M]."""
    if trajectory.log_prob is None:
        return trajectory.distribution.log_prob(trajectory.action)
    return trajectory.log_prob


def as_if_by_policy(trajectory: Trajectory) -> Trajectory:
    """The trajectory [T, E, M, ...] of the policy, with the `importance` of rows by a behaviour."""
    policy = policy_of(trajectory.distribution)
    if policy is trajectory.distribution and trajectory.log_prob is None:
        return trajectory
    noise = _noise_of(trajectory.distribution)
    learned = learned_of(policy, noise)
    log_ratio = learned.log_prob(trajectory.action) - behaviour_log_prob(trajectory)
    importance = jnp.minimum(jnp.exp(log_ratio), MAX_IMPORTANCE)
    importance = jnp.where(trajectory.active, importance, 0.0)  # where nobody acted it may be NaN
    return trajectory.replace(
        distribution=policy, log_prob=None, importance=importance, noise=noise
    )


def _noise_of(distribution: Distribution) -> Distribution | None:
    """The behaviour that acted, where that is the policy's own choice with noise, else None."""
    acted = isinstance(distribution, Explored) and is_noise(distribution.behaviour)
    return distribution.behaviour if acted else None
