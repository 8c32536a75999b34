"""`jaxrl.replay_episode`: an environment stepped again by an episode's actions, and compared."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.on_policy import rollout_keys, start_keys
from jaxrl.core.agent_steps import AgentSteps
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
from jaxrl.core.program_spaces import mask_length
from jaxrl.core.registry import make_with
from jaxrl.core.spaces import Space, tree_of
from jaxrl.core.types import DEFAULT_POLICY, AgentId, Key, PyTree
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.episodes.by_agent import Episode, agents_of
from jaxrl.episodes.column import Column
from jaxrl.episodes.from_arrays import AgentFacts, rewards_of_actions
from jaxrl.episodes.values import Nested, leaves, map_nested, stack
from jaxrl.ops.distributions import from_logits, num_logits
from jaxrl.play.played_steps import PROBABILITIES
from jaxrl.play.recording import EpisodeRecording
from jaxrl.play.sampling import ORIGIN
from jaxrl.play.video import write_episode
from jaxrl.play.whole_episodes import episode_keys, step_chance
from jaxrl.rollout.env_step import RolloutSpec, StepRandomness, draw_randomness
from jaxrl.rollout.policy_map import Grouping
from jaxrl.rollout.recorded_steps import DIST_INPUTS, ENV_ACTIONS
from jaxrl.run.devices.mesh import on_host
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
        write_episode(path, self.recording, fps=fps)


def recordings_in(source: Any) -> tuple[EpisodeRecording, ...] | None:
    """The recordings of an episode that was played, or of a list of them; None of anything else.

    An `Episode` is played again in its environment; a recording and a replay are shown as they are.
    """
    sources = source if isinstance(source, list | tuple) else [source]
    kinds = Episode | EpisodeRecording | ReplayedEpisode
    if not (sources and all(isinstance(each, kinds) for each in sources)):
        return None
    played = (replay_episode(each) if isinstance(each, Episode) else each for each in sources)
    return tuple(getattr(each, "recording", each) for each in played)


def refuse_settings_of_play(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuses settings beside an episode that was played already, unless they are the defaults."""
    parameters = inspect.signature(function).parameters
    for name, value in settings.items():
        if value is not parameters[name].default:
            raise UsageError(
                f"jaxrl.{function.__name__} shows an episode as it was played: {name} is for "
                "policies that play"
            )


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
    recorded = agents_of(episode)
    for agent in recorded:
        if agent not in env.agents:
            raise unknown_name("agent", agent, env.agents, f"of episode {episode.id_}")
    told = _told(env, params, recorded, len(episode))
    states, steps = _replay(env, params, origin, told)
    found = []
    for agent, (data, times) in recorded.items():
        found += _differences(agent, data, times, steps[agent])
    known_at = lambda difference: difference.step + (difference.field != "observation")
    end = "terminated" if episode.is_terminated else "truncated" if episode.is_done else "cut"
    facts = _facts_of(episode, env, params)
    recording = EpisodeRecording(env, params, facts, steps, end, states)
    return ReplayedEpisode(recording, min(found, key=known_at, default=None))


def _facts_of(
    episode: Episode, env: MultiAgentEnvironment, params: PyTree
) -> dict[AgentId, AgentFacts]:
    facts = {}
    for agent in env.agents:
        is_alone = isinstance(episode, SingleAgentEpisode)
        policy = episode.module_id if is_alone else episode.module_for(agent)
        spaces = env.observation_space(agent, params), env.action_space(agent, params)
        facts[agent] = AgentFacts(policy or DEFAULT_POLICY, *spaces)
    return facts


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


def _told(
    env: MultiAgentEnvironment, params: PyTree, recorded: Mapping[AgentId, tuple], length: int
) -> dict[AgentId, AgentSteps]:
    """The actions and model outputs of an episode, [T, ...], zeros where an agent waits.

    The rest of the steps is None.
    """
    told = {}
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
        told[agent] = AgentSteps(None, action, *[None] * 4, _with_probabilities(space, outputs))
    return told


def _env_actions(
    env: MultiAgentEnvironment, params: PyTree, told: Mapping[AgentId, AgentSteps]
) -> dict[AgentId, PyTree]:
    """The actions that the environment was given, {agent: [T, ...]}, of the types of its spaces."""
    actions = {}
    for agent, steps in told.items():
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

    values = column.get()
    return map_nested(placed, stack(values) if isinstance(values, list) else values)


def _replay(
    env: MultiAgentEnvironment,
    params: PyTree,
    origin: Mapping[str, Any],
    told: Mapping[AgentId, AgentSteps],
) -> tuple[PyTree, dict[AgentId, AgentSteps]]:
    """(the states [T + 1, ...], each agent's steps)."""
    actions = _env_actions(env, params, told)
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
    obs, flags, steps = joined(observations), joined(parts), {}
    for i, agent in enumerate(told):
        names = "reward", "active", "terminated", "truncated"
        reached = dict(zip(names, (leaf[:, i] for leaf in flags), strict=True))
        steps[agent] = told[agent]._replace(obs=obs[agent], **reached)
    return joined(states), steps


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
    agent: AgentId, episode: SingleAgentEpisode, times: np.ndarray, steps: AgentSteps
) -> list[Difference]:
    """The first difference of each kind of an agent's data."""
    found, num_observations = [], len(times)
    active = np.flatnonzero(steps.active)
    if not np.array_equal(active, times[:-1]):
        step = min(set(active.tolist()) ^ set(times[:-1].tolist()))
        is_active = bool(steps.active[step])
        found.append(Difference(step, agent, "active", not is_active, is_active))
        times = times[times <= step]
    replayed = jax.tree.map(lambda leaf: leaf[times], steps.obs)
    observations = episode.get_observations(slice(0, len(times)))
    found += _first_unequal(agent, "observation", times, observations, replayed)
    rewards = steps.reward[: times[-1]]
    if len(times) > 1:
        rewards = rewards_of_actions(rewards, times[:-1])
        given = np.asarray(episode.get_rewards(slice(0, len(rewards))))
        found += _first_unequal(agent, "reward", times[:-1], given, rewards)
    if episode.is_done and len(times) == num_observations:
        for name in ("terminated", "truncated"):
            was, now = getattr(episode, f"is_{name}"), getattr(steps, name)[times[-1] - 1]
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
