"""An episode's own actions as a source of whole episodes: its environment, stepped once more."""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.on_policy import rollout_keys, update_keys
from jaxrl.core.agent_steps import AgentSteps
from jaxrl.core.env import MultiAgentEnvironment, is_stacked, raw_reset, raw_step
from jaxrl.core.fast_prng import to_standard_key
from jaxrl.core.program_spaces import mask_length
from jaxrl.core.spaces import Space, tree_of
from jaxrl.core.types import DEFAULT_POLICY, AgentId, Key, PyTree
from jaxrl.episodes import SingleAgentEpisode
from jaxrl.episodes.by_agent import Episode, agents_of
from jaxrl.episodes.column import Column
from jaxrl.episodes.values import Nested, map_nested, stack
from jaxrl.ops.distributions import from_logits, num_logits
from jaxrl.play.played_steps import PROBABILITIES
from jaxrl.play.whole_episodes import EpisodesUnderWay, PlaySpec, episode_keys, step_chance
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec, StepRandomness, draw_randomness
from jaxrl.rollout.grouping import Grouping, PolicyGroup
from jaxrl.rollout.recorded_steps import DIST_INPUTS, ENV_ACTIONS, RecordedSteps
from jaxrl.run.devices.mesh import on_host

STEPS_PER_CALL = 256
FLAGS = "reward", "active", "terminated", "truncated"  # of `AgentSteps`, [T, M_all]


class RecordedActions:
    """A `Source`: an episode whose actions, values and probabilities are known.

    It steps one environment alone, not a batch of one, and ends where the episode does: so its
    numbers are those of the episode, to the bit. Each agent is a group by itself.

    Args:
        origin: of the episode, from `origin_of`.
    """

    together, pictures, infos = 1, MappingProxyType({}), ()

    def __init__(
        self,
        env: MultiAgentEnvironment,
        params: PyTree,
        episode: Episode,
        origin: Mapping[str, Any],
    ):
        rollout = RolloutSpec(env, _by_agent_alone(env, params, episode), (), ())
        self.play = PlaySpec(rollout, explore=False, keeps_steps=True, to_look_at=True)
        self._env, self._params, self._episode = env, params, episode
        self._recorded = _recorded_by_agent(env, params, agents_of(episode), len(episode))
        self._actions = _env_actions(env, params, self._recorded)
        self._reset_key, self._step_keys = _keys_of(env, origin, len(episode))

    def start(self, index: np.ndarray, attempt: int) -> EpisodesUnderWay:
        obs, state = _reset(self._env, self._params, self._reset_key)
        as_group = functools.partial(jax.tree.map, lambda leaf: leaf[None, :, None])
        by_group = tuple(as_group(obs[agent]) for agent in self._recorded)
        envs = EnvBatch(state, by_group, episodes=None)
        return EpisodesUnderWay(envs, index, np.int32(0), np.zeros(1, bool), finished=None)

    def go_on(
        self, playing: EpisodesUnderWay, last: np.ndarray
    ) -> tuple[EpisodesUnderWay, RecordedSteps]:
        """A number of steps; those beyond the episode's last one do not count."""
        begin, length = int(playing.num_steps), len(self._episode)
        steps = begin + np.arange(STEPS_PER_CALL)
        times = np.minimum(steps, length - 1)  # one shape, one compilation
        rows = lambda leaf: leaf[times]
        chunk = jax.tree.map(rows, self._actions), self._step_keys[times]
        state, stepped = _step_on(self._env, self._params, playing.envs.state, *chunk)
        states, obs, flags = jax.tree.map(on_host, stepped)
        groups = []
        for i, (agent, recorded) in enumerate(self._recorded.items()):
            of_agent = dict(zip(FLAGS, (leaf[:, i] for leaf in flags), strict=True))
            recorded = jax.tree.map(rows, recorded)
            groups.append(recorded._replace(**of_agent, reached=obs[agent]))
        groups = jax.tree.map(lambda leaf: leaf[None, :, None, None], tuple(groups))
        is_last = (steps == length - 1)[None]
        terminated, done = is_last & self._episode.is_terminated, is_last & self._episode.is_done
        after = playing.replace(
            envs=playing.envs.replace(state=state),
            num_steps=np.int32(min(begin + STEPS_PER_CALL, length)),
            done=done.any(axis=1),
        )
        states = jax.tree.map(lambda leaf: leaf[None], states)
        return after, RecordedSteps(groups, terminated, done, states)


