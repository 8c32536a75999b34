"""Training on steps from outside JAX: a compiled program that learns, and a source of rollouts.

`Copies` of an environment play the next rollout while the learner works, so it is played by the
weights of one update before; with `sync` by the newest ones. Either way the rollout holds the
probabilities that its actions were drawn with. Another source is the `Clients` of a server.
"""

import abc
import contextlib
import functools
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.memory_estimate import check_sizes
from jaxrl.algorithms.on_policy import rollout_keys
from jaxrl.core.errors import UsageError, is_installed
from jaxrl.core.outside_env import refuse_evaluation
from jaxrl.core.types import Key, PyTree
from jaxrl.outside.collector import Collector, rollouts_of
from jaxrl.outside.workers.env_functions import EnvFunction
from jaxrl.rollout.env_step import RolloutSpec, draw_randomness
from jaxrl.rollout.rollout import Rollout, play
from jaxrl.run.devices.compiled import Program, StartAndChunk
from jaxrl.run.settings import RunSettings

log = logging.getLogger(__name__)

NOTHING = MappingProxyType({})
CPU_OPTIONS = {
    # Environments step on the other cores meanwhile. Loops over small minibatches, shared between
    # cores, also take longer: an update by 64 rows with layers of 64 x 64 takes 66 us, here 44.
    "xla_disable_hlo_passes": "cpu-parallel-task-assigner",
    # XLA's own is 256. With it such an update takes a tenth longer on an EPYC with AVX-512.
    "xla_cpu_prefer_vector_width": 512,
}


class RolloutSource(abc.ABC):
    """A source of rollouts that are played outside JAX, for one run."""

    cpu_options: Mapping[str, Any] = NOTHING  # of XLA, for the program that learns from them
    num_env_steps: int | None = None  # of the last rollout, where episodes may be dropped
    timers: Mapping[str, float] = NOTHING  # the seconds that went into it
    counts: Mapping[str, int] = NOTHING  # of the environments, so far

    @abc.abstractmethod
    def batch_shapes(self, runner: RunnerState, env_params: PyTree) -> PyTree:
        """The shapes of a batch, as `take` gives it."""

    @abc.abstractmethod
    def rollout(self, runner: RunnerState, batch: PyTree) -> Rollout:
        """The rollout to learn from; traced with the program that learns."""

    @abc.abstractmethod
    def take(self, runner: RunnerState, env_params: PyTree) -> tuple[RunnerState, PyTree]:
        """(the runner after the next rollout's steps, the batch of them); waits for it."""

    @abc.abstractmethod
    def learning(self, runner: RunnerState) -> contextlib.AbstractContextManager:
        """A context in which the batch is learned from, which begins with this state."""

    def learned(self, runner: RunnerState) -> None:  # noqa: B027
        """Is called in that context, with the state after learning."""

    def close(self) -> None:  # noqa: B027
        """Ends what steps the environments; a later `take` begins again."""


class _CompiledOnce:
    """A traced program, which runs that differ in numbers alone compile once in a process."""

    def __init__(self, traced: Any, cpu_options: Mapping[str, Any]):
        self._traced, self._compiled, self._cpu_options = traced, None, dict(cpu_options)

    def compile(self) -> Any:
        if self._compiled is None:
            options = self._cpu_options if jax.default_backend() == "cpu" else None
            self._compiled = self._traced.compile(options or None)
        return self._compiled


# The metrics' shapes [1, ...], the start, and an update.
_Traced = tuple[Metrics, _CompiledOnce, _CompiledOnce]


@dataclass(frozen=True)
class Structure:
    """The structure that runs share if they differ only in numbers, by the numbers' shapes."""

    algorithm: Algorithm
    traced: dict[str, _Traced] = field(default_factory=dict)


def structure_of(config: AlgorithmConfig) -> Structure:
    """The structure of a configuration, over the environment that its name means now.

    Raises:
        UsageError: its rollouts do not fit into memory.
    """
    static = config.static()
    structure = _structure_of(static, static.setup().env)
    check_sizes(config, structure.algorithm)
    return structure


@functools.lru_cache(maxsize=8)
def _structure_of(static_config: AlgorithmConfig, env: Any) -> Structure:
    """The structure of `config.static()`; a name that was registered again compiles again."""
    return Structure(static_config.build())


