"""A run opened to be played, not trained: its policies together over their environment."""

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from jaxrl.algorithms.base import Algorithm
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.opponents import PoolState, copy_label
from jaxrl.core.env import strongly_typed
from jaxrl.core.errors import UsageError, brief, named_policy
from jaxrl.core.fields import (
    count,
    file_path,
    flag,
    instance_of,
    number,
    only,
    pairs,
    takes,
    text,
    without,
)
from jaxrl.core.frozen import freeze
from jaxrl.core.spaces import from_json
from jaxrl.core.types import PolicyId, PyTree
from jaxrl.episodes import EpisodeWriter
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.play.evaluate import evaluate_and_record, with_arguments
from jaxrl.play.host_episodes import EpisodeRange, EvaluationCopies, Players
from jaxrl.play.play_limit import DEFAULT_LIMIT, PlayLimit
from jaxrl.play.recording import (
    MAX_SHOWN_STEPS,
    EpisodeRecording,
    episodes_to_show,
    record_episodes,
)
from jaxrl.play.replayed_episode import recordings_in, refuse_settings_of_play
from jaxrl.play.sampling import env_of
from jaxrl.play.video import check_ending, check_episode_picture, write_episode
from jaxrl.run.devices.mesh import stacked
from jaxrl.run.inference.policy import Origin, Policy
from jaxrl.run.results import Result, ResultTree
from jaxrl.run.settings import HOST_SETTINGS, RunSettings
from jaxrl.run.storage import runs
from jaxrl.run.storage.checkpoint import Checkpoint, filled, open_found, saved_weights
from jaxrl.run.storage.config_file import read_config
from jaxrl.run.storage.hub import downloaded

DEFAULT_EPISODES = 100  # of `evaluate`
SHOWING = ("path", "out", "fps")  # the arguments of `render` that are of any episode
CONFIG = instance_of(AlgorithmConfig, "a configuration such as PPOConfig", optional=True)


@dataclass(frozen=True)
class LoadedRun:
    """Everything that an episode needs."""

    saved: Checkpoint
    algorithm: Algorithm
    weights: tuple[PolicyWeights, ...]  # by group, [N, ...]
    env_params: PyTree
    env: Mapping[str, Any]  # what makes the environment again, from `env_of`
    opponent: str | None = None  # whose weights play for the pool's policy; None: the newest copy

    @property
    def players(self) -> Players:
        """The policies, named by their iteration, and the environment."""
        facts = self.saved.facts
        name = f"iteration {facts['lifetime']['training_iteration']:,}"
        seed = facts["run_settings"]["evaluation_seed"]
        played = self.algorithm, self.weights, self.env_params, self.env
        return Players(*played, name=name, seed=seed)

    @property
    def against(self) -> Result:
        """Whom the policies meet, {"opponents": {policy: who}}; {} of a run without a pool."""
        policy = self.saved.facts["opponents_of"]
        if policy is None:
            return {}
        if self.opponent is not None:
            return {"opponents": {policy: self.opponent}}
        iterations = self.saved.arrays["runner.opponents.iteration"]
        return {"opponents": {policy: copy_label(int(iterations.max()))}}


@dataclass(frozen=True)
class OtherGame:
    """The differences of an episode's game from the training of a saved run.

    Args:
        env_args: arguments of the environment that differ from training's.
        opponent: who plays for the policy of the run's pool: a member's name, or "pool" for all of
            them; None: the newest copy.
    """

    env_args: Mapping[str, Any] | None = None
    opponent: str | None = None

    def __post_init__(self):
        if self.env_args is not None:
            pairs("{name: value}")("env_args", freeze(self.env_args))


