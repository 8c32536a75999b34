"""On-policy algorithms: all that surrounds the update of one policy on its own rollout.

`on_policy` makes an `Algorithm` of two functions, how a policy's learning begins and how it is
updated. Whatever else an algorithm needs (several updates in a rollout's time, data of its own)
is written out as in `jaxrl.algorithms.ppo.ppo`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.core.fast_prng import to_fast_key
from jaxrl.core.spaces import Space
from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.ops.collectives import over_axis
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec, make_rollout_spec, reset_envs
from jaxrl.rollout.episode_callbacks import postprocess, traced_callbacks
from jaxrl.rollout.episode_stats import Window, no_episodes, report
from jaxrl.rollout.policy_map import Grouping, each_policy, group_policies
from jaxrl.rollout.rollout import Rollout, play
from jaxrl.rollout.turns import nothing_open, undeclared_waits

HypersByPolicy = dict[PolicyId, PyTree] | None


class LearnerState(struct.PyTreeNode):
    """What a policy learns with: the least that a run asks of an algorithm's own state."""

    params: PyTree
    opt_state: PyTree
    filter: PyTree = ()  # of the observations; () without a filter

    @property
    def weights(self) -> PolicyWeights:
        return PolicyWeights(self.params, self.filter)

    def with_weights(self, weights: PolicyWeights) -> "LearnerState":
        return self.replace(params=weights.params, filter=weights.filter)


class Structure(NamedTuple):
    """What makes policies alike; those with equal ones are stacked."""

    policy_spec: PolicySpec
    trained: bool


def on_policy(
    config: AlgorithmConfig,
    init_learner: Callable[[PolicySpec, PyTree, Key], PyTree],
    update_policy: Callable[..., tuple[PyTree, dict[str, jax.Array]]],
    *,
    axis_name: str | None = None,
    **shown: Any,
) -> Algorithm:
    """The algorithm that plays a rollout, and updates each policy on its own rows of it.

    Args:
        init_learner: (policy_spec, hypers, key) -> learner, which has `weights` and
            `with_weights(weights)`, as `LearnerState`.
        update_policy: (policy_spec, learner, trajectory, hypers, key, axis_name) ->
            (learner, {metric: f32[]}); the trajectory is [T, E, M, ...]. Sums over rows are to be
            taken over `axis_name` as well, by `jaxrl.ops.collectives.over_axis`.
        axis_name: a mapped axis over which the environments are split, or None.
        **shown: fields of `Algorithm` that say what people are shown, such as `headline_metrics`.
    """
    spec, default_params, trained = _who_plays(config)
    grouping, policy_specs = spec.grouping, spec.policy_specs

    def init(key: Key, hypers: HypersByPolicy = None, env_params: PyTree = None) -> RunnerState:
        hypers = config.hypers() if hypers is None else hypers
        env_params = default_params if env_params is None else env_params
        env_key, init_key = jax.random.split(jax.random.fold_in(key, 0))
        prepared = zip(policy_specs, by_group(grouping, hypers, init_key), strict=True)
        learners = tuple(
            jax.vmap(functools.partial(init_learner, policy_spec))(*numbers_and_keys)
            for policy_spec, numbers_and_keys in prepared
        )
        index = env_index(config.num_envs, axis_name)
        envs = _first_envs(spec, learners, env_key, index, env_params)
        size = config.metrics_num_episodes_for_smoothing
        return RunnerState(key, jnp.int32(0), learners, envs, empty_window(spec, size))

    def collect(
        runner: RunnerState, weights: PyTree = None, env_params: PyTree = None
    ) -> tuple[RunnerState, Rollout]:
        if weights is None:
            weights = tuple(learner.weights for learner in runner.learners)
        env_params = default_params if env_params is None else env_params
        play_key, _ = update_keys(runner)
        index, steps = env_index(config.num_envs, axis_name), config.rollout_length
        env_keys = jax.vmap(lambda i: jax.random.fold_in(play_key, i))(index)
        envs, rollout = play(spec, weights, runner.envs, env_keys, steps, env_params)
        return runner.replace(envs=envs), rollout

    def learn(
        runner: RunnerState, rollout: Rollout, hypers: HypersByPolicy = None
    ) -> tuple[RunnerState, Metrics]:
        hypers = config.hypers() if hypers is None else hypers
        _, learn_key = update_keys(runner)
        prepared = by_group(grouping, hypers, learn_key)
        learners, metrics = list(runner.learners), [{} for _ in prepared]
        for g, group in enumerate(grouping.groups):
            if group.structure.trained:
                update = functools.partial(update_policy, policy_specs[g], axis_name=axis_name)
                trajectory = postprocess(spec.callbacks, group.policies, rollout.trajectories[g])
                learners[g], metrics[g] = each_policy(update, in_axes=(0, 1, 0, 0))(
                    learners[g], trajectory, *prepared[g]
                )
                metrics[g] |= undeclared_waits(spec, rollout, g, axis_name)
        window, episodes = report(
            runner.window, rollout.reached, rollout.episode_done, rollout.hist_data, axis_name
        )
        after = tuple(learners), runner.envs, window
        runner = RunnerState(runner.key, runner.num_updates + 1, *after)
        agent_steps = over_axis(rollout.agent_steps, axis_name)
        return runner, Metrics(episodes, agent_steps, tuple(metrics))

    size = config.train_batch_size
    return Algorithm(init, collect, learn, spec, default_params, size, trained, **shown)