def _by_agent_alone(env: MultiAgentEnvironment, params: PyTree, episode: Episode) -> Grouping:
    """A grouping in which each agent is by itself, with the policy that the episode names."""
    groups = []
    for agent in env.agents:
        is_alone = isinstance(episode, SingleAgentEpisode)
        policy = episode.module_id if is_alone else episode.module_for(agent)
        spaces = env.observation_space(agent, params), env.action_space(agent, params)
        groups.append(PolicyGroup((policy or DEFAULT_POLICY,), ((agent,),), *spaces, None))
    policies = tuple(dict.fromkeys(group.policies[0] for group in groups))
    return Grouping(env.agents, policies, tuple(groups), is_stacked(env))


def _recorded_by_agent(
    env: MultiAgentEnvironment, params: PyTree, recorded: Mapping[AgentId, tuple], length: int
) -> dict[AgentId, AgentSteps]:
    """The actions and model outputs of an episode, [T, ...], zeros where an agent waits.

    The rest of the steps is None.
    """
    found = {}
    for agent in env.agents:
        space = env.action_space(agent, params)
        if agent in recorded:
            episode, times = recorded[agent]
            by_step = functools.partial(_by_step, times[:-1], length)
            action, outputs = by_step(episode.actions), episode.extra_model_outputs
            outputs = {name: by_step(column) for name, column in outputs.items()}
        else:
            zeros = lambda part: np.zeros((length, *part.shape), part.dtype)
            action, outputs = jax.tree.map(zeros, tree_of(space)), {}
        found[agent] = AgentSteps(None, action, *[None] * 4, _with_probabilities(space, outputs))
    return found


def _env_actions(
    env: MultiAgentEnvironment, params: PyTree, recorded: Mapping[AgentId, AgentSteps]
) -> dict[AgentId, PyTree]:
    """The actions that the environment was given, {agent: [T, ...]}, of the types of its spaces."""
    actions = {}
    for agent, steps in recorded.items():
        taken = steps.outputs.get(ENV_ACTIONS, steps.action)
        typed = lambda part, rows: np.asarray(rows, part.dtype)
        actions[agent] = jax.tree.map(typed, tree_of(env.action_space(agent, params)), taken)
    return actions


def _with_probabilities(space: Space, outputs: dict[str, PyTree]) -> dict[str, PyTree]:
    """The outputs with the probabilities of integers, where the distribution was recorded."""
    dist_inputs = outputs.get(DIST_INPUTS)
    if PROBABILITIES in outputs or dist_inputs is None or not mask_length(space):
        return outputs
    if np.shape(dist_inputs)[1:] != (num_logits(space),):  # a distribution of the user's own
        return outputs
    probabilities = np.asarray(from_logits(space, dist_inputs).probabilities())
    return {**outputs, PROBABILITIES: probabilities}


def _by_step(times: np.ndarray, length: int, column: Column) -> Nested:
    """An agent's values by environment step, [T, ...]; zeros where it waits."""

    def placed(values):
        rows = np.zeros((length, *values.shape[1:]), values.dtype)
        rows[times] = values
        return rows

    return map_nested(placed, stack(column.get()))