def open_run(
    path: str | Path,
    which: str | int = "last",
    *,
    config: Any = None,
    game: OtherGame | None = None,
    trust: bool = False,
    call: str = "jaxrl.evaluate",
) -> LoadedRun:
    """The policies of a run's folder, of a checkpoint's, or of `hf:USER/NAME`.

    Args:
        which: "last", "best" or an iteration, where `path` is a run's folder.
        config: the configuration, only where its file cannot hold it. Callbacks that were objects
            are left out otherwise, and their metrics with them.
        game: what differs from training's; None: nothing.
        trust: import what the run names, though it is not jaxrl's or an installed plug-in's; see
            docs/loading.md.
        call: the Python function that asks, for errors.

    Raises:
        UsageError: no such checkpoint, a damaged one, other arguments that make another game, or no
            such opponent.
    """
    flag("trust", trust)
    CONFIG("config", config)
    saved = open_found(downloaded(path), which)
    env_args, opponent = (None, None) if game is None else (game.env_args, game.opponent)
    if opponent is not None and saved.facts["opponents_of"] is None:
        raise UsageError(f"opponent={brief(opponent)}: the run has no pool of opponents")
    if config is None:
        reading = {"to_play": True, "opponent": opponent, "trust": trust}
        config = read_config(saved.facts, call, **reading)
    algorithm = config.build()
    what = f"checkpoint {saved.path}"
    weights = []
    for group, policy_spec in zip(algorithm.grouping.groups, algorithm.policy_specs, strict=True):
        by_policy = [saved_weights(saved, policy, policy_spec) for policy in group.policies]
        weights.append(stacked(by_policy))
    if opponent is not None:
        weights, opponent = _with_opponent(algorithm, weights, saved, opponent)
    weights = tuple(weights)
    if env_args:
        algorithm = with_arguments(config, dict(env_args), algorithm)
        env_params = strongly_typed(algorithm.env_params)
        made = env_of(config, env_args)
        return LoadedRun(saved, algorithm, weights, env_params, made, opponent)
    env_params = strongly_typed(algorithm.env_params)
    if saved.facts["config"].get("env_task_fn") is None:  # else the saved ones are a curriculum's
        env_params = filled(env_params, saved.arrays, "env_params", what)
    return LoadedRun(saved, algorithm, weights, env_params, env_of(config), opponent)


def _with_opponent(
    algorithm: Algorithm, weights: list[PyTree], saved: Checkpoint, opponent: str
) -> tuple[list[PyTree], str]:
    """(`weights` by group, with a member of the saved pool for its policy; who that is)."""
    pool = algorithm.opponents
    if pool is None:
        raise UsageError(f"opponent={brief(opponent)}: the configuration has no opponents")
    shapes = jax.eval_shape(pool.init, weights[pool.group])
    what = f"checkpoint {saved.path}"
    state: PoolState = filled(shapes, saved.arrays, "runner.opponents", what)
    player = pool.player(state, opponent)
    weights = [*weights[: pool.group], player, *weights[pool.group + 1 :]]
    return weights, pool.label(state, opponent)


@takes(trust=flag)
def load_policy(
    path: str | Path,
    policy: PolicyId | None = None,
    *,
    checkpoint: str | int = "last",
    config: Any = None,
    model: Any = None,
    seed: int = 0,
    trust: bool = False,
) -> Policy:
    """A trained policy from a run's folder or a checkpoint's.

    Args:
        path: the folder; or `hf:USER/NAME`, a run published at Hugging Face, which is downloaded.
        policy: its name; may be left out if there is one alone.
        checkpoint: "last", "best" or an iteration, where `path` is a run's folder.
        config: the configuration, only where its file cannot hold it (an environment object, say).
        model: the policy's own network, where that was an object, which no file holds.
        seed: of the actions that it draws.
        trust: import what the run names, though it is not jaxrl's or an installed plug-in's; see
            docs/loading.md.

    Raises:
        UsageError: no such checkpoint or policy, or a damaged one, in one line.
    """
    saved = open_found(downloaded(path), checkpoint)
    return policy_of(saved, policy, config, model=model, seed=seed, trust=trust)


