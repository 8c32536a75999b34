"""Changes of `PPOConfig.fast` for environments of other libraries, by their names here.

Each was chosen by thought or by a few trainings with other seeds than `benchmarks/zoo.py` reports.
It is `env.fast_changes` of the environments that are made by these names; see docs/zoo.md.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

MINATAR = {"total_env_steps": 10_000_000}
CHANGES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gymnax:Acrobot-v1": {"num_epochs": 10},
        "gymnax:MountainCar-v0": {"num_epochs": 10},
        "gymnax:Pendulum-v1": {"gamma": 0.95},
        "gymnax:Asterix-MinAtar": MINATAR,
        "gymnax:Breakout-MinAtar": MINATAR,
        "gymnax:Freeway-MinAtar": MINATAR,
        "gymnax:SpaceInvaders-MinAtar": MINATAR,
    }
)


def fast_changes(name: str) -> dict[str, Any]:
    """The changes for an environment by its name, such as "gymnax:Acrobot-v1"; mostly none."""
    return dict(CHANGES.get(name, {}))
