"""PPO as (init, collect, learn): rollouts of all policies together, then each policy's update on its own rows."""

import functools
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp

from jaxrl.core.quick import quick
from jaxrl.core.spaces import Space
from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.loop.callbacks import postprocess, traced_callbacks
from jaxrl.loop.episodes import Window, no_episodes, report
from jaxrl.loop.policies import Grouping, PolicyGroup, PolicyMap, each_policy, group_policies
from jaxrl.loop.rollout import Rollout, play
from jaxrl.loop.runner import UNDECLARED_WAITS, Algorithm, Metrics, Runner
from jaxrl.loop.stage import Stage, Worlds, open_worlds, set_stage
from jaxrl.loop.turns import nothing_open
from jaxrl.ops.advantages import over_axis
from jaxrl.ppo.config import PPOConfig
from jaxrl.ppo.hypers import Hypers
from jaxrl.ppo.learner import Structure, init_learner, learn_policy
from jaxrl.ppo.network import make_player
from jaxrl.ppo.settings import optimizer_of
from jaxrl.ppo.splitting import blocks_of

HypersByPolicy = dict[PolicyId, Hypers] | None


def make_ppo(config: PPOConfig, *, axis_name: str | None = None) -> Algorithm:
    """PPO over the configuration's environment and policies.

    Args:
        axis_name: a mapped axis over which the environments are split: gradients, the advantages' moments and the KL
            are then taken over it as well, and so is what is reported. Each member holds num_envs / size of the axis
            environments.

    Returns:
        An `Algorithm` of pure functions; nothing is computed here.

    Raises:
        UsageError: settings that cannot work, in one line.
    """
    env, default_params, policies, trained = config.setup()

    structure = functools.partial(_structure, config, trained, policies)
    grouping = group_policies(env, default_params, policies, structure)
    players = tuple(group.structure.player for group in grouping.groups)
    stage = set_stage(env, default_params, grouping, players, traced_callbacks(config.callbacks))

    def init(key: Key, hypers: HypersByPolicy = None, env_params: PyTree = None) -> Runner:
        env_params = default_params if env_params is None else env_params
        world_key, init_key = jax.random.split(jax.random.fold_in(key, 0))
        learners = _init_learners(_by_group(grouping, config, hypers, init_key))
        worlds = _first_worlds(stage, learners, world_key, _env_index(config, axis_name), env_params)
        names = (*stage.metrics, *stage.custom_metrics)
        size = config.metrics_num_episodes_for_smoothing
        window = no_episodes(len(env.agents), names, size, always_active=stage.always_active)
        return Runner(key, jnp.int32(0), learners, worlds, Window(window, jnp.int32(0)))

    def collect(runner: Runner, weights: PyTree = None, env_params: PyTree = None) -> tuple[Runner, Rollout]:
        acting = tuple(learner.weights for learner in runner.learners) if weights is None else weights
        env_params = default_params if env_params is None else env_params
        play_key, _ = _update_keys(runner)
        places = runner.worlds, play_key, _env_index(config, axis_name)
        worlds, rollout = play(stage, acting, *places, config.rollout_length, env_params)
        return runner.replace(worlds=worlds), rollout

    def learn(runner: Runner, rollout: Rollout, hypers: HypersByPolicy = None) -> tuple[Runner, Metrics]:
        _, learn_key = _update_keys(runner)
        env_steps = runner.num_updates.astype(jnp.float32) * config.train_batch_size
        learners, returns = list(runner.learners), list(runner.worlds.returns)
        metrics = [{} for _ in grouping.groups]
        for g, (group, (group_hypers, keys)) in enumerate(_by_group(grouping, config, hypers, learn_key)):
            if group.structure.trained:
                update = _update_of(group, stage, axis_name)
                trajectory = postprocess(stage.callbacks, group.policies, rollout.trajectories[g])
                learners[g], returns[g], metrics[g] = each_policy(update, in_axes=(0, 1, 0, 0, 0, None))(
                    runner.learners[g], trajectory, returns[g], group_hypers, keys, env_steps
                )
                metrics[g] |= _undeclared_waits(stage, rollout, g, axis_name)
        window, episodes = report(runner.window, rollout.reached, rollout.over, rollout.hist_data, axis_name)
        state = tuple(learners), runner.worlds.replace(returns=tuple(returns)), window
        return Runner(runner.key, runner.num_updates + 1, *state), Metrics(
            episodes, over_axis(rollout.agent_steps, axis_name), tuple(metrics)
        )

    return Algorithm(init, collect, learn, stage, default_params, config.train_batch_size, trained)


