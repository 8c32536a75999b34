"""Training over environments outside JAX: compiled learning, and rollouts that the host collects.

The same face as `jaxrl.run.devices.compiled`. The next rollout is collected while the learner
works, so it is played by the weights of one update before; with `sync` by the newest ones. Either
way the rollout holds the probabilities that its actions were drawn with.
"""

import functools
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
from jaxrl.rollout.env_step import draw_randomness
from jaxrl.rollout.rollout import Rollout, play
from jaxrl.run.devices.compiled import StartAndChunk
from jaxrl.run.settings import RunSettings

CPU_OPTIONS = {
    # Environments step on the other cores meanwhile. Loops over small minibatches, shared between
    # cores, also take longer: an update by 64 rows with layers of 64 x 64 takes 66 us, here 44.
    "xla_disable_hlo_passes": "cpu-parallel-task-assigner",
    # XLA's own is 256. With it such an update takes a tenth longer on an EPYC with AVX-512.
    "xla_cpu_prefer_vector_width": 512,
}


class _CompiledOnce:
    """A traced program, which runs that differ in numbers alone compile once in a process."""

    def __init__(self, traced: Any):
        self._traced, self._compiled = traced, None

    def compile(self) -> Any:
        if self._compiled is None:
            options = CPU_OPTIONS if jax.default_backend() == "cpu" else None
            self._compiled = self._traced.compile(options)
        return self._compiled


class _Traced(NamedTuple):
    """The compiled programs of `HostTraining`."""

    metrics: Metrics  # shapes, [1, ...]
    start: _CompiledOnce
    learn: _CompiledOnce


@dataclass(frozen=True)
class _Structure:
    """The structure that runs share if they differ only in numbers, by the numbers' shapes."""

    algorithm: Algorithm
    traced: dict[str, _Traced] = field(default_factory=dict)


@functools.lru_cache(maxsize=8)
def _structure_of(static_config: AlgorithmConfig, env: Any) -> _Structure:
    """The structure of `config.static()`; a name that was registered again compiles again."""
    return _Structure(static_config.build())


@dataclass
class HostProgram:
    """A configuration whose environment runs outside JAX, for one run.

    Args:
        seed: of the copies' first episodes; another one for each iteration that a run goes on from.
    """

    structure: _Structure
    settings: RunSettings
    num_envs: int
    num_steps: int
    seed: tuple[int, ...]
    split: None = None
    devices: int = 1
    executables: dict[str, "HostTraining"] = field(default_factory=dict)

    @property
    def algorithm(self) -> Algorithm:
        return self.structure.algorithm

    def executable(
        self,
        key: Key,
        hypers: PyTree,
        env_params: PyTree,
        data: PyTree | None = None,
        num_recorded: int = 0,
    ) -> "HostTraining":
        """The compiled parts and the copies; see `Program.executable`."""
        if num_recorded:
            raise UsageError(
                f"output: {self.algorithm.rollout_spec.env.name} runs outside JAX, where the steps "
                "of training are not written; trainer.sample() gives whole episodes"
            )
        shapes = jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), hypers)
        which = f"{shapes}, sync={self.settings.sync}"
        if which not in self.executables:
            for other in self.executables.values():
                other.close()
            traced = self.structure.traced
            if which not in traced:
                traced[which] = self._trace(key, hypers, env_params)
            self.executables[which] = HostTraining(self, traced[which])
        return self.executables[which]

    def _trace(self, key: Key, hypers: PyTree, env_params: PyTree) -> _Traced:
        algorithm = self.algorithm
        start = jax.jit(algorithm.init).lower(key, hypers, env_params)
        runner = start.out_info
        rollout = jax.eval_shape(self._rollout_shape, runner, env_params)
        learn = jax.jit(lambda *arguments: self._learn(*arguments))
        learn = learn.lower(runner, rollout, hypers)
        row = lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype)
        metrics = jax.tree.map(row, learn.out_info[1])
        return _Traced(metrics, _CompiledOnce(start), _CompiledOnce(learn))

    def _learn(
        self, runner: RunnerState, rollout: Rollout, hypers: PyTree
    ) -> tuple[RunnerState, Metrics]:
        rollout = rollout if self.settings.sync else rollout.as_stale()
        return self.algorithm.learn(runner, rollout, hypers)

    def _rollout_shape(self, runner: RunnerState, env_params: PyTree) -> Rollout:
        """A rollout of what the environment declares, for its shapes."""
        spec = self.algorithm.rollout_spec
        weights = tuple(learner.weights for learner in runner.learners)
        keys = rollout_keys(runner.key, runner.num_updates, jnp.arange(self.num_envs))
        randomness = draw_randomness(spec, keys, self.num_steps)
        if spec.explores:
            randomness = randomness._replace(env_steps=jnp.zeros(self.num_steps))
        return play(spec, weights, runner.envs, randomness, env_params)[1]

    def close(self) -> None:
        """Ends what steps the copies."""
        for executable in self.executables.values():
            executable.close()


