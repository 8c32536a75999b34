"""`jaxrl.replay_episode`: an environment stepped again by an episode's actions, and compared."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.on_policy import rollout_keys, start_keys
from jaxrl.core.batched_env import has_outside_state
from jaxrl.core.env import (
    MultiAgentEnvironment,
    is_stacked,
    lift,
    raw_reset,
    raw_step,
    strongly_typed,
)
from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.registry import make_with
from jaxrl.core.spaces import tree_of
from jaxrl.core.types import DEFAULT_AGENT, AgentId, Key, PyTree
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.episodes.from_arrays import rewards_of_actions
from jaxrl.episodes.values import Nested, leaves, map_nested, stack
from jaxrl.rollout.env_step import RolloutSpec, StepRandomness, draw_randomness
from jaxrl.rollout.policy_map import Grouping
from jaxrl.run.devices.mesh import on_host
from jaxrl.run.inference.recording import EpisodeRecording
from jaxrl.run.inference.sampling import ORIGIN, Episode
from jaxrl.run.inference.video import write_episode
from jaxrl.run.inference.whole_episodes import episode_keys, step_chance
from jaxrl.run.storage.checkpoint import filled

STEPS_PER_CALL = 256


class Difference(NamedTuple):
    """The first difference of a replay from an episode."""

    step: int  # of the environment: 0 is the reset's observation, and the first action's reward
    agent: AgentId
    field: str  # "observation", "reward", "active", "terminated" or "truncated"
    recorded: Any
    replayed: Any

    def __str__(self):
        return (
            f"step {self.step}, agent {self.agent!r}: {self.field} is {brief(self.replayed)}, "
            f"recorded was {brief(self.recorded)}"
        )


@dataclass(frozen=True)
class ReplayedEpisode:
    """A replay of an episode of T steps."""

    env: MultiAgentEnvironment
    env_params: PyTree
    recording: EpisodeRecording
    difference: Difference | None  # the first; None: equal to the bit

    @property
    def states(self) -> PyTree:
        """The environment's, [T + 1, ...]; the first is the reset's."""
        return self.recording.states

    def save(self, path: str | Path, *, fps: float | None = None) -> None:
        """Draws it, by the file's ending: a .gif, an .mp4 or a .png, a strip of frames.

        Args:
            fps: frames per second; None: so that it takes about ten seconds.

        Raises:
            UsageError: another ending, or an environment without pictures.
        """
        write_episode(path, self.recording, self.env, self.env_params, fps=fps)


def replay_episode(episode: Episode, env: Any = None) -> ReplayedEpisode:
    """Steps an episode's environment again, from its reset and by its actions, and compares.

    `difference` is None if each observation, reward and end is equal to the bit. It takes the same
    machine and versions: elsewhere numbers may be rounded differently.

    Args:
        episode: from `Trainer.sample`, `jaxrl.evaluate(..., return_episodes=True)`, or the files of
            a trainer's `output`; its `custom_data` names the environment, its numbers and the
            random keys.
        env: the environment, an object or a name, where the episode was played in an object or in
            `module:Class`; None: that of the episode.

    Raises:
        UsageError: an episode that does not say where it was played, or does not begin with its
            reset; another environment; one whose numbers are not known.
    """
    if not isinstance(episode, Episode):
        raise UsageError(f"replay_episode takes an episode of jaxrl.episodes, not {brief(episode)}")
    origin = origin_of(episode)
    if origin["env_params"] is None:
        raise UsageError(
            f"episode {episode.id_} cannot be replayed: the environment's numbers are not known, "
            "since they were changed while it was played, or a curriculum chose them"
        )
    env, params = environment_of(episode, origin, env)
    recorded = _recorded(episode)
    for agent in recorded:
        if agent not in env.agents:
            raise unknown_name("agent", agent, env.agents, f"of episode {episode.id_}")
    actions = _actions(env, params, recorded, len(episode))
    states, steps = _replay(env, params, origin, actions)
    found = []
    for agent, data in recorded.items():
        found += _differences(agent, data, steps, env.agents.index(agent))
    known_at = lambda difference: difference.step + (difference.field != "observation")
    end = "terminated" if episode.is_terminated else "truncated" if episode.is_done else "cut"
    recording = EpisodeRecording(tuple(env.agents), states, steps.reward, steps.active, end)
    return ReplayedEpisode(env, params, recording, min(found, key=known_at, default=None))


class _Recorded(NamedTuple):
    """An agent's steps, and the environment steps of its observations."""

    episode: SingleAgentEpisode
    times: np.ndarray  # i64[k + 1]


