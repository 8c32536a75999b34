"""Training from clients: a trainer whose episodes are lived by programs that own their loop."""

import functools
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.core.errors import UsageError
from jaxrl.core.types import Key, PyTree
from jaxrl.rollout.recorded_rollout import recorded_rollout
from jaxrl.run.devices.compiled import Program
from jaxrl.run.episode_lanes import EpisodeLanes
from jaxrl.run.results import Result
from jaxrl.run.trainer import Trainer
from jaxrl.serving.server import PolicyServer
from jaxrl.serving.session import Experience
from jaxrl.serving.settings import ServerSettings

LOOK_SECONDS = 0.1  # between two looks whether the user asked to stop


class ExternalTrainer(Trainer):
    """A `Trainer` that serves its policies, and learns from the episodes of the clients.

    Clients act with the newest policies while an iteration is learned. So some of the next
    iteration's steps were chosen by the policies before, with the probabilities that are recorded
    with them. No step is older: where a whole batch waits, clients wait for their actions.

    Args:
        server_settings: where the server listens, and its limits.
        **others: as of `Trainer`.
    """

    def __init__(
        self, config: Any, *, server_settings: ServerSettings | None = None, **others: Any
    ):
        self.server: PolicyServer | None = None
        self.server_settings = server_settings
        super().__init__(config, **others)
        if self.settings.evaluation_interval is not None:
            raise UsageError(
                "evaluation_interval: clients own the episodes, so there is none to evaluate; an "
                "episode that starts with explore=False and training_enabled=False is a test"
            )
        self.program = _ExternalProgram(self.algorithm, trainer=self)
        config = self.config
        self.experience = Experience(config.rollout_length, config.train_batch_size)
        self.lanes = EpisodeLanes(
            self.algorithm.rollout_spec, (config.rollout_length, config.num_envs)
        )

    def fit(self, stop: Mapping[str, float] | None = None) -> Result | None:
        """Serves, and trains until a criterion holds, or Ctrl-C; see `Trainer.fit`."""
        policies = {name: self.get_policy(name) for name in self.algorithm.grouping.policies}
        told = {"explore": True, "seed": self.config.seed, "experience": self.experience}
        server = PolicyServer(policies, self.server_settings, **told)
        server.served.weights_version = self.lifetime.training_iteration
        with server:
            self.server = server
            self.progress.say(f"connect to   {server.address}")
            try:
                return super().fit(stop)
            finally:
                self.server = None

    def train(self) -> Result:
        raise UsageError("train: clients are served while `fit` trains; give it a stop criterion")

    def next_batch(self) -> tuple:
        """A whole batch of what clients lived through; waits for it.

        Raises:
            KeyboardInterrupt: the user asked to stop meanwhile.
        """
        while self.lanes.num_env_steps < self.algorithm.num_env_steps:
            if self.interrupt.heard:
                raise KeyboardInterrupt
            if (chunk := self.experience.get(LOOK_SECONDS)) is not None:
                self.lanes.add(chunk)
        return self.lanes.take()


class _ExternalProgram(Program):
    """The compiled parts of a training from clients."""

    def __init__(self, algorithm: Algorithm, *, trainer: ExternalTrainer):
        super().__init__(algorithm)
        self.trainer = trainer

    def executable(
        self,
        key: Key,
        hypers: PyTree,
        env_params: PyTree,
        data: PyTree = (),
        num_recorded: int = 0,
    ) -> "_ExternalExecutable":
        if "external" not in self.executables:
            made = _ExternalExecutable(self.trainer, (key, hypers, env_params))
            self.executables["external"] = made
        return self.executables["external"]


class _ExternalExecutable:
    """What `CompiledAlgorithm` is for a training in JAX: the start, and an iteration."""

    capacity, loaded = 1, False

    def __init__(self, trainer: ExternalTrainer, start: tuple[Key, PyTree, PyTree]):
        self.trainer, self.algorithm = trainer, trainer.algorithm
        self.compiled = self.can_start = False
        self.start_program = jax.jit(self.algorithm.init).lower(*start)
        runner, batch = self.start_program.out_info, trainer.lanes.take()
        learn = functools.partial(_learn, self.algorithm)
        self.chunk_program = jax.jit(learn).lower(runner, batch, start[1])
        self.metrics = self.chunk_program.out_info[1]

    def compile(self, *, start: bool) -> float:
        """Compiles what is missing; the seconds that it took."""
        began = time.perf_counter()
        if start and not self.can_start:
            self.start_program, self.can_start = self.start_program.compile(), True
        if not self.compiled:
            self.chunk_program, self.compiled = self.chunk_program.compile(), True
        return time.perf_counter() - began

    def start(self, key: Key, hypers: PyTree, env_params: PyTree) -> RunnerState:
        return jax.block_until_ready(self.start_program(key, hypers, env_params))

    def chunk(
        self, runner: RunnerState, hypers: PyTree, env_params: PyTree, data: PyTree, count: int
    ) -> tuple[RunnerState, Metrics, tuple]:
        """One iteration, from the next batch of the clients' steps."""
        batch = self.trainer.next_batch()
        runner, metrics = jax.block_until_ready(self.chunk_program(runner, batch, hypers))
        weights = {
            name: jax.tree.map(np.asarray, self.algorithm.policy_weights(runner, name))
            for name in self.algorithm.grouping.policies
        }
        self.trainer.server.set_weights(weights)
        return runner, metrics, ()


def _learn(
    algorithm: Algorithm, runner: RunnerState, batch: tuple, hypers: PyTree
) -> tuple[RunnerState, Metrics]:
    """An iteration on recorded steps; its metrics are [1, ...]."""
    weights = tuple(learner.weights for learner in runner.learners)
    rollout = recorded_rollout(algorithm.rollout_spec, weights, *batch)
    runner, metrics = algorithm.learn(runner, rollout, hypers)
    return runner, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], metrics)
