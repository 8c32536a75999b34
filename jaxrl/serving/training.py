"""Training from clients: a trainer whose episodes are lived by programs that own their loop."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.core.errors import UsageError
from jaxrl.core.plan import labelled
from jaxrl.core.types import PyTree
from jaxrl.outside.episode_lanes import EpisodeLanes
from jaxrl.outside.program import OutsideProgram, RolloutSource, structure_of
from jaxrl.outside.recorded_rollout import recorded_rollout
from jaxrl.rollout.rollout import Rollout
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

    def build_program(self, env: Any, iteration: int) -> OutsideProgram:
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
        if settings.output is not None:
            raise UsageError("output: clients own the episodes, and their steps are not written")
        structure = structure_of(config)
        if structure.algorithm.rollout_spec.explores:
            raise UsageError(
                "env='external': clients' policies only sample: leave out explore and "
                "exploration_config"
            )
        self.clients = Clients(self, structure.algorithm)
        return OutsideProgram(structure, self.clients, "clients")

    def fit(self, stop: Mapping[str, float] | None = None) -> Result | None:
        """Serves, and trains until a criterion holds, or Ctrl-C; see `Trainer.fit`."""
        policies = {name: self.get_policy(name) for name in self.algorithm.grouping.policies}
        keywords = {
            "explore": True,
            "seed": self.config.seed,
            "experience": self.clients.experience,
        }
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


class Clients(RolloutSource):
    """The steps that a trainer's clients live through, as the rollouts that it learns from."""

    def __init__(self, trainer: ExternalTrainer, algorithm: Algorithm):
        self.trainer, self.algorithm = trainer, algorithm
        config = trainer.config
        self.experience = Experience(config.rollout_length, config.train_batch_size)
        self.lanes = EpisodeLanes(config, algorithm.rollout_spec)

    def batch_shapes(self, runner: RunnerState, env_params: PyTree) -> PyTree:
        """The shapes of a batch that nobody has played yet, which all batches have."""
        return EpisodeLanes(self.trainer.config, self.algorithm.rollout_spec).take()

    def rollout(self, runner: RunnerState, batch: PyTree) -> Rollout:
        weights = tuple(learner.weights for learner in runner.learners)
        return recorded_rollout(self.algorithm.rollout_spec, weights, *batch)

    def take(self, runner: RunnerState, env_params: PyTree) -> tuple[RunnerState, PyTree]:
        """(the runner, a whole batch of what clients lived through); waits for it.

        Raises:
            KeyboardInterrupt: the user asked to stop meanwhile.
        """
        while self.lanes.num_env_steps < self.algorithm.num_env_steps:
            if self.trainer.interrupt.heard:
                raise KeyboardInterrupt
            if (chunk := self.experience.get(LOOK_SECONDS)) is not None:
                self.lanes.add(chunk)
        return runner, self.lanes.take()

    @contextlib.contextmanager
    def learning(self, runner: RunnerState) -> Iterator[None]:
        """Clients wait for it with `sync`."""
        self.experience.is_held = self.trainer.settings.sync
        try:
            yield
        finally:  # a later `fit` needs the clients' steps
            self.experience.is_held = False

    def learned(self, runner: RunnerState) -> None:
        """Clients act with the new weights."""
        weights = {
            name: jax.tree.map(np.asarray, self.algorithm.policy_weights(runner, name))
            for name in self.algorithm.grouping.policies
        }
        server = self.trainer.server
        server.set_weights(weights)
        self.counts = {
            "num_faulty_episodes": server.counts["dropped"],
            "num_clients": len(server.sessions),
        }