class _Steps(NamedTuple):
    """The results of environment steps."""

    obs: Mapping[AgentId, PyTree]  # [T + 1, ...]
    reward: np.ndarray  # f32[T, M]
    active: np.ndarray  # bool[T, M]
    terminated: np.ndarray  # bool[T, M]
    truncated: np.ndarray  # bool[T, M]


def origin_of(episode: Episode) -> Mapping[str, Any]:
    """The origin of an episode: its environment, arguments and seed.

    Raises:
        UsageError: it does not say so, does not begin with its reset, or has an action that waits
            for its outcome.
    """
    origin = episode.custom_data.get(ORIGIN)
    known = {"env", "env_args", "env_params", "seed"}
    is_known = isinstance(origin, Mapping) and set(origin) - known in ({"episode"}, {"rollout"})
    if not (is_known and known < set(origin)):
        raise UsageError(
            f"episode {episode.id_} does not say where it was played: only episodes that a trainer "
            "sampled or wrote, or jaxrl.evaluate returned, can be replayed; slices need their "
            "custom_data"
        )
    if not (episode.begins_with_reset and len(episode)):
        raise UsageError(f"episode {episode.id_} is a chunk that does not begin with its reset")
    if isinstance(episode, MultiAgentEpisode):
        for agent, timeline in episode.get_facts()["timelines"].items():
            if timeline["pending"] is not None:
                raise UsageError(
                    f"episode {episode.id_} cannot be replayed: an action of agent {agent!r} waits "
                    "for its outcome"
                )
    return origin


def environment_of(
    episode: Episode, origin: Mapping[str, Any], env: Any = None
) -> tuple[MultiAgentEnvironment, PyTree]:
    """The environment with the numbers that the episode was played with, if they are known."""
    name = origin["env"] if env is None else env
    if env is None and (name is None or ":" in name):
        was = "an environment object" if name is None else repr(name)
        raise UsageError(
            f"episode {episode.id_} was played in {was}: give it to "
            "jaxrl.replay_episode(episode, env)"
        )
    env = lift(make_with(name, origin["env_args"] if isinstance(name, str) else {})[0])
    if has_outside_state(env):
        raise UsageError(f"episode {episode.id_} of {env.name} cannot be replayed: no key began it")
    params = strongly_typed(env.default_params)
    if origin["env_params"] is None:
        return env, params
    arrays = {f"env_params.{path}": np.asarray(v) for path, v in origin["env_params"].items()}
    return env, filled(params, arrays, "env_params", f"episode {episode.id_}")


def _recorded(episode: Episode) -> dict[AgentId, _Recorded]:
    if isinstance(episode, SingleAgentEpisode):
        return {DEFAULT_AGENT: _Recorded(episode, np.arange(len(episode) + 1))}
    return {
        agent: _Recorded(data, np.array(episode.observation_times(agent)))
        for agent, data in episode.agent_episodes.items()
    }


def _actions(
    env: MultiAgentEnvironment, params: PyTree, recorded: Mapping[AgentId, _Recorded], length: int
) -> dict[AgentId, np.ndarray]:
    """The environment's actions, [T, ...]; zeros where an agent waits."""
    actions = {}
    for agent in env.agents:
        space = env.action_space(agent, params)
        zeros = lambda part: np.zeros((length, *part.shape), part.dtype)
        actions[agent] = jax.tree.map(zeros, tree_of(space))
        if agent in recorded:
            episode, times = recorded[agent]
            column = episode.extra_model_outputs.get("actions_for_env", episode.actions)

            def put(rows, taken, times=times):
                rows[times[:-1]] = np.asarray(taken)

            taken = column.get()
            taken = stack(taken) if isinstance(taken, list) else taken
            jax.tree.map(put, actions[agent], taken)
    return actions


