"""PPO as (init, collect, learn): rollouts of all policies together, then each policy's update on its own rows."""

import functools
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp

from jaxrl.algorithms.base import (
    UNDECLARED_WAITS,
    Algorithm,
    HeadlineMetric,
    Metrics,
    RunnerState,
)
from jaxrl.algorithms.model_config import make_policy_spec
from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.algorithms.ppo.diagnostics import concerns
from jaxrl.algorithms.ppo.hypers import Hypers
from jaxrl.algorithms.ppo.summary import describe
from jaxrl.algorithms.ppo.update import LearnerSpec, init_learner, update_policy
from jaxrl.algorithms.sharding import blocks_of
from jaxrl.algorithms.validators import optimizer_of
from jaxrl.core.fast_prng import to_fast_key
from jaxrl.core.spaces import Space
from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.ops.collectives import over_axis
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec, make_rollout_spec, reset_envs
from jaxrl.rollout.episode_callbacks import postprocess, traced_callbacks
from jaxrl.rollout.episode_stats import Window, no_episodes, report
from jaxrl.rollout.policy_map import Grouping, PolicyGroup, PolicyMap, each_policy, group_policies
from jaxrl.rollout.rollout import Rollout, play
from jaxrl.rollout.turns import nothing_open

HypersByPolicy = dict[PolicyId, Hypers] | None
HEADLINE_METRICS = (
    HeadlineMetric(
        "mean_kl_loss", "KL divergence of an update, nats", label="kl", target="kl_target"
    ),
    HeadlineMetric("entropy", "entropy, nats", label="entropy", form=".2f", linear=True),
    HeadlineMetric("vf_loss", "value loss"),
)
ROOT_CAUSE_METRICS = ("policy_loss", "vf_loss", "vf_loss_unclipped", "entropy", "mean_kl_loss")
REPORTS = {
    "headline_metrics": HEADLINE_METRICS,
    "root_cause_metrics": ROOT_CAUSE_METRICS,
    "diagnostics": concerns,
    "describe": describe,
}


def make_ppo(config: PPOConfig, *, axis_name: str | None = None) -> Algorithm:
    """PPO over the configuration's environment and policies.

    Args:
        axis_name: a mapped axis over which the environments are split: gradients, the advantages'
            moments and the KL are then taken over it as well, and so is what is reported. Each
            member holds num_envs / size of the axis environments.

    Returns:
        An `Algorithm` of pure functions; nothing is computed here.

    Raises:
        UsageError: settings that cannot work, in one line.
    """
    env, default_params, policies, trained = config.setup()

    structure = functools.partial(_structure, config, trained, policies)
    grouping = group_policies(env, default_params, policies, structure)
    policy_specs = tuple(group.structure.policy_spec for group in grouping.groups)
    spec = make_rollout_spec(
        env, default_params, grouping, policy_specs, traced_callbacks(config.callbacks)
    )

    def init(key: Key, hypers: HypersByPolicy = None, env_params: PyTree = None) -> RunnerState:
        env_params = default_params if env_params is None else env_params
        world_key, init_key = jax.random.split(jax.random.fold_in(key, 0))
        learners = _init_learners(_by_group(grouping, config, hypers, init_key))
        envs = _first_envs(spec, learners, world_key, _env_index(config, axis_name), env_params)
        names = (*spec.metrics, *spec.custom_metrics)
        size = config.metrics_num_episodes_for_smoothing
        window = no_episodes(len(env.agents), names, size, always_active=spec.always_active)
        return RunnerState(key, jnp.int32(0), learners, envs, Window(window, jnp.int32(0)))

    def collect(
        runner: RunnerState, weights: PyTree = None, env_params: PyTree = None
    ) -> tuple[RunnerState, Rollout]:
        acting = (
            tuple(learner.weights for learner in runner.learners) if weights is None else weights
        )
        env_params = default_params if env_params is None else env_params
        play_key, _ = _update_keys(runner)
        places = runner.envs, play_key, _env_index(config, axis_name)
        envs, rollout = play(spec, acting, *places, config.rollout_length, env_params)
        return runner.replace(envs=envs), rollout

    def learn(
        runner: RunnerState, rollout: Rollout, hypers: HypersByPolicy = None
    ) -> tuple[RunnerState, Metrics]:
        _, learn_key = _update_keys(runner)
        env_steps = runner.num_updates.astype(jnp.float32) * config.train_batch_size
        learners, returns = list(runner.learners), list(runner.envs.returns)
        metrics = [{} for _ in grouping.groups]
        for g, (group, (group_hypers, keys)) in enumerate(
            _by_group(grouping, config, hypers, learn_key)
        ):
            if group.structure.trained:
                update = _update_of(group, spec, axis_name)
                trajectory = postprocess(spec.callbacks, group.policies, rollout.trajectories[g])
                learners[g], returns[g], metrics[g] = each_policy(
                    update, in_axes=(0, 1, 0, 0, 0, None)
                )(runner.learners[g], trajectory, returns[g], group_hypers, keys, env_steps)
                metrics[g] |= _undeclared_waits(spec, rollout, g, axis_name)
        window, episodes = report(
            runner.window, rollout.reached, rollout.over, rollout.hist_data, axis_name
        )
        state = tuple(learners), runner.envs.replace(returns=tuple(returns)), window
        return RunnerState(runner.key, runner.num_updates + 1, *state), Metrics(
            episodes, over_axis(rollout.agent_steps, axis_name), tuple(metrics)
        )

    functions = init, collect, learn
    return Algorithm(*functions, spec, default_params, config.train_batch_size, trained, **REPORTS)


