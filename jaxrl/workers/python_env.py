"""Python environments for training: what one declares, and E copies of it that step.

See `sources` for what an environment may be.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxrl.core.errors import UsageError, reason_of
from jaxrl.core.outside_env import (
    OutsideEnvironment,
    OutsideMultiAgentEnvironment,
    outside_environment,
)
from jaxrl.workers.arrays import EnvForm
from jaxrl.workers.copies import copy_of
from jaxrl.workers.local import LocalVectorEnv
from jaxrl.workers.pool import ProcessPool
from jaxrl.workers.sources import Source, make_copy, source_of
from jaxrl.workers.vector import FaultCount, VectorEnv, VectorSpec, spec_of

# Faults with no episode that ended in between; RLlib's name for the setting is
# num_consecutive_env_runner_failures_tolerance.
MAX_CONSECUTIVE_FAULTS = 20
STEP_TIMEOUT_S = 60.0


class PythonEnv(NamedTuple):
    """A Python environment of which copies can be made."""

    source: Source
    form: EnvForm

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
    ) -> VectorEnv:
        """E copies.

        Args:
            num_workers: processes that step them; 0: this one; None: one for each core.
            step_timeout_s: a step or reset of a copy that takes longer is a fault; only of worker
                processes.
            max_consecutive_faults: with more faults, and no episode that ended in between,
                `receive` raises `TooManyFaults`.
        """
        faults = FaultCount(self.source.name, max_consecutive_faults)
        num_workers = default_workers(num_envs) if num_workers is None else num_workers
        if num_workers == 0:
            return LocalVectorEnv(self.source, self.form, num_envs, faults)
        num_workers = min(num_workers, num_envs)
        return ProcessPool(self, num_envs, num_workers, faults, step_timeout_s)


def declare(source: Source, made: Any) -> PythonEnv:
    """A Python environment; a copy, `made`, is reset and stepped to see what it is, and closed.

    Raises:
        UsageError: it is no environment, or its spaces are not supported.
    """
    copy = copy_of(made, source.name)
    try:
        return PythonEnv(source, copy.probe())
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"environment {source.name!r} cannot be reset and stepped: {reason_of(error)}"
        ) from error
    finally:
        copy.env.close()


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
    source = source if name is None else source._replace(name=name)
    declared = declare(source, make_copy(source) if made is None else made)
    return outside_environment(declared.spec, declared.vector)


def make_vector_env(
    env: Any, num_envs: int, *, env_args: Mapping[str, Any] | None = None, **settings: Any
) -> VectorEnv:
    """E copies of a Python environment; `settings` are those of `PythonEnv.vector`."""
    source = source_of(env, env_args)
    return declare(source, make_copy(source)).vector(num_envs, **settings)


def default_workers(num_envs: int) -> int:
    """One process for each core that this one may use, if there is more than one."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(cores, num_envs) if cores > 1 else 0
