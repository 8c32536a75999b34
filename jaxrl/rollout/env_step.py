"""One step of vectorised environments: policies act, environments step, ended ones reset."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.env import (
    MultiAgentEnvironment,
    RawStep,
    agents_may_wait,
    has_outside_state,
    is_batched,
    lift,
    raw_action_mask,
    raw_reset,
    remembers,
    reset_all,
    restart,
    restart_all,
    step_all,
)
from jaxrl.core.fast_prng import to_fast_key, to_standard_key, with_fast_keys
from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicyInputs, PolicyOutput, PolicySpec, PolicyState
from jaxrl.ops.control_flow import any_true, cond_any
from jaxrl.rollout.episode_stats import EpisodeStats, advance, no_episodes
from jaxrl.rollout.feature import After, Begin, Feature, Played
from jaxrl.rollout.grouping import Grouping, each_policy

RESETS_AT_ONCE = 8


class RolloutSpec(NamedTuple):
    """The players of a rollout: everything static that it needs."""

    env: MultiAgentEnvironment
    grouping: Grouping
    policy_specs: tuple[PolicySpec, ...]  # by group
    metrics: tuple[str, ...]  # the names in info["metrics"]
    features: tuple[Feature, ...] = ()  # what it does beside playing
    always_active: bool = True  # whether every agent acts in every step
    num_recorded: int = 0  # environments, the first ones, whose `RecordedSteps` a rollout has

    @property
    def masked(self) -> bool:
        """True if the environment says which actions are possible."""
        return hasattr(self.env, "action_mask")

    @property
    def explores(self) -> bool:
        """True if a policy acts otherwise than by sampling from itself while it trains."""
        return any(policy_spec.exploration is not None for policy_spec in self.policy_specs)

    @property
    def waits(self) -> bool:
        """True if agents may wait for their turn."""
        return agents_may_wait(self.env)

    @property
    def custom_metrics(self) -> tuple[str, ...]:
        """The names that features add to the environment's metrics."""
        return tuple(name for feature in self.features for name in feature.metrics)

    @property
    def logged(self) -> tuple[tuple[str, str], ...]:
        """(name, reduction) of the numbers that traced hooks log, in results by their names."""
        return tuple(pair for feature in self.features for pair in feature.reductions)

    @property
    def needs_next_obs(self) -> bool:
        """True if a feature reads the observations that steps reached."""
        return any(feature.needs_next_obs for feature in self.features)

    @property
    def informing(self) -> tuple[Feature, ...]:
        """The features by which networks are told more than observations."""
        return tuple(feature for feature in self.features if feature.informs)

    def player(self, weights: PyTree) -> Feature | None:
        """The feature that acts by these weights of a group; None: their policy does."""
        return next((feature for feature in self.features if feature.plays(weights)), None)

    @property
    def row_maker(self) -> Feature | None:
        """The feature that makes the trajectories; None: they are the steps."""
        return next((feature for feature in self.features if feature.makes_rows), None)

    @property
    def apart(self) -> "RolloutSpec":
        """The specification for playing episodes while training keeps its state.

        With other copies, if they are held outside, not by a curriculum but on its target, and
        without the features that only learning needs.
        """
        env = self.env
        if has_outside_state(env):
            env = lift(env.twin)
        elif remembers(env):
            env = env.at_target
        features = tuple(feature for feature in self.features if not feature.is_for_learning)
        return self._replace(env=env, features=features)


class EnvBatch(struct.PyTreeNode):
    """The environments between two rollouts."""

    state: PyTree  # [E, ...]
    obs: tuple[PyTree, ...]  # by group, [N, E, M, ...]
    episodes: EpisodeStats  # [E]
    policy_states: tuple[PolicyState, ...] = ()  # by group, [N, E, M, ...]
    # the features' slices by their names; `env_axes` says how they lie
    features: dict[str, PyTree] = struct.field(default_factory=dict)


def env_axes(spec: RolloutSpec) -> EnvBatch:
    """The axis of the environments in all arrays of each part of an `EnvBatch`."""
    axes = {feature.name: feature.env_axis for feature in spec.features}
    return EnvBatch(state=0, obs=1, episodes=0, policy_states=1, features=axes)


