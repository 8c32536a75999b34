"""PPO with `use_critic=False`: advantages are discounted returns, and no value is learned."""

import jax
import jax.numpy as jnp

from jaxrl.algorithms.ppo.batch import advantages_and_targets
from jaxrl.algorithms.ppo.hypers import Hypers, PPOSpec
from jaxrl.rollout.steps import Trajectory


def without_critic(
    spec: PPOSpec, trajectory: Trajectory, hypers: Hypers
) -> tuple[Trajectory, tuple[jax.Array, jax.Array]]:
    """(trajectory, (advantages, targets)) where every value is 0, as REINFORCE has it.

        A[t] = r[t] + gamma (1 - ended[t]) A[t+1],    A[T] = 0

    That is `gae` with values of 0 and lambda 1. No value stands for what comes after a time limit
    or after the rollout's last step, so a sum ends there as it does where an episode terminates.

    Returns:
        The trajectory with values of 0; advantages f32[T, E, M], standardised if that is over the
        batch; and targets of 0, from which the values of 0 have no error.
    """
    nothing = jnp.zeros_like(trajectory.value)
    trajectory = trajectory.replace(value=nothing, next_value=nothing)
    sums, _ = advantages_and_targets(spec, trajectory, hypers.replace(lambda_=1.0))
    return trajectory, (sums, nothing)
