"""Episodes as Minari datasets and back: one dataset for each policy, an episode for each agent.

Files that are written here carry checksums, which HDF5 verifies whenever they are read.

Minari's actions are in the environment's units. Its rewards are numbers, and it has no place for
what a model puts out: that is kept among the infos, and read back from there.
"""

import contextlib
import copy
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, brief, reason_of, require
from jaxrl.episodes.episode import Episode
from jaxrl.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl.episodes.values import Nested, Space, leaves, map_nested

MAKES_BY_NAME = "jaxrl.adapters.to_gymnasium:gymnasium_by_name"  # for Gymnasium, of our names
PART = re.compile(r"[-\w]{1,100}")  # of a dataset's name, which is a path below Minari's folder
EPISODES_AT_ONCE = 500  # in memory, of each dataset
# What h5py, Minari and Gymnasium raise for a damaged file.
DAMAGE = (
    *(ValueError, OSError, AssertionError, TypeError, LookupError, AttributeError, RuntimeError),
    *(OverflowError, MemoryError),
)
ENV_ACTIONS, SAMPLED_ACTIONS = "actions_for_env", "sampled_actions"


def to_minari(episodes: Iterable[Episode], dataset_id: str) -> list[str]:
    """Writes episodes as Minari datasets; returns their ids, which `minari.load_dataset` opens.

    Episodes of one agent are written to the dataset `dataset_id`. Of several agents each policy has
    a dataset of its own, `arena/sampled-pol1-v0` for "arena/sampled-v0". The episodes need their
    spaces. Infos are left out. Where episodes of one agent say by name where they were played, as
    those of trainers do, the dataset has that environment's specification, from which Minari's
    `recover_environment` makes it.

    Raises:
        UsageError: Minari is not installed, an id that it does not take or that is taken, episodes
            without spaces.
    """
    _require("writing")
    _check_id(dataset_id)
    if not re.search(r"-v\d+$", dataset_id):
        raise UsageError(
            f"Minari dataset {brief(dataset_id)}: the name must end in a version, such as "
            "arena/sampled-v0"
        )
    datasets: dict[str, Any] = {}
    waiting: dict[str, list[SingleAgentEpisode]] = {}
    for episode in episodes:
        for policy, agents in _by_policy(episode):
            name = _named(dataset_id, policy)
            waiting.setdefault(name, []).append(agents)
            if len(waiting[name]) >= EPISODES_AT_ONCE:
                _add(datasets, name, waiting.pop(name))
    for name, rest in waiting.items():
        _add(datasets, name, rest)
    for name, dataset in datasets.items():
        with _in_one_line(name):
            _add_checksums(dataset.storage)
    return list(datasets)


def from_minari(dataset_id: str) -> Iterator[SingleAgentEpisode]:
    """The episodes of a Minari dataset on this machine, whoever wrote it; spaces are Gymnasium's.

    Raises:
        UsageError: Minari is not installed, there is no such dataset, or, while it is read, it is
            damaged: a checksum is wrong, or its counts are not those of its metadata.
    """
    _require("reading")
    import minari

    _check_id(dataset_id)
    with _in_one_line(dataset_id):
        dataset = minari.load_dataset(dataset_id)
    return _read(dataset, dataset_id)


def _check_id(dataset_id: str) -> None:
    """Refuses a name that would lead out of Minari's folder."""
    if not all(PART.fullmatch(part) for part in dataset_id.split("/")):
        raise UsageError(f"Minari dataset {brief(dataset_id)}: a name is such as arena/sampled-v0")


def _require(verb: str) -> None:
    for package in ("minari", "h5py"):
        require(package, f"{verb} Minari datasets", "'minari[hdf5]'")


def _by_policy(episode: Episode) -> Iterator[tuple[str | None, SingleAgentEpisode]]:
    if isinstance(episode, MultiAgentEpisode):
        for agents in episode.agent_episodes.values():
            yield agents.module_id, agents
    else:
        yield None, episode


