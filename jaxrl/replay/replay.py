"""`jaxrl.replay`: plays episodes with a run's policies and shows them on a page."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import count, takes
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.play.host_episodes import EpisodeRange, Players
from jaxrl.play.load import OtherGame, open_run
from jaxrl.play.recording import MAX_SHOWN_STEPS, episodes_to_show, record_episodes
from jaxrl.play.replayed_episode import recordings_in, refuse_settings_of_play
from jaxrl.replay.page import Column, Replay, make_replay
from jaxrl.run.devices.mesh import on_first_device
from jaxrl.run.storage import runs
from jaxrl.run.storage.checkpoint import run_path
from jaxrl.run.storage.hub import downloaded
from jaxrl.run.trainer import Trainer

UNTRAINED = "untrained"  # in place of a checkpoint: the policies before training
MAX_COLUMNS = 6


@takes(episode=count(0), max_steps=count())
def replay(
    source: Any,
    runner: RunnerState | None = None,
    *,
    episodes: int = 1,
    episode: int = 0,
    checkpoint: str | int | Sequence[str | int] = "last",
    explore: bool = False,
    seed: int | None = None,
    max_steps: int = MAX_SHOWN_STEPS,
    env_args: Mapping[str, Any] | None = None,
    config: Any = None,
    trust: bool = False,
) -> Replay:
    """Plays episodes and shows them on a page: `.save("episode.html")`, or as a notebook's output.

    Args:
        source: a run's folder, or a checkpoint's, or what `load_run` returned; a `Trainer`, which
            plays with its present policies; or a configuration, with the `runner` that
            `make_train` returned. Or an episode that was played, or a list of them: as
            `Trainer.sample` and `read_episodes` give them, or a recording, as of `replay_episode`
            and `render`; then nothing else is given.
        runner: the state of training, only with a configuration.
        episodes, episode: how many, and the number of the first.
        checkpoint: of a run: "last", "best", an iteration or "untrained", or a list of these, which
            are shown side by side and start alike.
        explore: whether actions are sampled; else each is its distribution's mode.
        seed: of the episodes; None: the run's `evaluation_seed`.
        max_steps: where an episode is cut.
        env_args: arguments of the environment that differ from training's; only of a run's folder.
        config: the configuration of a run, only where its file cannot hold it.
        trust: import what the run names, though it is not jaxrl's or an installed plug-in's; see
            docs/loading.md.

    Raises:
        UsageError: as `jaxrl.evaluate`; a page that would be too large.
    """
    settings = {name: value for name, value in locals().items() if name != "source"}
    if (recordings := recordings_in(source)) is not None:
        refuse_settings_of_play(replay, settings)
        return make_replay([Column("as it was played", recordings)])
    shown = episodes_to_show(0 if seed is None else seed, episode, episodes, explore, max_steps)
    note = ""
    if runner is not None and not isinstance(source, AlgorithmConfig):
        raise UsageError("jaxrl.replay takes a runner beside a configuration only")
    if isinstance(source, AlgorithmConfig | Trainer):
        if checkpoint != "last" or env_args or config is not None:
            raise UsageError(
                "jaxrl.replay of a trainer or a configuration plays its present policies: "
                "checkpoint, env_args and config are for a run's folder"
            )
        played = {"": _in_memory(source, runner)}
    else:
        source = runs.resolve(run_path(downloaded(getattr(source, "run_dir", source))))
        note = source.name
        loading = {"config": config, "game": OtherGame(env_args), "trust": trust}
        checkpoints = checkpoints_in(checkpoint)
        played = {which: players_of_run(source, which, loading) for which in checkpoints}
    if seed is None:
        shown = dataclasses.replace(shown, seed=next(iter(played.values())).seed)
    return make_replay(columns_of(played, shown), first=episode, note=note)


def columns_of(played: Mapping[str | int, Players], shown: EpisodeRange) -> list[Column]:
    """The episodes of several checkpoints, {which: its policies}, that start alike."""
    columns = []
    for which, players in played.items():
        recordings = tuple(record_episodes(players, shown))
        columns.append(Column(players.name, recordings, _note(which)))
    return columns


def checkpoints_in(checkpoint: Any) -> list[Any]:
    """The checkpoints that somebody names: one, or a list.

    Raises:
        UsageError: something else, none, or more than `MAX_COLUMNS`.
    """
    which = checkpoint if isinstance(checkpoint, list | tuple) else [checkpoint]
    for name in which:
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise UsageError(
                f"checkpoint={brief(name)} must be last, best, untrained or an iteration"
            )
    if not 1 <= len(which) <= MAX_COLUMNS:
        raise UsageError(
            f"checkpoint={checkpoint!r}: name one checkpoint, or up to {MAX_COLUMNS} to be shown "
            "side by side"
        )
    return list(dict.fromkeys(which))


def _note(which: str | int) -> str:
    """The words beside the name of a checkpoint's policies."""
    is_named = isinstance(which, str) and which != UNTRAINED and not which.isdecimal()
    return which if is_named else ""


def _in_memory(source: Any, runner: RunnerState | None) -> Players:
    """The present policies of a trainer, or those of a configuration's `runner`."""
    if isinstance(source, Trainer):
        algorithm, runner, env_params = source.algorithm, source.runner, source.env_params
        seed, done = source.settings.evaluation_seed, source.lifetime.training_iteration
        name = f"iteration {done:,}" if done else UNTRAINED
    elif runner is None:
        raise UsageError(
            "jaxrl.replay of a configuration needs the runner that make_train returned: "
            "jaxrl.replay(config, runner)"
        )
    else:
        algorithm, seed = source.build(), 0
        env_params, name = algorithm.env_params, f"iteration {int(runner.num_updates):,}"
    weights = on_first_device(tuple(learner.weights for learner in runner.learners))
    return Players(algorithm, weights, env_params, name=name, seed=seed)


def players_of_run(path: Any, which: str | int, loading: Mapping[str, Any]) -> Players:
    """The policies of one of a run's checkpoints; `loading`: more arguments of `open_run`."""
    saved = "last" if which == UNTRAINED else which
    opened = open_run(path, saved, call="jaxrl.replay", **loading)
    if which != UNTRAINED:
        return opened.players
    weights = untrained_weights(opened.algorithm, opened.saved.facts["config"]["seed"])
    return opened.players._replace(weights=weights, name=UNTRAINED)


def untrained_weights(algorithm: Algorithm, seed: int) -> tuple[PolicyWeights, ...]:
    """The weights that training with this seed begins with, but for those of `init_from`."""

    def start(key):
        return tuple(learner.weights for learner in algorithm.init(key).learners)

    return jax.jit(start)(jax.random.key(seed, impl="threefry2x32"))
