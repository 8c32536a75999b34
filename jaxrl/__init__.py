"""jaxrl: reinforcement learning in one compiled JAX program."""

from jaxrl.core.env import Environment, MultiAgentEnvironment, StackedEnvironment
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make, names, register
from jaxrl.ppo.config import PPOConfig
from jaxrl.ppo.train import make_train
from jaxrl.run.trainer import Trainer

__version__ = "0.1.0"