class StepRandomness(NamedTuple):
    """The random numbers of one step of E environments, or with leading axes of many."""

    step_key: Key  # [E]
    reset_key: Key  # [E]  alike in all steps of a block: a reset folds `step` in
    step: jax.Array  # i32[]
    noise: tuple[jax.Array, ...]  # by group, f32[N, E, M, D]  what actions are sampled by
    # f32[]  of training so far, for explorations; None where policies act by themselves alone
    env_steps: jax.Array | None = None

    @property
    def reset(self) -> tuple[Key, jax.Array]:
        """The keys and the step by which `auto_reset` resets."""
        return self.reset_key, self.step


def reset_envs(
    spec: RolloutSpec,
    key: Key,
    env_index: jax.Array,
    env_params: PyTree,
    weights: tuple[PyTree, ...] = (),
) -> EnvBatch:
    """Every environment at its first episode's start.

    Args:
        env_index: i32[E], their global indices.
        weights: of those who act, by group, for the features that ask for them.
    """
    keys = jax.vmap(lambda i: with_fast_keys(jax.random.fold_in, key, i))(env_index)
    obs, state = reset_all(spec.env, keys, env_params)
    num_agents, num_envs = len(spec.grouping.agents), env_index.shape[0]
    episodes = no_episodes(num_agents, spec.metrics, num_envs, always_active=spec.always_active)
    policy_states = tuple(
        policy_spec.initial_state(group.shape(len(env_index)))
        for policy_spec, group in zip(spec.policy_specs, spec.grouping.groups, strict=True)
    )
    envs = EnvBatch(state, spec.grouping.gather(obs), episodes, policy_states)
    for feature in spec.features:
        begun = feature.start(spec, envs, Begin(keys, weights, env_params))
        envs = envs.replace(features={**envs.features, feature.name: begun})
    return envs


def draw_randomness(spec: RolloutSpec, env_keys: Key, num_steps: int) -> StepRandomness:
    """The numbers of `num_steps` steps, [T, ...], from a key for each environment, [E].

    An agent's are its own, whichever policy plays it and whichever it is stacked with.
    """
    places = {agent: i for i, agent in enumerate(spec.grouping.agents)}

    def noise_of(policy_spec, agents, key):
        index = jnp.array([[places[agent] for agent in played] for played in agents])  # [N, M]
        draw = jax.vmap(
            jax.vmap(lambda i: policy_spec.noise(jax.random.fold_in(key, i), (num_steps,)))
        )
        return jnp.moveaxis(draw(index), 2, 0)

    def block(key):
        step_key, reset_key, noise_key = jax.random.split(to_fast_key(key), 3)
        groups = zip(spec.policy_specs, spec.grouping.groups, strict=True)
        noise = tuple(
            noise_of(policy_spec, group.agents, noise_key) for policy_spec, group in groups
        )
        return (
            to_standard_key(jax.random.split(step_key, num_steps)),
            to_standard_key(reset_key),
            noise,
        )

    step_keys, reset_keys, noise = jax.vmap(block, out_axes=(1, 0, 2))(env_keys)
    reset_keys = jnp.broadcast_to(reset_keys, (num_steps, *reset_keys.shape))
    return StepRandomness(step_keys, reset_keys, jnp.arange(num_steps, dtype=jnp.int32), noise)


def step_envs(
    spec: RolloutSpec,
    weights: tuple,
    envs: EnvBatch,
    randomness: StepRandomness,
    env_params: PyTree,
    *,
    explore: bool = True,
) -> tuple[list[PolicyOutput], RawStep]:
    """Every agent acts and every environment steps once, with no reset.

    Args:
        explore: whether actions are sampled, or their distribution's mode.

    Returns:
        (outputs, raw): by group; raw [E].
    """
    noise, env_steps = (randomness.noise, randomness.env_steps) if explore else (None, None)
    outputs = choose_actions(spec, weights, envs, noise, env_params, env_steps)
    for g, _ in enumerate(outputs):
        if player := spec.player(weights[g]):
            outputs[g] = player.actions(
                spec, weights[g], envs, (g, outputs[g]), randomness.step_key
            )
    actions = to_env_actions(spec, outputs)
    raw = step_all(spec.env, randomness.step_key, envs.state, actions, env_params)
    return outputs, raw


