"""RLlib's configurations, read as this library's: `jaxrl.from_rllib`.

The names of RLlib's tutorials are here, too, so that their lines work with another import:

from jaxrl.rllib import PPOConfig      PPOConfig().environment(...).training(...).build_algo()
from jaxrl.rllib import PPO, PPOTrainer      PPOTrainer(config=config, env="CartPole-v1")
from jaxrl.rllib import DEFAULT_CONFIG, Algorithm, AlgorithmConfig, PolicySpec, RandomPolicy
from jaxrl.rllib import RLlibCallback, DefaultCallbacks      which is jaxrl.Callbacks
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl.rllib.builder import (
        DEFAULT_CONFIG,
        PPO,
        Algorithm,
        AlgorithmConfig,
        DefaultCallbacks,
        PolicySpec,
        PPOConfig,
        PPOTrainer,
        RandomPolicy,
        RLlibCallback,
    )

__all__ = [
    "DEFAULT_CONFIG",
    "PPO",
    "Algorithm",
    "AlgorithmConfig",
    "DefaultCallbacks",
    "PPOConfig",
    "PPOTrainer",
    "PolicySpec",
    "RLlibCallback",
    "RandomPolicy",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Is called for what the package does not have yet: `builder` is imported when used."""
        if name in __all__:
            from jaxrl.rllib import builder

            return getattr(builder, name)
        if not name[0].isupper():  # a module that is not imported yet, or a typo
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from jaxrl.core.errors import no_attribute
        from jaxrl.rllib.form import other_algorithm

        if name in ("BCConfig", "MARWILConfig"):
            raise other_algorithm(f"{__name__}.{name}", name.removesuffix("Config"))
        raise no_attribute(name, [__name__, "jaxrl"], __all__)
