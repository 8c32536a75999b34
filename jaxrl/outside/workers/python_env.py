"""Python environments for training: what one declares, and E copies of it that step.

See `sources` for what an environment may be.
"""

import functools
import statistics
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.errors import TooManyFaults, UsageError, reason_of
from jaxrl.core.machine import num_cores
from jaxrl.core.outside_env import (
    OutsideEnvironment,
    OutsideMultiAgentEnvironment,
    outside_environment,
)
from jaxrl.core.python_kinds import GYMNASIUM, SIMULATOR, VECTOR, kind_of
from jaxrl.outside.workers import simulator_env
from jaxrl.outside.workers.arrays import EnvForm
from jaxrl.outside.workers.env_functions import EnvFunction, envs_in, with_tasks
from jaxrl.outside.workers.family import in_one_process
from jaxrl.outside.workers.local import LocalVectorEnv
from jaxrl.outside.workers.pictured import PicturedEnv, makes_pictures
from jaxrl.outside.workers.pool import ProcessPool
from jaxrl.outside.workers.probing import possible_actions, probe
from jaxrl.outside.workers.rllib_envs import RllibAsParallel, gives_by_agent, made_parallel
from jaxrl.outside.workers.shared_generators import Draws, preserved
from jaxrl.outside.workers.sources import Source, close, make_copy, source_of
from jaxrl.outside.workers.space_forms import without_parts
from jaxrl.outside.workers.vector import FaultCount, VectorEnv, VectorSpec, spec_of

# Faults with no episode that ended in between; RLlib's name for the setting is
# num_consecutive_env_runner_failures_tolerance.
MAX_CONSECUTIVE_FAULTS = 20
STEP_TIMEOUT_S = 60.0
TIMED_STEPS = 10
WORTH_PROCESSES_S = 1e-3  # that a step of all copies takes, one after the other


class PythonEnv(NamedTuple):
    """A Python environment of which copies can be made."""

    source: Source
    form: EnvForm
    is_vector: bool  # a gymnasium.vector.VectorEnv, which steps its copies itself
    makes_pictures: bool = False
    has_tasks: bool = False

    @property
    def spec(self) -> VectorSpec:
        return spec_of(self.source.name, self.form)

    def vector(
        self,
        num_envs: int,
        *,
        num_workers: int | None = None,
        step_timeout_s: float = STEP_TIMEOUT_S,
        max_consecutive_faults: int = MAX_CONSECUTIVE_FAULTS,
        created: EnvFunction | None = None,
    ) -> VectorEnv:
        """E copies of the environment, which step together.

        Args:
            num_workers: processes that step them; 0: this one; None: as of `default_workers`. A
                `gymnasium.vector.VectorEnv` steps in this one.
            step_timeout_s: a step or reset of a copy that takes longer is a fault; only of worker
                processes.
            max_consecutive_faults: with more faults, and no episode that ended in between,
                `receive` raises `TooManyFaults`.
            created: is called with each copy's environment and context when it was made.
        """
        source = self.source._replace(created=created)
        faults = FaultCount(self.source.name, max_consecutive_faults)
        if num_workers is None and not self.is_vector:
            num_workers = self.default_workers(num_envs)
        if self.is_vector or num_workers == 0:
            return LocalVectorEnv((source, *self[1:3]), num_envs, faults)
        num_workers = min(num_workers, num_envs)
        return ProcessPool((source, self.form), num_envs, num_workers, faults, step_timeout_s)

    def default_workers(self, num_envs: int) -> int:
        """One process for each core; none where they would only slow the copies down.

        To wake processes for a step costs more than steps of a few microseconds.
        """
        if num_cores() == 1:
            return 0
        faults = FaultCount(self.source.name, MAX_CONSECUTIVE_FAULTS)
        copy = LocalVectorEnv(self[:3], 1, faults, Draws(num_steps=0))  # the plain step's time
        try:
            with preserved():
                seconds = seconds_of_a_step(copy)
        except TooManyFaults:
            return min(num_cores(), num_envs)  # where a fault costs least
        finally:
            copy.close()
        return min(num_cores(), num_envs) if seconds * num_envs > WORTH_PROCESSES_S else 0


