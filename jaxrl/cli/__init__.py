"""The command lines, made from the settings' own declarations."""

from jaxrl.cli.episodes import episodes
from jaxrl.cli.evaluate import evaluate, render
from jaxrl.cli.plot import plot
from jaxrl.cli.serve import serve
from jaxrl.cli.sweep import run_sweep
from jaxrl.cli.train import train_bc, train_ppo
from jaxrl.cli.watch import report, watch

__all__ = [
    "episodes",
    "evaluate",
    "plot",
    "render",
    "report",
    "run_sweep",
    "serve",
    "train_bc",
    "train_ppo",
    "watch",
]
