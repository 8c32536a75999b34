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
from jaxrl.core.plan import labelled
from jaxrl.core.types import Key, PyTree
from jaxrl.outside.episode_lanes import EpisodeLanes
from jaxrl.outside.recorded_rollout import recorded_rollout
from jaxrl.run.devices.compiled import Program, StartAndChunk
from jaxrl.run.results import Result
from jaxrl.run.settings import RunSettings
from jaxrl.run.trainer import Trainer
from jaxrl.serving.godot import Scenes
from jaxrl.serving.server import PolicyServer
from jaxrl.serving.session import Experience
from jaxrl.serving.settings import ServerSettings

LOOK_SECONDS = 0.1  # between two looks whether the user asked to stop


class ExternalTrainer(Trainer):
    """A `Trainer` that serves its policies, and learns from the episodes of the clients.

    Clients act with the newest policies while an iteration is learned. So some of the next
    iteration's steps were chosen by the policies before, with the probabilities that are recorded
    with them. No step is older: where a whole batch waits, clients wait for their actions. With
    `sync` they also wait while an iteration is learned.

    Args:
        server_settings: where the server listens, and its limits.
        scenes: where scenes of Godot RL Agents connect to, if it was opened before.
        **others: as of `Trainer`.
    """

    def __init__(
        self,
        config: Any,
        *,
        server_settings: ServerSettings | None = None,
        scenes: Scenes | None = None,
        **others: Any,
    ):
        self.server: PolicyServer | None = None
        self.server_settings, self._scenes = server_settings, scenes
        super().__init__(config, **others)

    def build_program(self, env: Any, iteration: int) -> Program:
        """The program that learns from what clients live through."""
        config, settings = self.config, self.settings
        for name in ("workers", "env_step_timeout_s", "max_consecutive_faults"):
            value = getattr(settings, name)
            if value != RunSettings.__dataclass_fields__[name].default:
                raise UsageError(f"{name}={value} changes nothing: clients own the episodes")
        if settings.evaluation_interval is not None:
            raise UsageError(
                "evaluation_interval: clients own the episodes, so there is none to evaluate; an "
                "episode that starts with explore=False and training_enabled=False is a test"
            )
        algorithm = super().build_program(env, iteration).algorithm
        if algorithm.rollout_spec.explores:
            raise UsageError(
                "env='external': clients' policies only sample: leave out explore and "
                "exploration_config"
            )
        self.experience = Experience(config.rollout_length, config.train_batch_size)
        self.lanes = EpisodeLanes(config, algorithm.rollout_spec)
        return _ExternalProgram(algorithm, trainer=self)

    def fit(self, stop: Mapping[str, float] | None = None) -> Result | None:
        """Serves, and trains until a criterion holds, or Ctrl-C; see `Trainer.fit`."""
        policies = {name: self.get_policy(name) for name in self.algorithm.grouping.policies}
        keywords = {"explore": True, "seed": self.config.seed, "experience": self.experience}
        scenes, self._scenes = self._scenes, None  # the server closes them
        server = PolicyServer(policies, self.server_settings, **keywords, scenes=scenes)
        server.served.weights_version = self.lifetime.training_iteration
        with server:
            self.server = server
            self.progress.say(labelled("connect to", server.address))
            if server.scenes is not None:
                self.progress.say(labelled("scenes", f"connect to port {server.scenes.port}"))
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
        data: PyTree | None = None,
        num_recorded: int = 0,
    ) -> "_ExternalExecutable":
        if "external" not in self.executables:
            made = _ExternalExecutable(self.trainer, (key, hypers, env_params))
            self.executables["external"] = made
        return self.executables["external"]


class _ExternalExecutable(StartAndChunk):
    """The start, and an iteration on what clients lived through."""

    def __init__(self, trainer: ExternalTrainer, start: tuple[Key, PyTree, PyTree]):
        self.trainer, self.algorithm = trainer, trainer.algorithm
        self.timers: dict[str, float] = {}  # of the last update
        self.counts: dict[str, int] = {}
        start_program = jax.jit(self.algorithm.init).lower(*start)
        runner, batch = start_program.out_info, trainer.lanes.take()
        learn = functools.partial(_learn, self.algorithm)
        chunk_program = jax.jit(learn).lower(runner, batch, start[1])
        super().__init__(chunk_program.out_info[1], start_program, chunk_program, capacity=1)

    def chunk(
        self, runner: RunnerState, hypers: PyTree, env_params: PyTree, data: PyTree, count: int
    ) -> tuple[RunnerState, Metrics, None]:
        """One iteration, from the next batch of the clients' steps."""
        trainer, asked = self.trainer, time.perf_counter()
        batch, began = trainer.next_batch(), time.perf_counter()
        trainer.experience.is_held = trainer.settings.sync
        try:
            runner, metrics = jax.block_until_ready(self.chunk_program(runner, batch, hypers))
            weights = {
                name: jax.tree.map(np.asarray, self.algorithm.policy_weights(runner, name))
                for name in self.algorithm.grouping.policies
            }
            trainer.server.set_weights(weights)
        finally:  # a later `fit` needs the clients' steps
            trainer.experience.is_held = False
        self.timers = {"waiting": began - asked, "learning": time.perf_counter() - began}
        self.counts = {
            "num_faulty_episodes": trainer.server.counts["dropped"],
            "num_clients": len(trainer.server.sessions),
        }
        return runner, metrics, None

    def close(self) -> None:
        """The server ends with `fit`."""


def _learn(
    algorithm: Algorithm, runner: RunnerState, batch: tuple, hypers: PyTree
) -> tuple[RunnerState, Metrics]:
    """An iteration on recorded steps; its metrics are [1, ...]."""
    weights = tuple(learner.weights for learner in runner.learners)
    rollout = recorded_rollout(algorithm.rollout_spec, weights, *batch)
    runner, metrics = algorithm.learn(runner, rollout, hypers)
    return runner, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], metrics)
