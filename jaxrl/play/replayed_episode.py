"""`jaxrl.replay_episode`: an environment stepped again by an episode's actions, and compared."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.core.agent_steps import AgentSteps
from jaxrl.core.env import MultiAgentEnvironment, has_outside_state, lift, strongly_typed
from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.registry import make_with
from jaxrl.core.types import AgentId, PyTree
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.episodes.by_agent import Episode, agents_of
from jaxrl.episodes.from_arrays import rewards_of_actions
from jaxrl.episodes.values import Nested, leaves, map_nested, stack
from jaxrl.play.play_limit import PlayLimit
from jaxrl.play.recorded_actions import RecordedActions
from jaxrl.play.recording import EpisodeRecording, recordings_of
from jaxrl.play.sampling import ORIGIN
from jaxrl.play.video import write_episode
from jaxrl.play.whole_episodes import walk
from jaxrl.run.storage.checkpoint import filled


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
class ReplayedEpisode(EpisodeRecording):
    """The recording of an episode that was stepped again by its own actions.

    `states` are the environment's, [T + 1, ...], the first the reset's.
    """

    difference: Difference | None = None  # the first; None: equal to the bit

    def save(self, path: str | Path, *, fps: float | None = None) -> None:
        """Draws it, by the file's ending: a .gif, an .mp4 or a .png, a strip of frames.

        Args:
            fps: frames per second; None: so that it takes about ten seconds.

        Raises:
            UsageError: another ending, or an environment without pictures.
        """
        write_episode(path, self, fps=fps)


def recordings_in(source: Any) -> tuple[EpisodeRecording, ...] | None:
    """The recordings of an episode that was played, or of a list of them; None of anything else.

    An `Episode` is played again in its environment; a recording is shown as it is.
    """
    sources = source if isinstance(source, list | tuple) else [source]
    if not (sources and all(isinstance(item, Episode | EpisodeRecording) for item in sources)):
        return None
    return tuple(replay_episode(item) if isinstance(item, Episode) else item for item in sources)


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
    source = RecordedActions(env, params, episode, origin)
    (batch,) = walk(source, 0, 1, PlayLimit(len(episode), say=lambda text: None))
    (recording,) = recordings_of(source.play.rollout, params, batch)
    found = []
    for agent, (data, times) in recorded.items():
        found += _differences(agent, data, times, recording.steps[agent])
    known_at = lambda difference: difference.step + (difference.field != "observation")
    return ReplayedEpisode(**vars(recording), difference=min(found, key=known_at, default=None))


def origin_of(episode: Episode) -> Mapping[str, Any]:
    """The origin of an episode: its environment, arguments and seed.

    Raises:
        UsageError: it does not say so, does not begin with its reset, or has an action that waits
            for its outcome.
    """
    origin = episode.custom_data.get(ORIGIN)
    needed = {"env", "env_args", "env_params", "seed"}
    is_known = isinstance(origin, Mapping) and set(origin) - needed in ({"episode"}, {"rollout"})
    if not (is_known and needed < set(origin)):
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
        stored = np.asarray(episode.get_rewards(slice(0, len(rewards))))
        found += _first_unequal(agent, "reward", times[:-1], stored, rewards)
    if episode.is_done and len(times) == num_observations:
        for name in ("terminated", "truncated"):
            step, recorded = int(times[-1]) - 1, getattr(episode, f"is_{name}")
            replayed = bool(getattr(steps, name)[step])
            if recorded != replayed:
                found.append(Difference(step, agent, name, recorded, replayed))
    return found


def _first_unequal(
    agent: AgentId, field: str, times: np.ndarray, recorded: Nested, replayed: Nested
) -> list[Difference]:
    """The first row, [k, ...], that is not equal to the bit."""
    recorded = stack(recorded)
    unequal = np.zeros(len(times), bool)
    for differs in leaves(map_nested(_unequal_rows, recorded, replayed)):
        unequal |= differs
    if not unequal.any():
        return []
    row = int(np.argmax(unequal))
    at_row = functools.partial(map_nested, lambda leaf: leaf[row])
    return [Difference(int(times[row]), agent, field, at_row(recorded), at_row(replayed))]


def _unequal_rows(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """bool[k]; NaN equals NaN."""
    if left.shape != right.shape:
        return np.ones(len(left), bool)
    equal = (left == right) | ((left != left) & (right != right))
    return ~equal.reshape(len(equal), -1).all(axis=1)
