"""Rewards that PPO learns from: the environment's, a model's intrinsic ones, and their scale."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.on_policy import Iteration
from jaxrl.algorithms.ppo.clipped_rewards import clipped
from jaxrl.algorithms.ppo.hypers import PPOSpec
from jaxrl.algorithms.ppo.update import PPOState
from jaxrl.core.errors import UsageError
from jaxrl.core.types import PolicyId, PyTree
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.ops.collectives import total
from jaxrl.ops.running_stats import RunningMeanStd, discounted_returns, scale_rewards
from jaxrl.rollout.steps import Trajectory

Prepared = tuple[PPOState, Trajectory, PyTree, dict[str, jax.Array]]


def check_rewards_itself(config: Any, policy: PolicyId, policy_spec: PolicySpec) -> None:
    """Refuses settings of intrinsic rewards for a model that gives none."""
    if policy_spec.rewards_itself:
        return
    for name, default in (("normalize_intrinsic_rewards", False), ("intrinsic_reward_coeff", 1.0)):
        if (value := getattr(config, name)) != default:
            raise UsageError(
                f"{name}={value}: the model of policy {policy!r} gives no intrinsic reward; one of "
                "your own with intrinsic_reward(params, trajectory) does (docs/exploration.md)"
            )


def prepare_rewards(
    spec: PPOSpec, learner: PPOState, trajectory: Trajectory, iteration: Iteration
) -> Prepared:
    """(learner, trajectory, returns, metrics): the rewards of an iteration, ready to learn from.

        r = clipped extrinsic + intrinsic_reward_coeff * intrinsic / std(G of intrinsic)
        r / std(G of r)

    with the running standard deviation of the discounted return G, the first division with
    `normalize_intrinsic_rewards` alone, the second with `normalize_returns` (see `scale_rewards`).
    """
    if spec.clip_rewards is not None:
        reward = clipped(trajectory.reward, spec.clip_rewards)
        trajectory = trajectory.replace(reward=reward, return_before=None)
    returns = iteration.returns  # of intrinsic rewards as well, where they are scaled
    if not spec.normalize_intrinsic_rewards:
        returns = {"total": returns}
    metrics: dict[str, jax.Array] = {}
    if spec.policy_spec.rewards_itself:
        intrinsic = _intrinsic_rewards(spec, learner, trajectory)
        if spec.normalize_intrinsic_rewards:
            intrinsic, last, stats = _scaled(
                spec,
                trajectory.replace(reward=intrinsic, return_before=None),
                iteration,
                returns["intrinsic"],
                learner.intrinsic_filter,
            )
            learner = learner.replace(intrinsic_filter=stats)
            returns = {**returns, "intrinsic": last}
        intrinsic = iteration.hypers.at(iteration.env_steps).intrinsic_reward_coeff * intrinsic
        trajectory = trajectory.replace(reward=trajectory.reward + intrinsic)
        rows = total(trajectory.active.astype(jnp.float32), spec.axis_name)
        added = total(intrinsic, spec.axis_name)
        metrics["intrinsic_reward_mean"] = added / jnp.maximum(rows, 1.0)
    if spec.normalize_returns:
        rewards, last, stats = _scaled(
            spec, trajectory, iteration, returns["total"], learner.return_filter
        )
        learner = learner.replace(return_filter=stats)
        trajectory, returns = trajectory.replace(reward=rewards), {**returns, "total": last}
    if not spec.normalize_intrinsic_rewards:
        returns = returns["total"]
    return learner, trajectory, returns, metrics


def _intrinsic_rewards(spec: PPOSpec, learner: PPOState, trajectory: Trajectory) -> jax.Array:
    """The model's intrinsic rewards, f32[T, E, M], before it learns from this trajectory."""
    policy_spec = spec.policy_spec
    model_trajectory = trajectory.replace(
        obs=policy_spec.read(learner.filter, trajectory.obs, trajectory.inputs),
        next_obs=policy_spec.read_alone(learner.filter, trajectory.next_obs),
    )
    intrinsic = jnp.asarray(policy_spec.model.intrinsic_reward(learner.params, model_trajectory))
    if intrinsic.shape != trajectory.reward.shape:
        raise UsageError(
            f"intrinsic_reward(params, trajectory) must have the shape "
            f"{list(trajectory.reward.shape)} of trajectory.reward, not {list(intrinsic.shape)}"
        )
    return jnp.where(trajectory.active, intrinsic, 0.0)


def _scaled(
    spec: PPOSpec,
    trajectory: Trajectory,
    iteration: Iteration,
    before: jax.Array,
    stats: RunningMeanStd,
) -> tuple[jax.Array, jax.Array, RunningMeanStd]:
    """(rewards in units of the return's deviation, returns for the next iteration, stats)."""
    gamma, rewards = iteration.hypers.gamma, trajectory.reward
    if trajectory.return_before is not None:
        rewards = rewards + gamma * trajectory.return_before
    returns, last_returns = discounted_returns(
        before, rewards, trajectory.done, gamma, trajectory.waited
    )
    rewards, stats = scale_rewards(
        stats, trajectory.reward, returns, trajectory.active, spec.axis_name
    )
    return rewards, last_returns, stats