def _structure(
    config: PPOConfig,
    trained: tuple[PolicyId, ...],
    policies: PolicyMap,
    policy: PolicyId,
    observation_space: Space,
    action_space: Space,
) -> Structure:
    """What one policy's own configuration makes static."""
    policy_config = config.for_policy(policy)
    settings = {name: getattr(policy_config, name) for name in Structure._fields[3:] if name != "always_active"}
    player = make_player(policy_config, observation_space, action_space, len(policies[policy]))
    settings["optimizer"] = optimizer_of(policy_config.optimizer)
    return Structure(player, policy in trained, blocks_of(policy_config), **settings)


def _init_learners(by_group: Iterable[tuple[PolicyGroup, tuple]]) -> tuple[PyTree, ...]:
    """The start of every group's learning; `by_group` as of `_by_group`."""
    return tuple(jax.vmap(functools.partial(init_learner, group.structure))(*own) for group, own in by_group)


def _update_of(group: PolicyGroup, stage: Stage, axis_name: str | None) -> Callable:
    """`learn_policy` of a group's policies."""
    structure = group.structure._replace(always_active=stage.always_active)
    return functools.partial(learn_policy, structure, axis_name)


def _undeclared_waits(
    stage: Stage, rollout: Rollout, group: int, axis_name: str | None
) -> dict[str, jax.Array]:
    """How often an agent began or ended a wait, {name: f32[N]}; {} where that cannot be or is allowed.

    Learning from such rows would be wrong: the environment must have `acting_agents`. Agents that are absent for a
    whole episode do not wait.
    """
    if stage.always_active or stage.waits:
        return {}
    active, ended = rollout.trajectories[group].active, rollout.trajectories[group].ended
    acted = jax.vmap(stage.grouping.gather)(rollout.reached.agent_steps)[group]  # steps of the episode so far
    stays_away = ~ended[:-1] & ~active[1:]
    joins_late = ~active[:-1] & active[1:] & (acted[1:] == 1)
    waits = (stays_away | joins_late) & ~rollout.over[:-1, None, :, None]
    number = jnp.sum(waits, axis=(0, 2, 3), dtype=jnp.float32)
    return {UNDECLARED_WAITS: over_axis(number, axis_name)}


def _first_worlds(
    stage: Stage, learners: tuple[PyTree, ...], key: Key, env_index: jax.Array, env_params: PyTree
) -> Worlds:
    """Every environment at the start of its first episode, with what learning keeps of it."""
    worlds = open_worlds(stage, key, env_index, env_params)
    worlds = worlds.replace(returns=_no_returns(stage.grouping, len(env_index)))
    weights = tuple(learner.weights for learner in learners)
    return worlds.replace(unfinished=nothing_open(stage, weights, worlds, env_params))


def _no_returns(grouping: Grouping, num_envs: int) -> tuple[jax.Array | tuple, ...]:
    """By group, f32[N, E, M]; () where rewards are left as they are."""
    return tuple(
        jnp.zeros(group.shape(num_envs)) if group.structure.normalize_returns else () for group in grouping.groups
    )


def _by_group(grouping: Grouping, config: PPOConfig, hypers: HypersByPolicy, key: Key):
    """(group, (hypers, keys)), leaves [N, ...]; a policy's key depends on its place in the map, not on its group."""
    hypers = config.hypers() if hypers is None else hypers
    for group in grouping.groups:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(hypers[policy] for policy in group.policies))
        index = jnp.array([grouping.policies.index(policy) for policy in group.policies])
        yield group, (stacked, jax.vmap(lambda i: jax.random.fold_in(key, i))(index))


def _update_keys(runner: Runner) -> tuple[Key, Key]:
    """(play_key, learn_key) of the update at hand; 0 is the initialisation's."""
    return tuple(jax.random.split(jax.random.fold_in(quick(runner.key), runner.num_updates + 1)))


def _env_index(config: PPOConfig, axis_name: str | None) -> jax.Array:
    """The global indices of the environments held here, i32[E]."""
    if axis_name is None:
        return jnp.arange(config.num_envs)
    held = config.num_envs // jax.lax.axis_size(axis_name)
    return jnp.arange(held) + jax.lax.axis_index(axis_name) * held
