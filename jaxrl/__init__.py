"""jaxrl: reinforcement learning in one compiled JAX program.

env, params = jaxrl.make("arena")                      environments; jaxrl.names() lists them
train = jax.jit(jaxrl.make_train({"env": "arena"}))    a whole training as one pure function
runner, metrics = train(jax.random.key(0))
jaxrl.Trainer(jaxrl.PPOConfig.tuned("arena")).fit()    the same with console, logs and checkpoints
jaxrl.Trainer.from_checkpoint("runs/arena/...").fit()  resumes it, equal to the bit
jaxrl.load_policy("runs/arena/...", "pol1").act(obs)   a trained policy alone; NumPy in, NumPy out
jaxrl.load_policy("runs/...").export("model.onnx")     the policy for other programs
jaxrl.publish("runs/arena/...", "hf:USER/NAME")        with a model card; or into a folder
jaxrl.load_run("runs/arena/...").dataframe()           its results: dataframe(), plot()
jaxrl.evaluate("runs/arena/...", episodes=100)         whole episodes of a run's policies
trainer.sample(100)                                    episodes as objects: steps, log-probabilities
jaxrl.replay_episode(episode).difference               None: its environment gives the same again
jaxrl.estimate_return("data/arena", policy)            its return, from episodes of another policy
jaxrl.replay("runs/arena/...").save("episode.html")    episodes on a page that plays them
jaxrl.join("host0:1234", 2, process_id)                first, in each of several processes
jaxrl.use_compile_cache()                              first: the next process compiles nothing
jaxrl.sweep(config, {"lr": [3e-4, 1e-3]}, seeds=8)     many trainings in one compiled program
jaxrl.to_gymnasium_vector("cartpole", 256)             environments for other libraries
jaxrl.Learner(config, obs_space, action_space)         acting and learning, in a loop of your own
jaxrl.from_rllib("params.json").config                 RLlib's configuration as a PPOConfig
"""

from typing import TYPE_CHECKING, Any

from jaxrl.adapters.to_gymnasium import to_gymnasium, to_gymnasium_vector
from jaxrl.adapters.to_gymnax import to_gymnax
from jaxrl.adapters.to_jaxmarl import to_jaxmarl
from jaxrl.adapters.to_pettingzoo import to_pettingzoo
from jaxrl.adapters.to_rllib import rllib_env_runner, to_rllib, to_rllib_vector
from jaxrl.adapters.to_sb3 import to_sb3_vec
from jaxrl.algorithms.bc.config import BCConfig, MARWILConfig
from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.algorithms.ppo.ppo import make_train
from jaxrl.algorithms.task_settings import OpponentPool
from jaxrl.cluster.hosts import join
from jaxrl.core.batched_env import BatchedEnvironment
from jaxrl.core.curriculum import Curriculum, LevelsBySuccess
from jaxrl.core.env import Environment, MultiAgentEnvironment, StackedEnvironment
from jaxrl.core.env_checker import check_env
from jaxrl.core.errors import UsageError, no_attribute
from jaxrl.core.frame_stack import frame_stack
from jaxrl.core.registry import make, names, register
from jaxrl.core.seats import ShuffledSeats
from jaxrl.core.transform import transform
from jaxrl.offline.estimators import estimate_return
from jaxrl.outside.learner import Learner
from jaxrl.play.load import evaluate, load_policy, render
from jaxrl.play.replayed_episode import replay_episode
from jaxrl.publishing.publish import publish
from jaxrl.replay.page import Replay
from jaxrl.replay.replay import replay
from jaxrl.rllib.translation import Translation, from_rllib
from jaxrl.run.callbacks import Callbacks
from jaxrl.run.devices.compile_cache import use_compile_cache
from jaxrl.run.every import Every
from jaxrl.run.health import Diverged
from jaxrl.run.hooks import Hook
from jaxrl.run.inference.policy import Policy
from jaxrl.run.logging.loaded_run import Run, load_run
from jaxrl.run.logging.loggers import Logger
from jaxrl.run.settings import RunSettings
from jaxrl.run.trainer import Trainer
from jaxrl.sweeps.population_based_training import PopulationBasedTraining
from jaxrl.sweeps.space import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    quniform,
    randint,
    uniform,
)
from jaxrl.sweeps.sweep import resume_sweep, sweep

__version__ = "0.1.0"

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Is called for what the package does not have; says the word for it here."""
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise no_attribute(name, ["jaxrl"], __all__)


__all__ = [
    "BCConfig",
    "BatchedEnvironment",
    "Callbacks",
    "Curriculum",
    "Diverged",
    "Environment",
    "Every",
    "Hook",
    "Learner",
    "LevelsBySuccess",
    "Logger",
    "MARWILConfig",
    "MultiAgentEnvironment",
    "OpponentPool",
    "PPOConfig",
    "Policy",
    "PopulationBasedTraining",
    "Replay",
    "Run",
    "RunSettings",
    "ShuffledSeats",
    "StackedEnvironment",
    "Trainer",
    "Translation",
    "UsageError",
    "check_env",
    "choice",
    "estimate_return",
    "evaluate",
    "frame_stack",
    "from_rllib",
    "grid_search",
    "join",
    "load_policy",
    "load_run",
    "lograndint",
    "loguniform",
    "make",
    "make_train",
    "names",
    "publish",
    "quniform",
    "randint",
    "register",
    "render",
    "replay",
    "replay_episode",
    "resume_sweep",
    "rllib_env_runner",
    "sweep",
    "to_gymnasium",
    "to_gymnasium_vector",
    "to_gymnax",
    "to_jaxmarl",
    "to_pettingzoo",
    "to_rllib",
    "to_rllib_vector",
    "to_sb3_vec",
    "transform",
    "uniform",
    "use_compile_cache",
]