def choose_actions(
    spec: RolloutSpec,
    weights: tuple,
    envs: EnvBatch,
    noise: tuple[jax.Array, ...] | None,
    env_params: PyTree,
    env_steps: jax.Array | None = None,
) -> list[PolicyOutput]:
    """The next output of every policy, by group.

    Args:
        noise: by group, what actions are sampled by; None: each is its distribution's mode.
        env_steps: f32[], of training so far; None where policies do not explore.
    """
    inputs = policy_inputs(spec, envs.state, envs.policy_states, env_params)
    inputs = informed(spec, inputs, envs, env_params)
    outputs = []
    for g, policy_spec in enumerate(spec.policy_specs):
        arguments = envs.obs[g], envs.policy_states[g], inputs[g]
        if player := spec.player(weights[g]):
            applied = player.apply(policy_spec, weights[g], envs, arguments)
        else:
            applied = each_policy(policy_spec.apply, in_axes=(0, 0, 0, 0))(weights[g], *arguments)
        drawn = None if noise is None else noise[g]
        outputs.append(policy_spec.choose(applied, inputs[g], noise=drawn, env_steps=env_steps))
    return outputs


def informed(
    spec: RolloutSpec, inputs: tuple[PolicyInputs, ...], envs: EnvBatch, env_params: PyTree
) -> tuple[PolicyInputs, ...]:
    """`inputs` by group, with what features tell networks of the same states."""
    for feature in spec.informing:
        inputs = feature.inputs(spec, inputs, envs, env_params)
    return inputs


def read_by_networks(spec: RolloutSpec, envs: EnvBatch) -> EnvBatch:
    """The parts of the environments that networks read or that features inform them by."""
    slices = {feature.name: envs.features[feature.name] for feature in spec.informing}
    return EnvBatch(envs.state if slices else None, envs.obs, None, envs.policy_states, slices)


def policy_inputs(
    spec: RolloutSpec,
    state: PyTree,
    policy_states: tuple[PolicyState, ...],
    env_params: PyTree,
    *,
    masks: bool = True,
) -> tuple[PolicyInputs, ...]:
    """The policies' inputs beside observations of these states, by group; masks only if wanted."""
    groups = spec.grouping.groups
    possible = [None] * len(groups)
    if masks and spec.masked:
        mask = jax.vmap(lambda state: raw_action_mask(spec.env, state, env_params))(state)
        possible = spec.grouping.gather(mask)
    num_envs = len(jax.tree.leaves(state)[0])
    return tuple(
        policy_spec.inputs(policy_states[g], possible[g], groups[g].agent_ids(num_envs))
        for g, policy_spec in enumerate(spec.policy_specs)
    )


def next_policy_states(
    spec: RolloutSpec, before: tuple[PolicyState, ...], outputs: list[PolicyOutput], raw: RawStep
) -> tuple[PolicyState, ...]:
    """The policies' states after a step, by group, [N, E, M, ...], before any reset."""
    rewards = spec.grouping.gather(raw.reward)
    after = tuple(
        policy_spec.next_state(output, reward)
        for policy_spec, output, reward in zip(spec.policy_specs, outputs, rewards, strict=True)
    )
    if not spec.waits:
        return after
    active = spec.grouping.gather(raw.active)
    return tuple(
        policy_spec.wait(active[g], after[g], before[g], rewards[g])
        for g, policy_spec in enumerate(spec.policy_specs)
    )


def advance_envs(
    spec: RolloutSpec, envs: EnvBatch, played: Played, env_params: PyTree
) -> tuple[EnvBatch, After]:
    """The environments after a step: ended ones are reset, statistics and features advance.

    Args:
        played: what `step_envs` gave for these environments, and how ended ones are reset.

    Returns:
        (envs, facts): the environments to continue from, and what is known of the step.
    """
    obs, state = auto_reset(spec.env, *played.reset, played.raw, env_params)
    return follow(spec, envs, played, (spec.grouping.gather(obs), state), env_params)


def follow(
    spec: RolloutSpec,
    envs: EnvBatch,
    played: Played,
    after: tuple[tuple[PyTree, ...], PyTree],
    env_params: PyTree,
) -> tuple[EnvBatch, After]:
    """Advances the environments like `advance_envs`, where ended episodes are reset already.

    Args:
        after: (obs by group, state) to continue from.
    """
    obs, state = after
    advance = functools.partial(episodes_after, spec)
    episodes, reached = jax.vmap(advance)(envs.episodes, played.raw)
    facts, features = After(state, reached, env_params, {}, {}), dict(envs.features)
    for feature in spec.features:
        if not feature.informs:
            before = features[feature.name]
            features[feature.name], facts = feature.after_step(spec, before, played, facts)
    envs = advance_policies(spec, envs.replace(features=features), played)
    return envs.replace(state=state, obs=obs, episodes=episodes), facts