def _replay(
    env: MultiAgentEnvironment,
    params: PyTree,
    origin: Mapping[str, Any],
    actions: Mapping[AgentId, np.ndarray],
) -> tuple[PyTree, _Steps]:
    """The states [T + 1, ...], and what the steps gave."""
    length = len(jax.tree.leaves(actions)[0])
    reset_key, step_keys = _keys_of(env, origin, length)
    obs, state = _reset(env, params, reset_key)
    states, observations, parts = [jax.tree.map(on_host, state)], [jax.tree.map(on_host, obs)], []
    for begin in range(0, length, STEPS_PER_CALL):
        times = np.minimum(begin + np.arange(STEPS_PER_CALL), length - 1)
        chunk = jax.tree.map(lambda rows, times=times: rows[times], actions)
        state, played = _step_on(env, params, state, step_keys[times], chunk)
        cut = lambda leaf, count=length - begin: on_host(leaf)[:count]
        reached, obs, flags = jax.tree.map(cut, played)
        states.append(reached)
        observations.append(obs)
        parts.append(flags)
    joined = lambda trees: jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)
    return joined(states), _Steps(joined(observations), *joined(parts))


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
        env_key, _ = start_keys(key)
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
    step_keys: Key,
    actions: dict[AgentId, jax.Array],
) -> tuple[PyTree, tuple]:
    """Steps with no reset: state [1, ...], keys [T], actions [T, ...]."""

    def step(state, now):
        key, action = now

        def one_env(state):
            raw = raw_step(env, key, state, action, params)
            flags = raw.reward, raw.active, raw.terminated, raw.truncated
            return raw.state, env.by_agent(raw.obs), flags

        state, obs, flags = jax.vmap(one_env)(state)
        return state, jax.tree.map(lambda leaf: leaf[0], (state, obs, flags))

    return jax.lax.scan(step, state, (step_keys, actions))


def _differences(
    agent: AgentId, recorded: _Recorded, steps: _Steps, place: int
) -> list[Difference]:
    """The first difference of each kind of an agent's data."""
    (episode, times), found = recorded, []
    active = np.flatnonzero(steps.active[:, place])
    if not np.array_equal(active, times[:-1]):
        step = min(set(active.tolist()) ^ set(times[:-1].tolist()))
        is_active = bool(steps.active[step, place])
        found.append(Difference(step, agent, "active", not is_active, is_active))
        times = times[times <= step]
    replayed = jax.tree.map(lambda leaf: leaf[times], steps.obs[agent])
    observations = episode.get_observations(slice(0, len(times)))
    found += _first_unequal(agent, "observation", times, observations, replayed)
    rewards = steps.reward[: times[-1], place]
    if len(times) > 1:
        rewards = rewards_of_actions(rewards, times[:-1])
        given = np.asarray(episode.get_rewards(slice(0, len(rewards))))
        found += _first_unequal(agent, "reward", times[:-1], given, rewards)
    if episode.is_done and len(times) == len(recorded.times):
        for name in ("terminated", "truncated"):
            was, now = getattr(episode, f"is_{name}"), getattr(steps, name)[times[-1] - 1, place]
            if was != now:
                found.append(Difference(int(times[-1]) - 1, agent, name, was, bool(now)))
    return found


def _first_unequal(
    agent: AgentId, field: str, times: np.ndarray, recorded: Nested, replayed: Nested
) -> list[Difference]:
    """The first row, [k, ...], that is not equal to the bit."""
    recorded = stack(recorded) if isinstance(recorded, list) else recorded
    unequal = np.zeros(len(times), bool)
    for differs in leaves(map_nested(_unequal_rows, recorded, replayed)):
        unequal |= differs
    if not unequal.any():
        return []
    row = int(np.argmax(unequal))
    values = (map_nested(lambda leaf: leaf[row], tree) for tree in (recorded, replayed))
    return [Difference(int(times[row]), agent, field, *values)]


def _unequal_rows(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """bool[k]; NaN equals NaN."""
    if left.shape != right.shape:
        return np.ones(len(left), bool)
    equal = (left == right) | ((left != left) & (right != right))
    return ~equal.reshape(len(equal), -1).all(axis=1)
