"""Tuned settings of other libraries' environments, by the names that they have here.

Each was chosen by thought or by a few trainings with other seeds than `benchmarks/zoo.py` reports.
They are `env.tuned` of the environments that are made by these names; see docs/zoo.md.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

MILLION = 1_000_000
CLASSIC = {
    "num_envs": 64,
    "rollout_length": 32,
    "minibatch_size": 512,
    "num_epochs": 10,
    "lr": [[0, 1e-3], [MILLION, 1e-4]],
    "lambda_": 0.95,
    "clip_param": 0.2,
    "value_clip": None,
    "vf_loss_coeff": 0.5,
    "grad_clip": 0.5,
    "fcnet_hiddens": (64, 64),
    "normalize_returns": True,
    "observation_filter": "MeanStdFilter",
    "total_env_steps": MILLION,
}
PENDULUM = {**CLASSIC, "num_epochs": 4, "gamma": 0.95, "free_log_std": True}
MINATAR = {  # the cells of the board as one row
    "num_envs": 64,
    "rollout_length": 128,
    "minibatch_size": 1024,
    "num_epochs": 4,
    "lr": [[0, 5e-3], [10 * MILLION, 1e-4]],
    "lambda_": 0.95,
    "clip_param": 0.2,
    "value_clip": None,
    "vf_loss_coeff": 0.5,
    "grad_clip": 0.5,
    "fcnet_hiddens": (64, 64),
    "fcnet_activation": "relu",
    "entropy_coeff": 0.01,
    "normalize_returns": True,
    "total_env_steps": 10 * MILLION,
}
TUNED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gymnax:Acrobot-v1": CLASSIC,
        "gymnax:MountainCar-v0": CLASSIC,
        "gymnax:Pendulum-v1": PENDULUM,
        **{f"gymnax:{game}-MinAtar": MINATAR for game in ("Asterix", "Breakout")},
        **{f"gymnax:{game}-MinAtar": MINATAR for game in ("Freeway", "SpaceInvaders")},
    }
)


def tuned_settings(name: str) -> dict[str, Any]:
    """The tuned settings of an environment by its name, such as "gymnax:Acrobot-v1"; or none."""
    return dict(TUNED.get(name, {}))
