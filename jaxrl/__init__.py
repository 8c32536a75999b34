"""jaxrl: reinforcement learning in one compiled JAX program.

env, params = jaxrl.make("arena")                       environments by name; jaxrl.names() lists them
runner, metrics = jax.jit(jaxrl.make_train({"env": "arena"}))(jax.random.key(0))    a whole training, one function
jaxrl.Trainer(jaxrl.PPOConfig.tuned("arena")).fit()     the same in chunks, with a console and logs
"""

from jaxrl.core.env import Environment, MultiAgentEnvironment, StackedEnvironment
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make, names, register
from jaxrl.core.testing import check_env
from jaxrl.ppo.config import PPOConfig
from jaxrl.ppo.train import make_train
from jaxrl.run.trainer import Trainer

__version__ = "0.1.0"

__all__ = [
    "Environment",
    "MultiAgentEnvironment",
    "PPOConfig",
    "StackedEnvironment",
    "Trainer",
    "UsageError",
    "check_env",
    "make",
    "make_train",
    "names",
    "register",
]