def policy_of(
    saved: Checkpoint,
    policy: PolicyId | None = None,
    config: Any = None,
    *,
    model: Any = None,
    seed: int = 0,
    trust: bool = False,
) -> Policy:
    """One policy of a checkpoint that was read."""
    policies = saved.facts["policies"]
    policy = named_policy(policy, tuple(policies), str(saved.path))
    given_config = config
    if config is None:
        changes = {} if model is None else {"model": model}
        config = read_config(
            saved.facts, "jaxrl.load_policy", to_play=policy, changes=changes, trust=trust
        )
    if not hasattr(config, "policy_spec"):
        raise UsageError(f"config={brief(config)} must be a PPOConfig, or None")
    saved_spaces = without(policies[policy], {"agents"})
    spaces = {name: from_json(space) for name, space in saved_spaces.items()}
    policy_spec = config.policy_spec(policy, num_agents=len(policies[policy]["agents"]), **spaces)
    weights = saved_weights(saved, policy, policy_spec)
    loading = {"config": given_config, "trust": trust, "call": "jaxrl.load_policy"}
    players = functools.partial(open_run, saved.path, **loading)
    return Policy(
        policy_spec,
        weights,
        name=policy,
        agents=policies[policy]["agents"],
        masked=saved.facts["action_masks"],
        seed=seed,
        origin=Origin(saved.facts["env_name"], str(saved.path), players),
    )


@takes(
    return_episodes=flag,
    opponent=text("the name of a member of the run's pool", optional=True),
    output=file_path("a folder's path", optional=True),
)
def evaluate(
    path: str | Path,
    *,
    episodes: int | None = None,
    explore: bool = False,
    seed: int | None = None,
    checkpoint: str | int = "last",
    env_args: Mapping[str, Any] | None = None,
    opponent: str | None = None,
    config: Any = None,
    trust: bool = False,
    max_steps: int | None = None,
    return_episodes: bool = False,
    output: str | Path | None = None,
    steps: int | None = None,
) -> Result:
    """Plays whole episodes with a run's policies; returns {"env_runners": ...} as RLlib does.

    Args:
        path: a run's folder, or a checkpoint's.
        episodes: how many; None: 100, or with `steps` as many as it takes.
        explore: whether actions are sampled; else each is its distribution's mode.
        seed: of the episodes; None: the run's `evaluation_seed`. With the `explore` and the
            `env_args` of the run's own evaluations as well, these are played again.
        checkpoint: "last", "best" or an iteration, where `path` is a run's folder.
        env_args: arguments of the environment that differ from training's.
        opponent: a member of the run's pool of opponents by its name, or "pool": all of them, drawn
            as in training; None: the newest copy. The result has who it was under "opponents".
        config: the configuration, only where its file cannot hold it.
        trust: import what the run names, though it is not jaxrl's or an installed plug-in's; see
            docs/loading.md.
        max_steps: where an episode is cut: it does not count, but in `num_episodes_cut`; None: the
            run's `evaluation_max_steps`.
        return_episodes: with the episodes as objects, as `Trainer.sample` has them, in a list under
            "episodes".
        output: a folder that the episodes are written to, as Parquet files; see
            `jaxrl.episodes.EpisodeWriter`.
        steps: the number of steps with which no further episode begins; the last one is whole.

    Raises:
        UsageError: no such checkpoint, a damaged one, arguments that are out of range, or an
            opponent that the run's pool does not have.
    """
    limit = DEFAULT_LIMIT if max_steps is None else PlayLimit(max_steps)
    if steps is not None:
        count()("steps", steps)
    if episodes is None:
        episodes = DEFAULT_EPISODES if steps is None else steps  # each has a step at least
    episode_range = EpisodeRange(0 if seed is None else seed, 0, episodes, explore, limit, steps)
    game = OtherGame(env_args, opponent)
    opened = open_run(path, checkpoint, config=config, game=game, trust=trust)
    run_settings = opened.saved.facts["run_settings"]
    if seed is None:
        episode_range = replace(episode_range, seed=opened.players.seed)
    if max_steps is None:
        episode_range = replace(
            episode_range, limit=PlayLimit(run_settings["evaluation_max_steps"])
        )
    returned, sinks = [], []
    with contextlib.ExitStack() as stack:
        copies = stack.enter_context(contextlib.closing(_copies_of(run_settings)))
        if return_episodes:
            sinks.append(returned.append)
        if output is not None:
            sinks.append(stack.enter_context(EpisodeWriter(output)).write)
        players = opened.players._replace(copies=copies)
        result = ResultTree(evaluate_and_record(players, episode_range, *sinks), **opened.against)
    return ResultTree(result, episodes=returned) if return_episodes else result