def _named(dataset_id: str, policy: str | None) -> str:
    if policy is None:
        return dataset_id
    if not PART.fullmatch(str(policy)):
        raise UsageError(
            f"policy {brief(policy)} cannot be part of a Minari dataset's name: letters, digits, "
            "- and _ can"
        )
    base, _, version = dataset_id.rpartition("-v")
    return f"{base}-{policy}-v{version}"


def _add(datasets: dict[str, Any], name: str, episodes: list[SingleAgentEpisode]) -> None:
    """Adds episodes to a dataset, which the first ones make."""
    import minari

    spaces = {"observation_space": episodes[0].observation_space}
    spaces["action_space"] = episodes[0].action_space
    if None in spaces.values():
        raise UsageError(
            f"episode {episodes[0].id_} has no spaces, which Minari needs: set its "
            "observation_space and action_space"
        )
    with _in_one_line(name), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for authors, environments and the like
        if name in datasets:
            datasets[name].storage.update_episodes(map(_buffer, episodes))
            return
        spaces = {key: gymnasium_space(space) for key, space in spaces.items()}
        datasets[name] = minari.create_dataset_from_buffers(
            name, list(map(_buffer, episodes)), jpeg_encoding=False, **spaces
        )
        if (specification := _specification(episodes[0])) is not None:
            datasets[name].storage.update_metadata({"env_spec": specification})


def _specification(episode: SingleAgentEpisode) -> str | None:
    """Gymnasium's `EnvSpec` of an episode's environment, as JSON; None where it has no name."""
    origin = episode.custom_data.get("origin")
    if not isinstance(origin, Mapping) or not isinstance(env := origin.get("env"), str):
        return None
    from gymnasium.envs.registration import EnvSpec, registry

    args = dict(origin.get("env_args") or {})
    registered = registry.get(env.removeprefix("gym:")) if env.startswith("gym:") else None
    if registered is None:
        name = re.sub(r"[^\w.-]", "_", env)
        kwargs = {"env": env, "env_args": args}
        return EnvSpec(f"jaxrl/{name}", entry_point=MAKES_BY_NAME, kwargs=kwargs).to_json()
    specification = copy.deepcopy(registered)
    steps = args.pop("max_episode_steps", specification.max_episode_steps)
    specification.max_episode_steps = steps  # which is no argument of the environment's own
    specification.kwargs |= args
    return specification.to_json()


@contextlib.contextmanager
def _in_one_line(dataset_id: str) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except DAMAGE as error:
        raise UsageError(f"Minari dataset {dataset_id!r}: {reason_of(error)}") from None


def _add_checksums(storage: Any) -> None:
    """Writes the file of a dataset again, each array and each header with its checksum."""
    import h5py

    (path,) = storage.data_path.glob("*.hdf5")
    new = path.with_name(f".{path.name}.new")
    try:
        # HDF5 1.10 and later have checksums of the headers.
        with h5py.File(path) as source, h5py.File(new, "w", libver="v110") as target:
            _copy(source, target)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    storage.update_metadata({"dataset_size": storage.get_size()})


def _copy(source: Any, target: Any) -> None:
    """A group of HDF5 into another one: its attributes, arrays and groups, in their order."""
    target.attrs.update(source.attrs)
    for name, part in source.items():
        if hasattr(part, "keys"):
            _copy(part, target.create_group(name, track_order=True))
            continue
        options = {"maxshape": part.maxshape, "chunks": part.chunks} if part.chunks else {}
        # HDF5 has no checksum of a single value, nor of texts and lists of different lengths.
        is_summed = part.chunks is not None and part.dtype.kind != "O"
        copied = target.create_dataset(
            name, data=part[()], dtype=part.dtype, fletcher32=is_summed, **options
        )
        copied.attrs.update(part.attrs)


