"""A run opened to be played, not trained: its policies together over their environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.env import strongly_typed
from jaxrl.core.types import PyTree
from jaxrl.loop.runner import Algorithm
from jaxrl.models.player import Weights
from jaxrl.run import checkpoint, folder
from jaxrl.run.checkpoint import Checkpoint
from jaxrl.run.evaluate import check_wanted, with_arguments
from jaxrl.run.evaluate import evaluate as play_episodes
from jaxrl.run.policy import read_checkpoint, weights_shape
from jaxrl.run.results import Result


@dataclass(frozen=True)
class Opened:
    """Everything that an episode needs."""

    saved: Checkpoint
    algorithm: Algorithm
    weights: tuple[Weights, ...]  # by group, [N, ...]
    env_params: PyTree


def open_run(
    path: str | Path, which: str | int = "last", *, config: Any = None, env_args: Mapping[str, Any] | None = None
) -> Opened:
    """The policies of a run's folder, or of a checkpoint's.

    Args:
        which: "last", "best" or an iteration, where `path` is a run's folder.
        config: the configuration, only where its file cannot hold it. Callbacks that were objects are left out
            otherwise, and their metrics with them.
        env_args: arguments of the environment that differ from training's.

    Raises:
        UsageError: no such checkpoint, a damaged one, or other arguments that make another game.
    """
    saved = read_checkpoint(path, which)
    config = folder.read_config(saved.facts, to_play=True) if config is None else config
    algorithm = config.build()
    what = f"checkpoint {saved.path}"
    weights = tuple(
        jax.tree.map(
            lambda *leaves: jnp.stack(leaves),
            *(
                checkpoint.filled(weights_shape(player), saved.arrays, f"weights.{policy}", what)
                for policy in group.policies
            ),
        )
        for group, player in zip(algorithm.grouping.groups, algorithm.players, strict=True)
    )
    if env_args:
        algorithm = with_arguments(config, dict(env_args), algorithm)
        return Opened(saved, algorithm, weights, strongly_typed(algorithm.env_params))
    env_params = checkpoint.filled(strongly_typed(algorithm.env_params), saved.arrays, "env_params", what)
    return Opened(saved, algorithm, weights, env_params)


def evaluate(
    path: str | Path,
    *,
    episodes: int = 100,
    explore: bool = False,
    seed: int | None = None,
    checkpoint: str | int = "last",
    env_args: Mapping[str, Any] | None = None,
    config: Any = None,
) -> Result:
    """Plays whole episodes with a run's policies; {"env_runners": ...} as RLlib and `Trainer.evaluate` have it.

    Args:
        path: a run's folder, or a checkpoint's.
        explore: whether actions are sampled; else each is its distribution's mode.
        seed: of the episodes; None: the run's `evaluation_seed`. With the `explore` and the `env_args` of the run's own
            evaluations as well, these are played again.
        checkpoint: "last", "best" or an iteration, where `path` is a run's folder.
        env_args: arguments of the environment that differ from training's.
    """
    wanted = {"episodes": episodes, "explore": explore, "seed": 0 if seed is None else seed}
    check_wanted({**wanted, "env_args": env_args or {}})
    opened = open_run(path, checkpoint, config=config, env_args=env_args)
    if seed is None:
        wanted["seed"] = opened.saved.facts["run_settings"]["evaluation_seed"]
    return {"env_runners": play_episodes(opened.algorithm, opened.weights, opened.env_params, **wanted)}