def _copies_of(run_settings: Mapping[str, Any]) -> EvaluationCopies:
    """Copies that are stepped as training's were."""
    return EvaluationCopies(RunSettings(**only(run_settings, HOST_SETTINGS)))


@takes(
    episode=count(0),
    max_steps=count(),
    out=file_path("the path of a picture", optional=True),
)
def render(
    path: str | Path,
    out: str | Path | None = None,
    *,
    episode: int = 0,
    explore: bool = False,
    seed: int | None = None,
    checkpoint: str | int = "last",
    max_steps: int = MAX_SHOWN_STEPS,
    fps: float | None = None,
    env_args: Mapping[str, Any] | None = None,
    config: Any = None,
    trust: bool = False,
) -> tuple[Path, EpisodeRecording]:
    """Plays an episode with a run's policies and writes it as a picture; (file, recording).

    Or writes an episode that was played, as `jaxrl.replay` takes them, with `out` and `fps` alone.

    Arguments that are not listed are those of `evaluate`.

    Args:
        path: a run's folder, or a checkpoint's; or an episode.
        out: the file, .gif, .mp4 or .png (a strip); None: episode.gif in the run's folder.
        episode: which of the seed's episodes.
        max_steps: where the episode is cut.
        fps: frames per second; None: so that it takes about ten seconds.

    Raises:
        UsageError: as `evaluate`; an environment without pictures, or a file that cannot be
            written.
    """
    settings = {name: value for name, value in locals().items() if name not in SHOWING}
    if fps is not None:
        number(0, open_low=True)("fps", fps)
    if out is not None:
        check_ending(out)
    if (recordings := recordings_in(path)) is not None:
        refuse_settings_of_play(render, settings)
        return _write_played(recordings, out, fps)
    shown = episodes_to_show(0 if seed is None else seed, episode, 1, explore, max_steps)
    loading = {"config": config, "game": OtherGame(env_args), "trust": trust}
    opened = open_run(path, checkpoint, **loading, call="jaxrl.render")
    out = _run_folder(opened.saved.path) / runs.EPISODE if out is None else Path(out)
    check_episode_picture(out, opened.algorithm.rollout_spec.env)
    if not out.parent.is_dir():
        raise UsageError(f"out={str(out)!r}: there is no folder {out.parent}")
    if seed is None:
        shown = replace(shown, seed=opened.players.seed)
    return _write_played(tuple(record_episodes(opened.players, shown)), out, fps)


def _write_played(
    recordings: tuple[EpisodeRecording, ...], out: str | Path | None, fps: float | None
) -> tuple[Path, EpisodeRecording]:
    if len(recordings) > 1 or out is None:
        raise UsageError(
            "jaxrl.render of an episode writes one: jaxrl.render(episode, 'episode.gif'); several "
            "are a page, jaxrl.replay(episodes)"
        )
    write_episode(out, *recordings, fps=fps)
    return Path(out), *recordings


def _run_folder(checkpoint: Path) -> Path:
    """The folder that belongs to a checkpoint: its run's, or of a checkpoint by itself its own."""
    run = checkpoint.parent.parent
    return run if (run / runs.CONFIG).exists() else checkpoint