def _buffer(episode: SingleAgentEpisode) -> Any:
    """An episode in Minari's form."""
    from minari.data_collector import EpisodeBuffer

    actions = episode.actions.arrays()
    outputs = {name: column.arrays() for name, column in episode.extra_model_outputs.items()}
    if ENV_ACTIONS in outputs:
        outputs[SAMPLED_ACTIONS], actions = actions, outputs.pop(ENV_ACTIONS)
    is_last = np.arange(len(episode)) == len(episode) - 1
    # An info for each observation: after the last action there is nothing new.
    longer = lambda leaf: np.concatenate([leaf, leaf[-1:]])
    return EpisodeBuffer(
        observations=episode.observations.arrays(),
        actions=actions,
        rewards=episode.rewards.arrays(),
        terminations=is_last & episode.is_terminated,
        truncations=is_last & (not episode.is_terminated),
        infos={name: map_nested(longer, values) for name, values in outputs.items()},
    )


def _read(dataset: Any, dataset_id: str) -> Iterator[SingleAgentEpisode]:
    """The episodes, checked: after the last one their steps must be as many as the metadata say."""
    num_steps = 0
    with _in_one_line(dataset_id):
        for data in dataset.iterate_episodes():
            yield _episode(dataset, dataset_id, data)
            num_steps += len(data.rewards)
        if num_steps != dataset.total_steps:
            raise UsageError(
                f"Minari dataset {dataset_id!r} is damaged: its episodes have {num_steps:,} steps, "
                f"and its metadata say {dataset.total_steps:,}"
            )


def _episode(dataset: Any, dataset_id: str, data: Any) -> SingleAgentEpisode:
    count = len(data.rewards)
    if not len(data.terminations) == len(data.truncations) == count:
        raise UsageError(
            f"Minari dataset {dataset_id!r} is damaged: episode {data.id} has {count} rewards, "
            f"{len(data.terminations)} terminations and {len(data.truncations)} truncations"
        )
    outputs = {}
    for name, values in (data.infos or {}).items():
        if _has_rows(values, count + 1):
            outputs[name] = map_nested(lambda leaf: leaf[:count], values)
    actions = data.actions
    if SAMPLED_ACTIONS in outputs:
        outputs[ENV_ACTIONS], actions = actions, outputs.pop(SAMPLED_ACTIONS)
    return SingleAgentEpisode(
        f"{dataset_id}#{data.id}",
        observations=data.observations,
        observation_space=dataset.observation_space,
        actions=actions,
        action_space=dataset.action_space,
        rewards=data.rewards,
        terminated=bool(data.terminations[-1]),
        truncated=bool(data.truncations[-1]),
        extra_model_outputs=outputs,
        len_lookback_buffer=0,
        copy=False,
    )


def _has_rows(values: Nested, count: int) -> bool:
    """Returns whether these are arrays with a row for each observation."""
    return all(isinstance(leaf, np.ndarray) and len(leaf) == count for leaf in leaves(values))


def gymnasium_space(space: Space) -> Any:
    """A space of jaxrl as Gymnasium's; Gymnasium's own as they are."""
    from gymnasium import spaces

    if isinstance(space, spaces.Space):
        return space
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return spaces.Dict({name: gymnasium_space(part) for name, part in parts.items()})
    if parts is not None:
        return spaces.Tuple(tuple(map(gymnasium_space, parts)))
    if hasattr(space, "nvec"):
        start = np.broadcast_to(space.start, space.shape)
        return spaces.MultiDiscrete(space.nvec, dtype=space.dtype, start=start)
    if hasattr(space, "n"):
        return spaces.Discrete(space.n, start=space.start, dtype=space.dtype)
    if np.dtype(space.dtype) == bool:
        return spaces.MultiBinary(space.shape)
    broadcast = lambda bound: np.broadcast_to(np.asarray(bound, space.dtype), space.shape)
    return spaces.Box(broadcast(space.low), broadcast(space.high), space.shape, space.dtype)