def advance_policies(spec: RolloutSpec, envs: EnvBatch, played: Played) -> EnvBatch:
    """Advances the policies after a step and its resets: their states, and what they are told."""
    policy_states, outputs, raw = [], played.outputs, played.raw
    next_states = next_policy_states(spec, envs.policy_states, outputs, raw)
    for g, policy_spec in enumerate(spec.policy_specs):
        ended = jnp.broadcast_to(raw.episode_done[None, :, None], outputs[g].value.shape)
        policy_states.append(policy_spec.reset_where(ended, next_states[g]))
    features = dict(envs.features)
    for feature in spec.informing:
        before = features[feature.name]
        features[feature.name], _ = feature.after_step(spec, before, played, None)
    return envs.replace(policy_states=tuple(policy_states), features=features)


def auto_reset(
    env: MultiAgentEnvironment, keys: Key, step: jax.Array, raw: RawStep, params: PyTree
) -> tuple[PyTree, PyTree]:
    """(obs, state) [E, ...] that E environments go on from after a raw step.

    A reset may cost as much as ten steps, and most steps end few episodes or none: then those alone
    are reset, a few at a time. Where many ended together, resetting all of them costs less than
    picking them out.

    Args:
        keys, step: [E] and i32[]; a reset takes fold_in(its key, step), made only where one is due.
    """
    num_envs = keys.shape[0]
    few = min(RESETS_AT_ONCE, num_envs)

    def reset_keys(keys, step):
        return jax.vmap(lambda key: with_fast_keys(jax.random.fold_in, key, step))(keys)

    if is_batched(env):
        return restart_all(env, reset_keys(keys, step), raw, params)

    def reset(keys, step, params, ended):
        if ended is None:
            return reset_all(env, reset_keys(keys, step), params)
        one_reset = lambda key, ended: raw_reset(env, key, params, ended)
        return jax.vmap(one_reset)(reset_keys(keys, step), ended)

    def reset_all_at_once(episode_done, reached, keys, step, params, ended):
        return jax.vmap(restart)(episode_done, reset(keys, step, params, ended), reached)

    def reset_few_at_a_time(episode_done, reached, keys, step, params, ended):
        def reset_some(carry):
            episode_done, reached = carry
            # Where fewer are left, the rest have index `num_envs`: a write there is dropped.
            index = jnp.nonzero(episode_done, size=few, fill_value=num_envs)[0]
            keys_of, ended_of = jax.tree.map(
                lambda leaf: leaf[jnp.minimum(index, num_envs - 1)], (keys, ended)
            )
            fresh = reset(keys_of, step, params, ended_of)
            put = lambda old, new: old.at[index].set(new.astype(old.dtype), mode="drop")
            reached = jax.tree.map(put, reached, fresh)
            return episode_done.at[index].set(False, mode="drop"), reached

        some_left = lambda carry: any_true(carry[0])
        return jax.lax.while_loop(some_left, reset_some, (episode_done, reached))[1]

    def reset_ended(episode_done, reached, *rest):
        many = jnp.sum(episode_done, dtype=jnp.int32) > max(few, num_envs // 64)
        return cond_any(many, reset_all_at_once, reset_few_at_a_time, episode_done, reached, *rest)

    def as_reached(episode_done, reached, *rest):
        return reached

    # What a curriculum learns from.
    ended = (raw.state, raw.all_terminated) if remembers(env) else None
    operands = (raw.episode_done, (raw.obs, raw.state), keys, step, params, ended)
    return cond_any(any_true(raw.episode_done), reset_ended, as_reached, *operands)


def to_env_actions(spec: RolloutSpec, outputs: list[PolicyOutput]) -> PyTree:
    """The actions as the environment takes them, [E, ...]."""
    return spec.grouping.scatter(
        tuple(
            policy_spec.to_env_action(output.action)
            for policy_spec, output in zip(spec.policy_specs, outputs, strict=True)
        )
    )


def episodes_after(
    spec: RolloutSpec, episodes: EpisodeStats, raw: RawStep
) -> tuple[EpisodeStats, EpisodeStats]:
    """`advance` by a step of one environment."""
    metrics = {name: raw.info["metrics"][name].astype(jnp.float32) for name in spec.metrics}
    return advance(episodes, raw.reward, metrics, raw.episode_done, raw.active)