class OutsideProgram(Program):
    """A configuration whose steps come from outside JAX, for one run.

    Args:
        kind: of rollouts; runs with the same structure and the same kind share what is traced.
    """

    def __init__(self, structure: Structure, source: RolloutSource, kind: str):
        super().__init__(structure.algorithm)
        self.structure, self.source, self.kind = structure, source, kind

    def build(
        self, key: Key, numbers: tuple[PyTree, PyTree, PyTree | None], num_recorded: int
    ) -> "OutsideTraining":
        assert not num_recorded, "whoever makes the source refuses the setting `output`"
        if jax.config.jax_disable_jit:
            raise UsageError(
                "JAX's jit is disabled (--eager), but an environment outside JAX is learned from "
                "by compiled programs alone; with workers=0 breakpoint() stops in its step as it is"
            )
        hypers, env_params, _ = numbers
        shapes = jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), hypers)
        which, traced = f"{shapes}, {self.kind}", self.structure.traced
        if which not in traced:
            traced[which] = self._trace(key, hypers, env_params)
        return OutsideTraining(self.source, traced[which])

    def _trace(self, key: Key, hypers: PyTree, env_params: PyTree) -> _Traced:
        start = jax.jit(self.algorithm.init).lower(key, hypers, env_params)
        batch = self.source.batch_shapes(start.out_info, env_params)
        learn = jax.jit(lambda *arguments: self._learn(*arguments))
        learn = learn.lower(start.out_info, batch, hypers)
        options = self.source.cpu_options
        return learn.out_info[1], _CompiledOnce(start, options), _CompiledOnce(learn, options)

    def _learn(
        self, runner: RunnerState, batch: PyTree, hypers: PyTree
    ) -> tuple[RunnerState, Metrics]:
        rollout = self.source.rollout(runner, batch)
        runner, metrics = self.algorithm.learn(runner, rollout, hypers)
        return runner, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], metrics)

    def close(self) -> None:
        """Ends what steps the environments."""
        self.source.close()


class OutsideTraining(StartAndChunk):
    """The start, and one update at a time from the next rollout of a source."""

    def __init__(self, source: RolloutSource, traced: _Traced):
        super().__init__(*traced, capacity=1)
        self.source = source
        self.timers: dict[str, float] = {}  # of the last update

    @property
    def counts(self) -> Mapping[str, int]:
        return self.source.counts

    @property
    def num_env_steps(self) -> int | None:
        return self.source.num_env_steps

    def chunk(
        self, runner: RunnerState, hypers: PyTree, env_params: PyTree, data: PyTree, count: int
    ) -> tuple[RunnerState, Metrics, None]:
        """One update, with its metrics [1, ...]."""
        assert count == 1, "a rollout of episodes outside JAX cannot be played again"
        asked = time.perf_counter()
        played, batch = self.source.take(runner, env_params)
        waited = time.perf_counter() - asked
        with self.source.learning(runner):
            began = time.perf_counter()
            after, metrics = jax.block_until_ready(self.chunk_program(played, batch, hypers))
            self.source.learned(after)
        learning, spent = time.perf_counter() - began, self.source.timers
        # RLlib's names for the two halves.
        sampling = {"env_runner_sampling_timer": sum(spent.values())} if spent else {}
        self.timers = {**spent, "learning": learning, "waiting": waited, **sampling}
        self.timers["learner_update_timer"] = learning
        return after, metrics, None