def host_program_for(config: AlgorithmConfig, settings: RunSettings, iteration: int) -> HostProgram:
    """The program of a configuration whose run goes on after `iteration`."""
    static = config.static()
    structure = _structure_of(static, static.setup().env)
    algorithm = structure.algorithm
    env = algorithm.rollout_spec.env
    _check_copies(env, config, settings)
    if settings.evaluation_interval is not None:
        refuse_evaluation(env)
    check_sizes(config, algorithm)
    sizes = config.num_envs, config.rollout_length
    return HostProgram(structure, settings, *sizes, (config.seed, iteration))


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


class HostTraining(StartAndChunk):
    """The start, and one update at a time; acting is compiled when the first rollout begins."""

    def __init__(self, program: HostProgram, traced: _Traced):
        self.program, self.algorithm = program, program.algorithm
        self.timers: dict[str, float] = {}  # of the last update
        self.counts: dict[str, int] = {}
        self.num_env_steps: int | None = None  # of its rollout, without those of dropped episodes
        self._collector: Collector | None = None
        super().__init__(traced.metrics, traced.start, traced.learn, capacity=1)

    def chunk(
        self, runner: RunnerState, hypers: PyTree, env_params: PyTree, data: PyTree, count: int
    ) -> tuple[RunnerState, Metrics, None]:
        """One update, with its metrics [1, ...]; the next rollout begins with it unless `sync`."""
        assert count == 1, "a rollout of episodes outside JAX cannot be played again"
        if self._collector is None:
            self._collector = self._new_collector(env_params)
        collector, update = self._collector, int(runner.num_updates) + 1
        asked = time.perf_counter()
        if not collector.has_begun:
            collector.begin(runner, update)
        played = collector.take()
        waited = time.perf_counter() - asked
        if not self.program.settings.sync:
            collector.begin(runner, update + 1)
        began = time.perf_counter()
        before, features = runner.envs.features, dict(played.envs.features)
        for feature in self.algorithm.rollout_spec.features:
            if feature.is_learned:
                features[feature.name] = before[feature.name]
        envs = played.envs.replace(features=features)
        self.num_env_steps = int(played.rollout.num_env_steps)
        rollout = played.rollout.replace(num_env_steps=None)
        after, metrics = self.chunk_program(runner.replace(envs=envs), rollout, hypers)
        after, metrics = jax.block_until_ready((after, metrics))
        self.timers = {
            "env": played.seconds.env,
            "inference": played.seconds.inference,
            "learning": time.perf_counter() - began,
            "waiting": waited,
        }
        self.counts = {
            "num_faulty_episodes": collector.rollouts.num_faults,
            "num_worker_restarts": collector.rollouts.num_restarts,
            "weights_seq_no": played.weights_seq_no,
        }
        return after, jax.tree.map(lambda leaf: leaf[None], metrics), None

    def close(self) -> None:
        """Ends what steps the copies; a later update makes them again."""
        if self._collector is not None:
            self._collector.close()
            self._collector = None

    def _new_collector(self, env_params: PyTree) -> Collector:
        program = self.program
        sizes = program.num_envs, program.num_steps
        rollouts = rollouts_of(self.algorithm.rollout_spec, sizes, env_params, program.settings)
        seeds = np.random.SeedSequence(program.seed).generate_state(sizes[0], np.uint32)
        return Collector(rollouts, seeds, self.algorithm.num_env_steps)