def _structure(
    config: PPOConfig,
    trained: tuple[PolicyId, ...],
    policies: PolicyMap,
    policy: PolicyId,
    observation_space: Space,
    action_space: Space,
) -> LearnerSpec:
    """What one policy's own configuration makes static."""
    policy_config = config.for_policy(policy)
    settings = {
        name: getattr(policy_config, name)
        for name in LearnerSpec._fields[3:]
        if name != "always_active"
    }
    policy_spec = make_policy_spec(
        policy_config, observation_space, action_space, len(policies[policy])
    )
    settings["optimizer"] = optimizer_of(policy_config.optimizer)
    return LearnerSpec(policy_spec, policy in trained, blocks_of(policy_config), **settings)


def _init_learners(by_group: Iterable[tuple[PolicyGroup, tuple]]) -> tuple[PyTree, ...]:
    """The start of every group's learning; `by_group` as of `_by_group`."""
    return tuple(
        jax.vmap(functools.partial(init_learner, group.structure))(*own) for group, own in by_group
    )


def _update_of(group: PolicyGroup, spec: RolloutSpec, axis_name: str | None) -> Callable:
    """`update_policy` of a group's policies."""
    structure = group.structure._replace(always_active=spec.always_active)
    return functools.partial(update_policy, structure, axis_name)


def _undeclared_waits(
    spec: RolloutSpec, rollout: Rollout, group: int, axis_name: str | None
) -> dict[str, jax.Array]:
    """How often an agent began or ended a wait, {name: f32[N]}; {} where that cannot be or is allowed.

    Learning from such rows would be wrong: the environment must have `acting_agents`. Agents that
    are absent for a whole episode do not wait. A wait that begins exactly between two rollouts is
    not seen: whether the agent had ended before it is not kept.
    """
    if spec.always_active or spec.waits:
        return {}
    active, ended = rollout.trajectories[group].active, rollout.trajectories[group].ended
    stays_away = ~ended[:-1] & ~active[1:] & ~rollout.over[:-1, None, :, None]
    # Counted in the episode so far, so that the first step of a rollout needs no step before it.
    actions = jax.vmap(spec.grouping.gather)(rollout.reached.agent_steps)[group]
    steps = rollout.reached.length[:, None, :, None]
    joins_late = active & (actions == 1) & (steps > 1)
    kinds = (stays_away, joins_late)
    number = sum(jnp.sum(waits, axis=(0, 2, 3), dtype=jnp.float32) for waits in kinds)
    return {UNDECLARED_WAITS: over_axis(number, axis_name)}


def _first_envs(
    spec: RolloutSpec,
    learners: tuple[PyTree, ...],
    key: Key,
    env_index: jax.Array,
    env_params: PyTree,
) -> EnvBatch:
    """Every environment at the start of its first episode, with what learning keeps of it."""
    envs = reset_envs(spec, key, env_index, env_params)
    envs = envs.replace(returns=_no_returns(spec.grouping, len(env_index)))
    weights = tuple(learner.weights for learner in learners)
    return envs.replace(unfinished=nothing_open(spec, weights, envs, env_params))


def _no_returns(grouping: Grouping, num_envs: int) -> tuple[jax.Array | tuple, ...]:
    """By group, f32[N, E, M]; () where rewards are left as they are."""
    return tuple(
        jnp.zeros(group.shape(num_envs)) if group.structure.normalize_returns else ()
        for group in grouping.groups
    )


def _by_group(grouping: Grouping, config: PPOConfig, hypers: HypersByPolicy, key: Key):
    """(group, (hypers, keys)), leaves [N, ...]; a policy's key depends on its place in the map, not on its group."""
    hypers = config.hypers() if hypers is None else hypers
    for group in grouping.groups:
        stacked = jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *(hypers[policy] for policy in group.policies)
        )
        index = jnp.array([grouping.policies.index(policy) for policy in group.policies])
        yield group, (stacked, jax.vmap(lambda i: jax.random.fold_in(key, i))(index))


def _update_keys(runner: RunnerState) -> tuple[Key, Key]:
    """(play_key, learn_key) of the update at hand; 0 is the initialisation's."""
    return tuple(
        jax.random.split(jax.random.fold_in(to_fast_key(runner.key), runner.num_updates + 1))
    )


def _env_index(config: PPOConfig, axis_name: str | None) -> jax.Array:
    """The global indices of the environments held here, i32[E]."""
    if axis_name is None:
        return jnp.arange(config.num_envs)
    held = config.num_envs // jax.lax.axis_size(axis_name)
    return jnp.arange(held) + jax.lax.axis_index(axis_name) * held