def _who_plays(config: AlgorithmConfig) -> tuple[RolloutSpec, PyTree, tuple[PolicyId, ...]]:
    """(spec, the environment's numbers, the policies that learn)."""
    env, env_params, policies, trained = config.setup()

    def structure(policy: PolicyId, observation_space: Space, action_space: Space) -> Structure:
        spaces = observation_space, action_space
        policy_spec = config.policy_spec(policy, *spaces, len(policies[policy]))
        return Structure(policy_spec, policy in trained)

    grouping = group_policies(env, env_params, policies, structure)
    policy_specs = tuple(group.structure.policy_spec for group in grouping.groups)
    callbacks = traced_callbacks(config.callbacks)
    return (
        make_rollout_spec(env, env_params, grouping, policy_specs, callbacks),
        env_params,
        trained,
    )


def _first_envs(
    spec: RolloutSpec, learners: tuple[PyTree, ...], key: Key, index: jax.Array, env_params: PyTree
) -> EnvBatch:
    """Every environment at the start of its first episode."""
    envs = reset_envs(spec, key, index, env_params)
    weights = tuple(learner.weights for learner in learners)
    return envs.replace(unfinished=nothing_open(spec, weights, envs, env_params))


def by_group(
    grouping: Grouping, hypers: dict[PolicyId, PyTree], key: Key
) -> list[tuple[PyTree, Key]]:
    """(hypers, keys) of each group, [N, ...]; a key depends on the policy's place in the map."""
    found = []
    for group in grouping.groups:
        numbers = [hypers[policy] for policy in group.policies]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *numbers)
        index = jnp.array([grouping.policies.index(policy) for policy in group.policies])
        found.append((stacked, jax.vmap(lambda i: jax.random.fold_in(key, i))(index)))
    return found


def empty_window(spec: RolloutSpec, size: int) -> Window:
    """The statistics of recent episodes before the first one."""
    names = (*spec.metrics, *spec.custom_metrics)
    num_agents = len(spec.grouping.agents)
    episodes = no_episodes(num_agents, names, size, always_active=spec.always_active)
    return Window(episodes, jnp.int32(0))


def update_keys(runner: RunnerState) -> tuple[Key, Key]:
    """(play_key, learn_key) of the present update; number 0 is the initialisation's."""
    key = jax.random.fold_in(to_fast_key(runner.key), runner.num_updates + 1)
    return tuple(jax.random.split(key))


def env_index(num_envs: int, axis_name: str | None) -> jax.Array:
    """The global indices of the environments held here, i32[E]."""
    if axis_name is None:
        return jnp.arange(num_envs)
    held = num_envs // jax.lax.axis_size(axis_name)
    return jnp.arange(held) + jax.lax.axis_index(axis_name) * held
