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

A stale rollout, which weights before the last update played, is a behaviour as well: its rows get
the distributions and values of the weights that learn from them.
"""

import jax
import jax.numpy as jnp

from jaxrl.algorithms.ppo.batch import Batch, Minibatches, batch_layout, make_batch
from jaxrl.algorithms.ppo.hypers import PPOSpec
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.ops.distributions import Distribution
from jaxrl.ops.explored import Explored, is_noise, learned_of, policy_of
from jaxrl.ops.packing import pack
from jaxrl.rollout.steps import Trajectory

MAX_IMPORTANCE = 1.0
ROWS_AT_ONCE = 512  # that are evaluated, at least: every round of a compiled loop has its cost


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


def as_if_played_now(spec: PPOSpec, weights: PolicyWeights, trajectory: Trajectory) -> Trajectory:
    """The trajectory [T, E, M, ...] with the distributions and values of `weights`.

    `log_prob` remains that of the behaviour. A `next_value` that repeats the next row's value
    changes with it. Where agents wait, values stay as they were played.
    """
    nothing = jnp.zeros_like(trajectory.value)
    played = trajectory.replace(distribution=policy_of(trajectory.distribution))
    batch = make_batch(spec, weights.filter, played, (nothing, nothing))
    distribution, value = _evaluated(spec, weights, batch, trajectory.value.shape)
    next_value = trajectory.next_value
    if trajectory.waited is None:
        moved = value - trajectory.value
        following = jnp.concatenate([moved[1:], jnp.zeros_like(moved[:1])])
        next_value = next_value + jnp.where(trajectory.done, 0.0, following)
    else:
        value = trajectory.value
    if isinstance(trajectory.distribution, Explored):
        distribution = trajectory.distribution.replace(policy=distribution)
    return trajectory.replace(
        distribution=distribution,
        value=value,
        next_value=next_value,
        log_prob=behaviour_log_prob(trajectory),
    )


def _evaluated(
    spec: PPOSpec, weights: PolicyWeights, batch: Batch, shape: tuple[int, ...]
) -> tuple[Distribution, jax.Array]:
    """(distributions, values) of a batch's rows by `weights`, [T, E, M, ...].

    Args:
        shape: (T, E, M).
    """
    layout = batch_layout(spec.policy_spec, shape)
    size = layout.pieces_per_block(max(spec.minibatch_size, ROWS_AT_ONCE), 1, 1)
    count = -(-layout.num_pieces // size)
    pieces = (jnp.arange(count * size) % layout.num_pieces).reshape(count, size)
    rows = Minibatches(pack(batch.replace(carry=None), 1), batch.carry, layout, pieces, None)

    def evaluate(pieces):
        minibatch = rows.gather(pieces)
        return spec.policy_spec.evaluate_actions(
            weights.params,
            minibatch.obs,
            minibatch.action_mask,
            minibatch.carry,
            minibatch.is_first,
            minibatch.waited,
        )

    def by_step(leaf):
        """[count, size, ...] or of sequences [count, L, size, ...], as [T, E, M, ...]."""
        rest = leaf.shape[3 if layout.in_sequences else 2 :]
        leaf = leaf.reshape(count, -1, size, *rest).swapaxes(1, 2)
        leaf = leaf.reshape(count * size, -1, *rest)[: layout.num_pieces]
        leaf = leaf.reshape(layout.number, layout.width, -1, *rest).swapaxes(1, 2)
        return leaf.reshape(-1, *shape[1:], *rest)[: shape[0]]

    return jax.tree.map(by_step, jax.lax.map(evaluate, pieces))
