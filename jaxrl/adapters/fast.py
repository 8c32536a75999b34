"""Changes of `PPOConfig.fast` for environments of other libraries, by their names here.

Each was chosen by thought or by a few trainings with other seeds than `benchmarks/zoo.py` reports.
It is `env.fast_changes` of the environments that are made by these names; see docs/zoo.md.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

MINATAR = {"total_env_steps": 10_000_000}
# Batch, epochs and rate follow Tianshou's example for MuJoCo, the rest is `fast`. The first
# standard deviation, of actions from -1 to 1, is 0.37 in place of 1, which clips a third of them.
MUJOCO = {
    "num_envs": 32,
    "rollout_length": 64,
    "minibatch_size": 64,
    "num_epochs": 10,
    "total_env_steps": 1_000_000,
    "lr": ((0, 3e-4), (1_000_000, 1e-5)),
    "kl_coeff": 0.0,
    "log_std_init": -1.0,
}
# After RL Baselines3 Zoo: a stroke pays long after it begins.
SWIMMER = {
    **MUJOCO,
    **{"num_envs": 4, "rollout_length": 1024, "minibatch_size": 256},
    **{"lr": 6e-4, "gamma": 0.9999, "lambda_": 0.98, "log_std_init": 0.0},
}
MUJOCO_TASKS = {
    **dict.fromkeys(("Ant", "Hopper", "InvertedPendulum", "Walker2d"), MUJOCO),
    # In these three the effect of an action shows within a few steps.
    "HalfCheetah": {**MUJOCO, "gamma": 0.98, "lambda_": 0.92},
    "InvertedDoublePendulum": {**MUJOCO, "gamma": 0.98, "lambda_": 0.8, "minibatch_size": 512},
    "Reacher": {**MUJOCO, "gamma": 0.95},
    "Swimmer": SWIMMER,
}
# Those of RL Baselines3 Zoo, but that observations and rewards are normalised: the end of a landing
# has to reach back over hundreds of steps.
LUNAR_LANDER = {
    "num_envs": 16,
    "rollout_length": 1024,
    "minibatch_size": 64,
    "lr": 3e-4,
    "gamma": 0.999,
    "lambda_": 0.98,
    "entropy_coeff": 0.01,
    "kl_coeff": 0.0,
}
# Those of RL Baselines3 Zoo, but that its clipping of 0.18 is ours of 0.2.
BIPEDAL_WALKER = {
    "num_envs": 32,
    "rollout_length": 512,
    "minibatch_size": 256,
    "num_epochs": 10,
    "total_env_steps": 5_000_000,
    "lr": 3e-4,
    "gamma": 0.999,
    "kl_coeff": 0.0,
}
CHANGES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gymnax:Acrobot-v1": {"num_epochs": 10},
        "gymnax:MountainCar-v0": {"num_epochs": 10},
        "gymnax:Pendulum-v1": {"gamma": 0.95},
        "gymnax:Asterix-MinAtar": MINATAR,
        "gymnax:Breakout-MinAtar": MINATAR,
        "gymnax:Freeway-MinAtar": MINATAR,
        "gymnax:SpaceInvaders-MinAtar": MINATAR,
        **{
            f"envpool:{task}-{version}": changes
            for task, changes in MUJOCO_TASKS.items()
            for version in ("v4", "v5")
        },
        # Read as it is, a counter up to 4,000 slows learning down.
        "jumanji:Snake-v1": {"ignore_observations": ("step_count",)},
        # An episode has 26 steps. Rewards are below zero in a world without walls: see docs/ppo.md,
        # "Normalised returns".
        "jaxmarl:MPE_simple_spread_v3": {"normalize_returns": False, "gamma": 0.95},
        "envpool:BipedalWalker-v3": BIPEDAL_WALKER,
        "envpool:LunarLander-v2": LUNAR_LANDER,
        "envpool:LunarLander-v3": LUNAR_LANDER,
    }
)


class WithFastChanges:
    """An environment that is made by its name, such as "gymnax:Acrobot-v1"."""

    name: str

    @property
    def fast_changes(self) -> dict[str, Any]:
        """The changes for its name; mostly none."""
        return dict(CHANGES.get(self.name, {}))
