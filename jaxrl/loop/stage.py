"""Who plays where, and one turn of it: everybody acts, the environments step, and those that ended start again."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.env import (
    MultiAgentEnvironment,
    RawStep,
    agents_may_wait,
    is_stacked,
    raw_reset,
    raw_step,
    restart,
    stack_agents,
)
from jaxrl.core.quick import ordinary, quick
from jaxrl.core.types import Key, PyTree
from jaxrl.loop.callbacks import call_back, start_data
from jaxrl.loop.episodes import Episodes, advance, no_episodes
from jaxrl.loop.masks import check_masks, raw_action_mask
from jaxrl.loop.policies import Grouping, each_policy
from jaxrl.models.player import Context, Memory, Player, Weights
from jaxrl.ops.distributions import Distribution
from jaxrl.ops.seldom import if_needed

RESETS_AT_ONCE = 8


class Stage(NamedTuple):
    """Who plays where: everything static that a rollout needs."""

    env: MultiAgentEnvironment
    grouping: Grouping
    players: tuple[Player, ...]  # by group
    metrics: tuple[str, ...]  # the names in info["metrics"]
    callbacks: tuple = ()  # in the order in which they chain
    custom_metrics: tuple[str, ...] = ()  # the names that callbacks add to those
    always_active: bool = True  # whether every agent acts in every step

    @property
    def masked(self) -> bool:
        """Whether the environment says which actions are possible."""
        return hasattr(self.env, "action_mask")

    @property
    def waits(self) -> bool:
        """Whether agents may wait for their turn."""
        return agents_may_wait(self.env)


class Worlds(struct.PyTreeNode):
    """The environments between two rollouts."""

    state: PyTree  # [E, ...]
    obs: tuple[PyTree, ...]  # by group, [N, E, M, ...]
    running: Episodes  # [E]
    data: tuple[PyTree, ...] = ()  # by callback, [E, ...]
    memory: tuple[Memory, ...] = ()  # by group, [N, E, M, ...]
    returns: tuple[PyTree, ...] = ()  # by group, f32[N, E, M]  discounted so far, where an algorithm keeps them
    unfinished: tuple[PyTree, ...] = ()  # by group, `turns.Unfinished` [N, E, M, ...] where agents may wait


class Chance(NamedTuple):
    """The random numbers of one step of E environments, or with leading axes of many."""

    step_key: Key  # [E]
    reset_key: Key  # [E]  alike in all steps of a block: a reset folds `step` in
    step: jax.Array  # i32[]
    noise: tuple[jax.Array, ...]  # by group, f32[N, E, M, D]  what actions are sampled by


class Acted(NamedTuple):
    """What the policies of one group did in a step, [N, E, M, ...]."""

    action: PyTree  # as the policy has it
    distribution: Distribution
    value: jax.Array
    carry: PyTree  # of the model, after it
    context: Context  # what it was told


def set_stage(
    env: MultiAgentEnvironment, params: PyTree, grouping: Grouping, players: tuple[Player, ...], callbacks: tuple = ()
) -> Stage:
    """The stage with the names of all metrics, found without computing anything.

    Raises:
        UsageError: callbacks that break their contract, or clash with each other or with the environment.
    """
    info = _info_of_a_step(env, params)
    always_active = "active" not in info and not agents_may_wait(env)
    stage = Stage(env, grouping, players, tuple(info.get("metrics", {})), callbacks, always_active=always_active)
    check_masks(env, grouping, params)
    if not callbacks:
        return stage

    def one_step(key):
        state, action, raw = _any_step(env, params, key)
        running = no_episodes(len(env.agents), stage.metrics, always_active=always_active)
        _, reached = advance(running, raw.reward, _metrics(stage, raw.info), raw.over, raw.active)
        data = start_data(callbacks, state, params)
        return call_back(callbacks, env, params, data, reached, action, raw, raw.state)[1]

    return stage._replace(custom_metrics=tuple(jax.eval_shape(one_step, _shape_of_a_key())))


def open_worlds(stage: Stage, key: Key, env_index: jax.Array, env_params: PyTree) -> Worlds:
    """Every environment at the start of its first episode; `env_index` i32[E] are their global indices."""
    keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(env_index)
    obs, state = jax.vmap(lambda key: raw_reset(stage.env, key, env_params))(keys)
    num_agents, num_envs = len(stage.grouping.agents), env_index.shape[0]
    running = no_episodes(num_agents, stage.metrics, num_envs, always_active=stage.always_active)
    data = jax.vmap(lambda state: start_data(stage.callbacks, state, env_params))(state)
    memory = tuple(
        player.initial_memory(group.shape(len(env_index)))
        for player, group in zip(stage.players, stage.grouping.groups, strict=True)
    )
    return Worlds(state, stage.grouping.gather(obs), running, data, memory)


def draw_chance(stage: Stage, env_keys: Key, num_steps: int) -> Chance:
    """The numbers of `num_steps` steps, [T, ...], from a key for each environment, [E].

    An agent's are its own, whichever policy plays it and whichever it is stacked with.
    """
    places = {agent: i for i, agent in enumerate(stage.grouping.agents)}

    def noise_of(player, agents, key):
        index = jnp.array([[places[agent] for agent in own] for own in agents])  # [N, M]
        draw = jax.vmap(jax.vmap(lambda i: player.noise(jax.random.fold_in(key, i), (num_steps,))))
        return jnp.moveaxis(draw(index), 2, 0)

    def block(key):
        step_key, reset_key, noise_key = jax.random.split(quick(key), 3)
        groups = zip(stage.players, stage.grouping.groups, strict=True)
        noise = tuple(noise_of(player, group.agents, noise_key) for player, group in groups)
        return ordinary(jax.random.split(step_key, num_steps)), ordinary(reset_key), noise

    step_keys, reset_keys, noise = jax.vmap(block, out_axes=(1, 0, 2))(env_keys)
    reset_keys = jnp.broadcast_to(reset_keys, (num_steps, *reset_keys.shape))
    return Chance(step_keys, reset_keys, jnp.arange(num_steps, dtype=jnp.int32), noise)


def take_turn(
    stage: Stage, weights: tuple, worlds: Worlds, chance: Chance, env_params: PyTree, *, explore: bool = True
) -> tuple[list[Acted], RawStep]:
    """Every agent acts and every environment steps once, with no reset.

    Args:
        explore: whether actions are sampled, or their distribution's mode.

    Returns:
        (acted, raw): by group; raw [E].
    """
    contexts = contexts_of(stage, worlds.state, worlds.memory, env_params)
    by_group = zip(stage.players, weights, worlds.obs, worlds.memory, contexts, chance.noise, strict=True)
    acted = [_act(*group, explore) for group in by_group]
    raw = jax.vmap(lambda key, state, action: raw_step(stage.env, key, state, action, env_params))(
        chance.step_key, worlds.state, _in_environment(stage, acted)
    )
    return acted, raw


def contexts_of(
    stage: Stage, state: PyTree, memory: tuple[Memory, ...], env_params: PyTree, *, masks: bool = True
) -> tuple[Context, ...]:
    """What the policies are told beside the observations of these states, by group; the masks only if wanted."""
    groups = stage.grouping.groups
    possible = [()] * len(groups)
    if masks and stage.masked:
        mask = jax.vmap(lambda state: raw_action_mask(stage.env, state, env_params))(state)
        possible = stage.grouping.gather(mask)
    num_envs = len(jax.tree.leaves(state)[0])
    return tuple(
        player.context(own, mask, group.agent_ids(num_envs))
        for player, group, own, mask in zip(stage.players, groups, memory, possible, strict=True)
    )


def remembered(stage: Stage, before: tuple[Memory, ...], acted: list[Acted], raw: RawStep) -> tuple[Memory, ...]:
    """What the policies keep of a turn, by group, [N, E, M, ...]; whether an episode ended there or not."""
    rewards = stage.grouping.gather(raw.reward)
    after = tuple(
        player.remember(own.carry, own.action, reward)
        for player, own, reward in zip(stage.players, acted, rewards, strict=True)
    )
    if not stage.waits:
        return after
    by_group = zip(stage.players, stage.grouping.gather(raw.active), after, before, rewards, strict=True)
    return tuple(player.wait(*own) for player, *own in by_group)


def follow(
    stage: Stage, worlds: Worlds, acted: list[Acted], raw: RawStep, chance: Chance, env_params: PyTree
) -> tuple[Worlds, Episodes, dict[str, jax.Array]]:
    """What a turn leads to: ended environments start again, statistics and the callbacks' data move on.

    Args:
        acted, raw: what `take_turn` gave for these worlds.

    Returns:
        (worlds, reached, hist_data): the worlds to go on from; the Episodes [E] as this step left them, their metrics
        the environment's sums and what the callbacks' `on_episode_end` says of them; {name: f32[E]} of `hist_data`.
    """
    obs, state = restart_ended(stage.env, chance.reset_key, chance.step, raw, env_params)
    running, reached = jax.vmap(advance)(worlds.running, raw.reward, _metrics(stage, raw.info), raw.over, raw.active)
    data, hist_data = (), {}
    if stage.callbacks:
        call = functools.partial(call_back, stage.callbacks, stage.env, env_params)
        actions = _in_environment(stage, acted)
        data, custom, hist_data = jax.vmap(call)(worlds.data, reached, actions, raw, state)
        reached = reached.replace(metrics={**reached.metrics, **custom})
    memory = tuple(
        player.start_again(jnp.broadcast_to(raw.over[None, :, None], own.value.shape), kept)
        for player, own, kept in zip(stage.players, acted, remembered(stage, worlds.memory, acted, raw), strict=True)
    )
    worlds = worlds.replace(state=state, obs=stage.grouping.gather(obs), running=running, data=data, memory=memory)
    return worlds, reached, hist_data


def restart_ended(
    env: MultiAgentEnvironment, keys: Key, step: jax.Array, raw: RawStep, params: PyTree
) -> tuple[PyTree, PyTree]:
    """(obs, state) [E, ...] that E environments go on from after a raw step.

    A reset may cost as much as ten steps, and most steps end few episodes or none: then those alone are reset, a few
    at a time. Where many ended together, resetting all of them costs less than picking them out.

    Args:
        keys, step: [E] and i32[]; a reset takes fold_in(its key, step), made only where one is due.
    """
    num_envs = keys.shape[0]
    few = min(RESETS_AT_ONCE, num_envs)

    def reset(keys, step, params):
        return jax.vmap(lambda key: raw_reset(env, ordinary(jax.random.fold_in(quick(key), step)), params))(keys)

    def all_anew(over, reached, keys, step, params):
        return jax.vmap(restart)(over, reset(keys, step, params), reached)

    def few_anew(over, reached, keys, step, params):
        def some(carry):
            over, reached = carry
            index = jnp.nonzero(over, size=few, fill_value=num_envs)[0]  # those beyond the last are dropped below
            fresh = reset(keys[jnp.minimum(index, num_envs - 1)], step, params)
            reached = jax.tree.map(
                lambda old, new: old.at[index].set(new.astype(old.dtype), mode="drop"), reached, fresh
            )
            return over.at[index].set(False, mode="drop"), reached

        return jax.lax.while_loop(lambda carry: jnp.any(carry[0]), some, (over, reached))[1]

    def anew(over, reached, *rest):
        many = jnp.sum(over, dtype=jnp.int32) > max(few, num_envs // 64)
        return if_needed(many, all_anew, few_anew, over, reached, *rest)

    operands = (raw.over, (raw.obs, raw.state), keys, step, params)
    return if_needed(jnp.any(raw.over), anew, lambda over, reached, *rest: reached, *operands)


def _act(
    player: Player, weights: Weights, obs: PyTree, memory: Memory, context: Context, noise: jax.Array, explore: bool
) -> Acted:
    """All arrays [N, E, M, ...]; noise [N, E, M, D]."""
    distribution, value, carry = each_policy(player.apply, in_axes=(0, 0, 0, 0))(weights, obs, memory, context)
    action = distribution.sample(noise) if explore else distribution.mode()
    return Acted(action, distribution, value, carry, context)


def _in_environment(stage: Stage, acted: list[Acted]) -> PyTree:
    """The actions as the environment takes them, [E, ...]."""
    return stage.grouping.scatter(
        tuple(player.in_environment(own.action) for player, own in zip(stage.players, acted, strict=True))
    )


def _metrics(stage: Stage, info: dict) -> dict[str, jax.Array]:
    return {name: info["metrics"][name].astype(jnp.float32) for name in stage.metrics}


def _info_of_a_step(env: MultiAgentEnvironment, params: PyTree) -> dict:
    """The types of what is known of a step's `info`; nothing is computed."""

    def kept(key):
        info = _any_step(env, params, key)[2].info
        return {name: info[name] for name in ("active", "metrics") if name in info}

    return jax.eval_shape(kept, _shape_of_a_key())


def _any_step(env: MultiAgentEnvironment, params: PyTree, key: Key) -> tuple[PyTree, PyTree, RawStep]:
    """(state, action, what it led to) of a first step, to be traced for its shapes."""
    _, state = raw_reset(env, key, params)
    action = {agent: env.action_space(agent, params).sample(key) for agent in env.agents}
    action = stack_agents(env, action) if is_stacked(env) else action
    return state, action, raw_step(env, key, state, action, params)


def _shape_of_a_key() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))
