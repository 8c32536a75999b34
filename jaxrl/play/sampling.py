"""Episodes as objects out of the compiled program, which records them in arrays."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from jaxrl.core.env import strongly_typed
from jaxrl.core.frozen import thawed
from jaxrl.core.plain_values import is_plain
from jaxrl.core.types import PyTree
from jaxrl.episodes.by_agent import Episode
from jaxrl.play.host_episodes import Players
from jaxrl.play.recording import recordings_of
from jaxrl.play.whole_episodes import PlayedBatch
from jaxrl.run.storage.checkpoint import named_arrays

ORIGIN = "origin"  # in an episode's `custom_data`: what plays it again


def env_of(config: Any, env_args: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The arguments that make a configuration's environment.

    The name is None where a file cannot hold them: for an object, and one made from objects.
    """
    args = {**thawed(config.env_args), **env_args}
    if not is_plain(args):
        return {"env": None, "env_args": {}}
    name = config.env if isinstance(config.env, str) else None
    return {"env": name, "env_args": args}


def plain_params(env_params: PyTree) -> dict[str, Any]:
    """An environment's numbers as JSON holds them, by name."""
    named = named_arrays(strongly_typed(env_params))
    return {name: leaf.tolist() for name, leaf in named.items()}


def episodes_of(players: Players, seed: int, batch: PlayedBatch) -> Iterator[Episode]:
    """The episodes of a batch whose steps were kept, as objects; without those that were cut."""
    origin = {**players.env, "env_params": plain_params(players.env_params), "seed": seed}
    spec = players.algorithm.rollout_spec
    for i, recording in enumerate(recordings_of(spec, players.env_params, batch)):
        if recording.end != "cut":
            episode = recording.episode
            episode.custom_data[ORIGIN] = {**origin, "episode": batch.first + i}
            yield episode


def passed_to(
    sinks: tuple[Callable[[Episode], Any], ...],
    players: Players,
    seed: int,
    batches: Iterable[PlayedBatch],
) -> Iterator[PlayedBatch]:
    """The batches without their steps; the sinks are called with each episode of them."""
    for batch in batches:
        for episode in episodes_of(players, seed, batch):
            for sink in sinks:
                sink(episode)
        yield batch._replace(steps=None)