class Copies(RolloutSource):
    """The copies of an environment outside JAX; acting is compiled when the first rollout begins.

    Args:
        sizes: (copies, steps of each).
        seed: of their first episodes; another one for each iteration that a run goes on from.
    """

    cpu_options = CPU_OPTIONS
    created: EnvFunction | None = None  # is called with each copy's environment and context

    def __init__(
        self,
        algorithm: Algorithm,
        settings: RunSettings,
        sizes: tuple[int, int],
        seed: tuple[int, ...],
    ):
        self.algorithm, self.settings, self.sizes, self.seed = algorithm, settings, sizes, seed
        self._collector: Collector | None = None

    def batch_shapes(self, runner: RunnerState, env_params: PyTree) -> Rollout:
        """A rollout of what the environment declares."""

        def played(runner, env_params):
            spec, (num_envs, num_steps) = self.algorithm.rollout_spec, self.sizes
            weights = tuple(learner.weights for learner in runner.learners)
            keys = rollout_keys(runner.key, runner.num_updates, jnp.arange(num_envs))
            randomness = draw_randomness(spec, keys, num_steps)
            if spec.explores:
                randomness = randomness._replace(env_steps=jnp.zeros(num_steps))
            return play(spec, weights, runner.envs, randomness, env_params)[1]

        return jax.eval_shape(played, runner, env_params)

    def rollout(self, runner: RunnerState, batch: Rollout) -> Rollout:
        return batch if self.settings.sync else batch.as_stale()

    def foreach_env(self, function: EnvFunction, env_params: PyTree) -> list[Any]:
        """Calls a function with each environment and its context, between two rollouts."""
        return self._begun(env_params).foreach_env(function)

    def take(self, runner: RunnerState, env_params: PyTree) -> tuple[RunnerState, Rollout]:
        collector = self._begun(env_params)
        if not collector.has_begun:
            collector.begin(runner, int(runner.num_updates) + 1)
        played = collector.take()
        before, features = runner.envs.features, dict(played.envs.features)
        for feature in self.algorithm.rollout_spec.features:
            if feature.is_learned:
                features[feature.name] = before[feature.name]
        self.num_env_steps = int(played.rollout.num_env_steps)
        self.timers = played.seconds._asdict()
        self.counts = {
            "num_faulty_episodes": collector.rollouts.num_faults,
            "num_worker_restarts": collector.rollouts.num_restarts,
            "weights_seq_no": played.weights_seq_no,
        }
        runner = runner.replace(envs=played.envs.replace(features=features))
        return runner, played.rollout.replace(num_env_steps=None)

    @contextlib.contextmanager
    def learning(self, runner: RunnerState) -> Iterator[None]:
        """The next rollout begins with it, unless `sync`."""
        if not self.settings.sync:
            self._collector.begin(runner, int(runner.num_updates) + 2)
        yield

    def close(self) -> None:
        if self._collector is not None:
            self._collector.close()
            self._collector = None

    def _begun(self, env_params: PyTree) -> Collector:
        if self._collector is None:
            spec = self.algorithm.rollout_spec
            rollouts = rollouts_of(spec, self.sizes, env_params, self.settings, self.created)
            seeds = np.random.SeedSequence(self.seed).generate_state(self.sizes[0], np.uint32)
            self._collector = Collector(rollouts, seeds, self.algorithm.num_env_steps)
        return self._collector


def program_of_copies(
    config: AlgorithmConfig, settings: RunSettings, iteration: int
) -> OutsideProgram:
    """The program of a configuration whose run goes on after `iteration`."""
    structure = structure_of(config)
    algorithm = structure.algorithm
    env = algorithm.rollout_spec.env
    _check_copies(env, config, settings)
    if settings.evaluation_interval is not None:
        refuse_evaluation(env)
    if settings.output is not None:
        raise UsageError(
            f"output: {env.name} runs outside JAX, where the steps of training are not written; "
            "trainer.sample() gives whole episodes"
        )
    sizes = config.num_envs, config.rollout_length
    _tell_of_critic(algorithm.rollout_spec)
    copies = Copies(algorithm, settings, sizes, (config.seed, iteration))
    return OutsideProgram(structure, copies, f"copies, sync={settings.sync}")


def _tell_of_critic(spec: RolloutSpec) -> None:
    """Logs that nobody reads what a simulator gives for critics alone."""
    has_critic = any(policy_spec.critic is not None for policy_spec in spec.policy_specs)
    if not has_critic and spec.env.spec.critic_space is not None:
        log.warning(
            "%s gives observations for a critic, which no value network reads: "
            "critic_observation='state' has it do so",
            spec.env.name,
        )


def _check_copies(env: Any, config: AlgorithmConfig, settings: RunSettings) -> None:
    """Raises UsageError where the copies cannot be made as they are asked for."""
    actors = settings.num_ray_actors
    if actors:
        if not is_installed("ray"):
            raise UsageError(f'workers={settings.workers} needs ray: pip install "jaxrl[ray]"')
        if env.has_one_set:
            raise UsageError(
                f"workers={settings.workers}: {env.name} is an object, which cannot be on other "
                "machines: give a function that makes it"
            )
    number = env.num_copies and env.num_copies * max(1, actors)
    if number not in (None, config.num_envs):
        raise UsageError(
            f"num_envs={config.num_envs}: {config.env_name} makes {env.num_copies} copies"
            f"{' in each actor' if actors else ''}: set num_envs={number}"
        )
