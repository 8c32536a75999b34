"""Trainer: trains a configuration, with checkpoints, evaluation, callbacks, logs and pictures."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import jax

from jaxrl.algorithms.base import RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.core.env import strongly_typed
from jaxrl.core.errors import AnswersOtherWords, UsageError, brief, unknown_result
from jaxrl.core.fields import file_path, flag, takes_settings
from jaxrl.core.outside_env import is_outside, refuse_evaluation
from jaxrl.core.types import PyTree
from jaxrl.run.checkpointing import BestState, CheckpointManager
from jaxrl.run.devices.compiled import Program, StartAndChunk, memory_line, peak_of, program_for
from jaxrl.run.devices.mesh import settled
from jaxrl.run.hooks import (
    Evaluating,
    Health,
    Hook,
    NoCallbacks,
    Output,
    Remembering,
    Sampling,
    StopCriteria,
    states_of,
)
from jaxrl.run.inference.episode_access import EpisodeAccess
from jaxrl.run.inference.weights import (
    PolicyAccess,
    begun_with,
    initial_weights,
    weights_of_runs,
    with_opponents,
)
from jaxrl.run.logging.console import Progress, compiled_line, compiling_line
from jaxrl.run.logging.run_results import TrainerResults
from jaxrl.run.loop import RunLoop
from jaxrl.run.processes import agreed, processes, together
from jaxrl.run.results import Lifetime, Result, Session, Snapshot, result_names
from jaxrl.run.settings import RunKeywords, RunSettings
from jaxrl.run.signals import StopSignal
from jaxrl.run.stopping import LIFETIME_STEPS, LIMITS, check_stop, criteria_of, last_iteration
from jaxrl.run.storage.config_file import read_config
from jaxrl.run.storage.dtypes import TrainingNumbers

if TYPE_CHECKING:
    from jaxrl.run.callbacks import HostCallbacks
    from jaxrl.run.env_tasks import EnvTasks
    from jaxrl.run.resume import Saved


def _configuration(config: Any) -> AlgorithmConfig:
    if isinstance(config, AlgorithmConfig):
        return config
    raise UsageError(
        f"Trainer takes a configuration such as PPOConfig(env='arena'), not {brief(config)}; "
        "jaxrl.from_rllib(config).config makes one of RLlib's"
    )


def _output_of(settings: RunSettings, *run: Any) -> Output:
    """The episode output that the settings ask for."""
    if settings.output is None:
        return Output()
    from jaxrl.play.episode_output import EpisodeOutput

    return EpisodeOutput(settings, *run)


def _callbacks_of(trainer: "Trainer") -> "HostCallbacks | NoCallbacks":
    """The host hooks of the configuration's callbacks."""
    if not trainer.config.callbacks:
        return NoCallbacks(trainer.criteria.are_met)
    from jaxrl.rollout.episode_callbacks import resolve_callbacks
    from jaxrl.run.callbacks import HostCallbacks

    callbacks = resolve_callbacks(trainer.config.callbacks)
    return HostCallbacks(trainer, callbacks, trainer.criteria.are_met)


def _tasks_of(trainer: "Trainer", env: Any) -> "EnvTasks | None":
    """The host's curriculum, if the configuration has one."""
    trainer.config.check_task_interval()
    if trainer.config.env_task_fn is None:
        return None
    from jaxrl.run.env_tasks import tasks_of

    return tasks_of(trainer, env)