def declare(source: Source, made: Any) -> PythonEnv:
    """A Python environment; a copy, `made`, is reset and stepped to see what it is, and closed.

    Raises:
        UsageError: it is no environment, or its spaces are not supported.
    """
    try:
        source, form = in_one_process(_probed, source, made)
    except UsageError:
        raise
    except Exception as error:
        is_foreign = kind_of(made) == VECTOR and not hasattr(made, "single_observation_space")
        way_out = "; give the environment that it holds copies of" if is_foreign else ""
        raise UsageError(
            f"environment {source.name!r} cannot be reset and stepped: {reason_of(error)}{way_out}"
        ) from error
    finally:
        if not source.is_given:
            close(made)
    is_vector = kind_of(made) == VECTOR
    has_tasks = any(with_tasks(env) is not None for env in envs_in(made))
    return PythonEnv(source, form, is_vector, not is_vector and makes_pictures(made), has_tasks)


def _probed(source: Source, made: Any) -> tuple[Source, EnvForm]:
    """The form of an environment, and the source of copies that can be stepped."""
    try:
        return source, probe(source, made)
    except UsageError:
        if kind_of(made) != GYMNASIUM or not gives_by_agent(made):
            raise
    source = source._replace(make=functools.partial(made_parallel, source.make))
    return source, probe(source, RllibAsParallel(made))


def adapt(
    name: str | None, make: Any, made: Any = None
) -> OutsideEnvironment | OutsideMultiAgentEnvironment:
    """A Python environment as training takes it; `jaxrl.core.registry` finds this function.

    Args:
        name: None: that of the environment.
        make: a function without arguments, or an environment, which is copied.
        made: what `make` has made.
    """
    source = source_of(make)
    if name is not None:
        source = source._replace(name=name)
    if made is None:
        made = make_copy(source)
    if kind_of(made) == SIMULATOR:
        return simulator_env.environment(source, made)
    declared = declare(source, made)
    return _environment(declared, int(made.num_envs) if declared.is_vector else None)


def _environment(
    declared: PythonEnv, num_copies: int | None
) -> OutsideEnvironment | OutsideMultiAgentEnvironment:
    env = outside_environment(declared.spec, declared.vector)
    env.has_tasks = declared.has_tasks
    if declared.makes_pictures:
        env.pictured = functools.partial(PicturedEnv, declared[:2])
    if num_copies is not None:
        env.num_copies, env.has_one_set = num_copies, declared.source.is_given
    unread = (form.unread for form in declared.form.observations)
    env.unread = tuple(sorted(set().union(*unread)))
    env.without_parts = functools.partial(_without_parts, declared, num_copies)
    return env


def _without_parts(
    declared: PythonEnv, num_copies: int | None, names: tuple[str, ...]
) -> OutsideEnvironment | OutsideMultiAgentEnvironment:
    """The environment whose observations lack these parts."""
    left = tuple(without_parts(form, names) for form in declared.form.observations)
    form = declared.form._replace(observations=left)
    return _environment(declared._replace(form=form), num_copies)


def make_vector_env(
    env: Any, num_envs: int, *, env_args: Mapping[str, Any] | None = None, **settings: Any
) -> VectorEnv:
    """E copies of a Python environment; `settings` are those of `PythonEnv.vector`."""
    source = source_of(env, env_args)
    made = make_copy(source)
    declaring = simulator_env.declare if kind_of(made) == SIMULATOR else declare
    return declaring(source, made).vector(num_envs, **settings)


def seconds_of_a_step(copy: VectorEnv) -> float:
    """The seconds of a step of one copy in this process: the median of its first steps."""
    masks = copy.reset(np.zeros(1, np.uint32)).action_mask
    seconds = []
    for _ in range(TIMED_STEPS):
        actions = possible_actions(copy.spec, masks, 1)
        began = time.perf_counter()
        copy.send(0, actions)
        masks = copy.receive(0).action_mask
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