def _keys_of(env: MultiAgentEnvironment, origin: Mapping[str, Any], length: int) -> tuple[Key, Key]:
    """(of the reset, [1], and of the steps, [length])."""
    if "rollout" in origin:
        return _keys_in_training(env, origin["seed"], origin["rollout"], length)
    reset_key, play_key = episode_keys(origin["seed"])
    index = np.array([origin["episode"]], np.int32)
    blocks = []
    for begin in range(0, length, STEPS_PER_CALL):
        times = np.int32(begin + np.arange(STEPS_PER_CALL))
        blocks.append(_sampled_keys(env, play_key, index, times))
    return jax.random.fold_in(reset_key, index[0])[None], jnp.concatenate(blocks)[:length]


def _keys_in_training(
    env: MultiAgentEnvironment, seed: int, place: Mapping[str, int], length: int
) -> tuple[Key, Key]:
    """The keys of an episode of a run's rollouts, like `_keys_of`.

    Args:
        place: of its first step: "update", "step", "environment" and "rollout_length".
    """
    key, rollout_length = jax.random.key(seed, impl="threefry2x32"), place["rollout_length"]
    index = np.array([place["environment"]], np.int32)
    draws = functools.partial(_rollout_draws, env, rollout_length, key, index)
    first = (place["update"] - 1) * rollout_length + place["step"]  # since training began
    begin, end = first // rollout_length, (first + length - 1) // rollout_length + 1
    step_keys = jnp.concatenate([draws(np.int32(n + 1)).step_key[:, 0] for n in range(begin, end)])
    step_keys = step_keys[first - begin * rollout_length :][:length]
    if first == 0:
        env_key = to_standard_key(update_keys(key, 0)[0])
        return jax.random.fold_in(env_key, index[0])[None], step_keys
    update, step = divmod(first - 1, rollout_length)  # in which the last episode ended
    last = draws(np.int32(update + 1)).reset_key[step, 0]
    return jax.random.fold_in(last, step)[None], step_keys


def _without_policies(env: MultiAgentEnvironment) -> RolloutSpec:
    """A rollout's specification for the random numbers of the environment alone."""
    return RolloutSpec(env, Grouping(env.agents, (), (), is_stacked(env)), (), ())


@functools.partial(jax.jit, static_argnums=0)
def _sampled_keys(
    env: MultiAgentEnvironment, play_key: Key, index: jax.Array, times: jax.Array
) -> Key:
    spec = _without_policies(env)
    return jax.vmap(lambda time: step_chance(spec, play_key, index, time).step_key[0])(times)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _rollout_draws(
    env: MultiAgentEnvironment, length: int, key: Key, index: jax.Array, update: jax.Array
) -> StepRandomness:
    """The draws of the environments `index`, [length, E], in the rollout of an update."""
    return draw_randomness(_without_policies(env), rollout_keys(key, update, index), length)


@functools.partial(jax.jit, static_argnums=0)
def _reset(
    env: MultiAgentEnvironment, params: PyTree, keys: Key
) -> tuple[dict[AgentId, PyTree], PyTree]:
    """(obs, state), [1, ...], of keys [1]."""

    def reset(key):
        obs, state = raw_reset(env, key, params)
        return env.by_agent(obs), state

    return jax.vmap(reset)(keys)


@functools.partial(jax.jit, static_argnums=0)
def _step_on(
    env: MultiAgentEnvironment,
    params: PyTree,
    state: PyTree,
    actions: dict[AgentId, jax.Array],
    step_keys: Key,
) -> tuple[PyTree, tuple]:
    """Steps with no reset: state [1, ...], actions [T, ...], keys [T]."""

    def step(state, keyed_action):
        key, action = keyed_action

        def one_env(state):
            raw = raw_step(env, key, state, action, params)
            flags = tuple(getattr(raw, name) for name in FLAGS)
            return raw.state, env.by_agent(raw.obs), flags

        state, obs, flags = jax.vmap(one_env)(state)
        return state, jax.tree.map(lambda leaf: leaf[0], (state, obs, flags))

    return jax.lax.scan(step, state, (step_keys, actions))