@takes_settings(RunSettings)
class Trainer(TrainingNumbers, PolicyAccess, EpisodeAccess, TrainerResults, AnswersOtherWords):
    """Trains a configuration, with the same numbers as `make_train` for the same key.

    `with jaxrl.Trainer(config) as trainer:` calls `stop` at the end of the block.

    Args:
        config: a configuration such as `PPOConfig`.
        run_dir: the run's folder, which must not exist yet; "auto": `runs/<env>/<time>-s<seed>`;
            None writes nothing.
        env_params: the environment's numbers, if not the configuration's.
        quiet: print nothing, but on stderr when a checkpoint could not be written.
        **run_settings: checkpoints, evaluation, logs, pictures; the settings below.

    Raises:
        UsageError: settings that cannot work, or a folder that exists or cannot be written; before
            any compiling.
    """

    @agreed
    def __init__(
        self,
        config: Any,
        *,
        run_dir: str | Path | None = "auto",
        env_params: PyTree = None,
        quiet: bool = False,
        _saved: "Saved | None" = None,
        **run_settings: Unpack[RunKeywords],
    ):
        file_path("a folder's path", optional=True)("run_dir", run_dir)
        flag("quiet", quiet)
        self.config = config = _configuration(config)
        self.settings = settled(RunSettings(**{**config.run_defaults, **run_settings}), config)
        setup = config.setup()
        begun = 0 if _saved is None else _saved.lifetime.training_iteration
        self.program = self.build_program(setup.env, begun)
        self.algorithm = self.program.algorithm
        self.data = jax.device_put(self.algorithm.data())
        self._hypers = config.hypers()
        self._env_params = strongly_typed(setup.env_params)
        if env_params is not None:
            self.env_params = env_params
        self.executable: StartAndChunk | None = None
        self.lifetime = Lifetime(num_agent_steps={}, num_module_steps_trained={})
        self.processes = processes()
        self.progress = Progress(quiet=quiet or not self.processes.is_leader)
        self.output = _output_of(self.settings, config, self.algorithm, self.progress.say)
        self.interrupt = StopSignal(self.progress.say)
        self.criteria, self.health = StopCriteria(), Health(self)
        self.callbacks = _callbacks_of(self)
        self.tasks = _tasks_of(self, setup.env)
        self.best = BestState(self.settings.score_attribute)
        if self.settings.evaluation_interval is not None or self.settings.evaluation_env_args:
            self.evaluation.check()
        self.compile_seconds = self.traced_seconds = 0.0
        self.last_result: Result | None = None
        self._runner: RunnerState | None = None
        self._initial_weights, self._fixed_opponents = {}, {}
        self.loop = RunLoop(self)
        self.hooks = self._hooks()
        self.hook_states: dict[str, Any] = {}  # as they were last read
        self._stopped = self._is_training = False
        if _saved is not None and _saved.checkpoint is not None:
            from jaxrl.run.resume import restored_into

            start = self._key(), self.hypers, self.env_params
            self._runner, self._hypers, self._env_params, _ = restored_into(self, _saved, start)
        else:
            self._initial_weights = initial_weights(self.algorithm, self.settings.init_from)
            self._fixed_opponents = weights_of_runs(self.algorithm)
        self.session = Session(self.lifetime.training_iteration, self.lifetime.time_total_s)
        self._check_before_it_begins(dict(self.settings.stop))
        self._begin(run_dir, _saved)

    def _check_before_it_begins(self, stop: Mapping[str, float]) -> None:
        """Refuses the settings' unknown results before there is a folder."""
        if set(stop) - LIMITS or self.settings.checkpoint_score_attribute is not None:
            try:
                self._check_results(stop)
            except BaseException:
                self.program.close()
                raise

    def _begin(self, run_dir: str | Path | None, saved: "Saved | None") -> None:
        """Opens the run's folder; then hooks start, or take back their saved states."""
        self.run_dir = recorder = None
        if run_dir is not None and self.processes.is_leader:
            from jaxrl.run.recorder import open_recorder

            self.run_dir, recorder = open_recorder(self, run_dir, saved)
        self.keeping = CheckpointManager(self, recorder, writes=run_dir is not None)
        self.hooks.append(self.keeping)
        is_resumed = saved is not None and saved.checkpoint is not None
        if is_resumed or self.config.callbacks:
            from jaxrl.run.resume import start_hooks

            start_hooks(self, saved.facts["hooks"] if is_resumed else None)

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """The facts of the run, as its folder and its checkpoints hold them."""
        from jaxrl.run.storage.run_state import facts_of

        facts = facts_of(self.config, self.algorithm, self.settings.to_dict())
        return {**facts, "episodes": self.output.position}

    def build_program(self, env: Any, iteration: int) -> Program:
        """The program that trains the run, which continues after `iteration`."""
        config, settings = self.config, self.settings
        if not is_outside(env):
            settings.refuse_for_jax(config.env_name)
        elif not config.is_offline:
            from jaxrl.outside.program import program_of_copies

            return program_of_copies(config, settings, iteration)
        elif settings.evaluation_interval is not None:
            refuse_evaluation(env)
        return program_for(config, settings.devices, iteration)

    @classmethod
    @agreed
    def from_checkpoint(
        cls,
        path: str | Path,
        *,
        checkpoint: str | int = "last",
        config: Any = None,
        run_dir: str | Path | None = "same",
        strict: bool = False,
        quiet: bool = False,
        trust: bool = False,
        **run_settings: Unpack[RunKeywords],
    ) -> "Trainer":
        """A trainer that continues, bit for bit, from where a run was when it saved.

        With another configuration weights, optimiser states, filters and counts are kept, and must
        fit; environments, the callbacks' data and the statistics of recent episodes start from
        scratch where they do not fit, which one line says. Stop criteria among the saved settings
        that the run had met are cleared.

        Args:
            path: a run's folder, or a checkpoint's.
            checkpoint: "last", "best" or an iteration, where `path` is a run's folder.
            config: in place of the saved one: more steps, other numbers, other `num_envs`,
                callbacks or `policies_to_train`; other networks, policies, spaces and seeds are
                refused.
            run_dir: "same" continues in the run's folder, its logs cut back to the checkpoint,
                which must be the last one; anything else as for `Trainer`.
            strict: refuse a configuration for which a part of the state would start from scratch.
            trust: import what the run names, though it is not jaxrl's or an installed plug-in's;
                see docs/loading.md.
            **run_settings: changes to those that were saved.

        Raises:
            UsageError: no such checkpoint, a damaged one, or one that does not fit; what differs.
        """
        from jaxrl.run.resume import read_run

        flag("strict", strict)
        flag("trust", trust)
        saved = read_run(path, checkpoint, run_settings.get("devices"))
        saved = dataclasses.replace(saved, strict=strict)
        if run_dir == "same":
            run_dir = saved.folder_beside(path)
        if config is None:
            config = read_config(saved.facts, "jaxrl.Trainer.from_checkpoint", trust=trust)
        settings = saved.settings_with(run_settings, trust=trust)
        return cls(config, run_dir=run_dir, quiet=quiet, _saved=saved, **settings)

    @property
    def runner(self) -> RunnerState:
        """The state of training; compiles and initialises when first asked for."""
        if self._runner is None:
            self._prepare({})
            runner = self.executable.start(self._key(), self.hypers, self.env_params)
            runner = begun_with(self.algorithm, runner, self._initial_weights)
            self._runner = with_opponents(self.algorithm, runner, self._fixed_opponents)
        return self._runner

    @together
    def train(self) -> Result:
        """One iteration; returns its result tree."""
        self._check_not_stopped("train")
        self.criteria.stop = {}
        self._prepare({})
        with self._training():
            return self.loop.train_once()

    @together
    def fit(self, stop: Mapping[str, float] | None = None) -> Result | None:
        """Trains until a criterion holds, or Ctrl-C; returns the last result, if there is one.

        Training ends in the very iteration that met the criterion: a chunk that ran past it is
        computed again up to there, which gives the same numbers. However it ends, the state that it
        ended in is saved.

        Args:
            stop: {path in the result tree: least value}, read for each iteration, beside the
                setting `stop`. Unless one limits the steps or the iterations, the configuration's
                `total_env_steps` does. If the last result meets a criterion already, nothing is
                trained.

        Raises:
            UsageError: the trainer was stopped, a criterion names no result, or an agent waits in
                an environment that has no `acting_agents`. A new run's folder, which holds nothing
                yet, is removed again until training begins.
            Diverged: a loss, a gradient or a parameter is not finite; `runner` is the last good
                state.
        """
        self._check_not_stopped("fit")
        with self._refusing():
            stop = {**dict(self.settings.stop), **criteria_of(stop)}
        stop = {path: least for path, least in stop.items() if least != math.inf}
        limits = (f"stop criterion {name}" for name in stop if name in LIMITS)
        limit = next(limits, "total_env_steps")
        if limit == "total_env_steps":
            stop[LIFETIME_STEPS[0]] = self.config.num_updates * self.algorithm.num_env_steps
        self.criteria.stop = stop
        self._prepare(stop)
        last = last_iteration(stop, self.algorithm.num_env_steps, self.lifetime)
        if self.lifetime.training_iteration >= last:
            done = f"{self.lifetime.training_iteration:,} of {last:,} iterations are trained"
            return self._nothing_to_do(f"{done}; a larger {limit} trains further")
        if done := self.criteria.line(self.last_result):
            return self._nothing_to_do(f"{done}; a larger one trains further")
        try:
            with self.interrupt.listening():
                with self.progress, self._training():
                    self.loop.train_until()
                self.keeping.conclude(self.snapshot())
        except BaseException as error:
            self.processes.failed(error)
            self.keeping.conclude(self.snapshot(at_the_end=True), pictures=False)
            raise
        finally:
            self.output.finish()
            self.processes.broadcast(lambda: self.callbacks.call("on_train_end", self.last_result))
        if self.interrupt.heard:
            self.progress.say("stopped; what has been learned is kept")
        return self.last_result

    def _nothing_to_do(self, why: str) -> Result | None:
        self.progress.say(f"nothing to do: {why}")
        if self._runner is not None:
            self.keeping.finish_pictures(self.snapshot())
        return self.last_result

    @together
    def profile(self) -> Result:
        """Times of an iteration, its sampling and its learning: {"timers": ...} in seconds.

        It compiles sampling by itself and measures for a few seconds; the state of training stays
        as it is. Sampling is measured alone, learning is the rest of the iteration.
        """
        from jaxrl.run.profiling import profile

        return profile(self, lambda: self._prepare({}))

    @together
    def save(self, checkpoint_dir: None = None) -> Path | None:
        """Writes a checkpoint of the present state; returns its folder, None if there is none."""
        self._check_not_stopped("save")
        if checkpoint_dir is not None:
            raise UsageError("save takes no folder: it writes into run_dir and returns where")
        return self.keeping.save(self.snapshot(), wait=True)

    @together
    def stop(self) -> str | None:
        """Writes what is left and unlocks the run's folder; returns what could not be written.

        Afterwards the trainer can be read and evaluated, but trains and saves no more.

        Raises:
            UsageError: it is called by a callback while the trainer trains.
        """
        if self._is_training:
            raise UsageError(
                'stop: the trainer is training; a callback ends training with result["done"] = True'
            )
        self._stopped = True
        try:
            is_left = self.lifetime.training_iteration != self.keeping.concluded
            is_left = is_left and self._runner is not None
            missing = self.keeping.close(self.snapshot(at_the_end=True) if is_left else None)
        finally:
            self.program.close()
            self.close_evaluation()
            self.output.close()
        return "; ".join(filter(None, (missing, self.output.lost))) or None

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, error_type: type | None, *_: object) -> None:
        missing = self.stop()
        if missing and self.keeping.failed and error_type is None:
            raise OSError(missing)
        if missing:
            self.progress.say(f"warning: {missing}", even_if_quiet=True)

    def _check_not_stopped(self, method: str) -> None:
        if self._stopped:
            resumes = f"Trainer.from_checkpoint({str(self.run_dir)!r}) resumes its run"
            what = "make a new one" if self.run_dir is None else resumes
            raise UsageError(f"{method}: this trainer was stopped; {what}")

    @contextlib.contextmanager
    def _training(self) -> Iterator[None]:
        self._is_training = True
        try:
            yield
        finally:
            self._is_training = False

    def _key(self) -> jax.Array:
        return jax.random.key(self.config.seed, impl="threefry2x32")

    def _hooks(self) -> list[Hook]:
        """The work after each chunk, but for checkpoints, which need the run's folder."""
        evaluate = self.callbacks.evaluate or self.evaluate
        evaluating = Evaluating(self.settings.evaluations, evaluate, self.criteria.are_met)
        hooks = [] if self.tasks is None else [self.tasks]
        hooks += [self.criteria, evaluating, Sampling(self), self.callbacks]
        if self.settings.hooks:
            from jaxrl.run.user_hooks import hooks_of

            hooks += hooks_of(self, [self.callbacks.name])
        return [*hooks, self.health, self.output, Remembering(self)]

    def result_names(self) -> list[str]:
        """The paths of the numbers that results may hold; traces, but compiles nothing."""
        self.executable = self.program.executable(
            self._key(), self.hypers, self.env_params, self.data, self.output.num_recorded
        )
        evaluated = self.settings.evaluation_interval is not None
        present = {"evaluated": evaluated, "session": self.session, "lifetime": self.lifetime}
        names = result_names(self.algorithm, self.executable.metrics, **present)
        added = [] if self.tasks is None else self.tasks.result_names()
        return list(dict.fromkeys((*names, *added)))

    def _check_results(self, stop: Mapping[str, float]) -> list[str]:
        """The names of results; refuses criteria that are not among them. Traces the program."""
        begin = time.perf_counter()
        names = self.result_names()
        self.traced_seconds += time.perf_counter() - begin
        evaluated = self.settings.evaluation_interval is not None
        # Callbacks may add what they like.
        extended = self.callbacks.add_to_results
        check_stop(stop, None if extended else names)
        # What learns from recorded episodes and is not evaluated has no return, so no best state.
        scored = self.settings.checkpoint_score_attribute or self.algorithm.plays or evaluated
        if scored and not extended and self.settings.score_attribute not in names:
            raise unknown_result("checkpoint_score_attribute", self.settings.score_attribute, names)
        return names

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Around checks before training: what they refuse leaves no new folder behind."""
        try:
            yield
        except Exception:
            if self.keeping.recorder is not None:
                self.keeping.recorder.held.withdraw()
            raise

    def _prepare(self, stop: Mapping[str, float]) -> None:
        """Traces, checks the stop criteria, and compiles, each only if that was not done before."""
        with self._refusing():
            names = self._check_results(stop)
        if self.keeping.recorder is not None:
            self.keeping.recorder.held.bring_back()
            self.keeping.recorder.result_names = names
        if not self.executable.is_ready(start=self._runner is None):
            if jax.config.jax_disable_jit:
                return self.progress.say(self.executable.begin())
            self.progress.say(compiling_line(self.settings.devices, plays=self.algorithm.plays))
            compiled = self.executable.compile(start=self._runner is None)
            self.processes.wait()  # a collective does not wait as long as a slow machine compiles
            traced, self.traced_seconds = self.traced_seconds, 0.0
            self.compile_seconds += traced + compiled
            self.progress.say(compiled_line(traced, compiled, self.executable))
            peak = peak_of(self.executable.chunk_program)
            self.progress.say(memory_line(peak, self.settings.devices))

    def set_state(self, runner: RunnerState, result: Result) -> None:
        """Sets the state of training to that which `result` led to."""
        lifetime = Lifetime.after(result, self.lifetime)
        self._runner, self.lifetime, self.last_result = runner, lifetime, result

    def snapshot(self, *, at_the_end: bool = False) -> Snapshot:
        """The state of training; at the end with an earlier state of a hook whose `state` fails."""
        arrays = self.runner, self.hypers, self.env_params
        lifetime = dataclasses.replace(self.lifetime)
        if at_the_end:
            from jaxrl.run.user_hooks import last_states

            states = last_states(self.hooks, self.hook_states, self.progress.say)
        else:
            states = states_of(self.hooks)
        self.hook_states = states
        return Snapshot(*arrays, lifetime, self.last_result, states)
