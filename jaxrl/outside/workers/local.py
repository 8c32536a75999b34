"""Copies of a Python environment that step in this process, one after the other."""

from typing import Any

import numpy as np

from jaxrl.core.errors import TooManyFaults, UsageError
from jaxrl.core.outside_env import OutsideSteps
from jaxrl.core.types import AgentId, PyTree
from jaxrl.outside.workers.arrays import EnvForm, StepArrays
from jaxrl.outside.workers.env_functions import EnvFunction
from jaxrl.outside.workers.shared_generators import Draws
from jaxrl.outside.workers.sources import Source
from jaxrl.outside.workers.stepper import BrokenEnvironment, Stepper
from jaxrl.outside.workers.vector import FaultCount, FirstObs, Results, spec_of
from jaxrl.outside.workers.vector_stepper import VectorStepper


class LocalVectorEnv:
    """A `VectorEnv` without other processes: nothing ends a step that hangs.

    Args:
        env: Source, EnvForm, and whether it is a `gymnasium.vector.VectorEnv`.
        draws: None: copies that draw from generators of this process have some of their own.
    """

    num_restarts = 0

    def __init__(
        self,
        env: tuple[Source, EnvForm, bool],
        num_envs: int,
        faults: FaultCount,
        draws: Draws | None = None,
    ):
        source, form, is_vector = env
        self.spec, self.num_envs = spec_of(source.name, form), num_envs
        self.parts = (slice(0, num_envs),)
        self._faults, self._arrays = faults, StepArrays(form, num_envs)
        self._results = Results(self._arrays, self.parts)
        if is_vector:
            self._stepper = VectorStepper(source, self._arrays, faults.add)
        else:
            rows = range(num_envs)
            self._stepper = Stepper(source, self._arrays, rows, faults.add, draws=draws)

    @property
    def num_faults(self) -> int:
        return self._faults.total

    def reset(self, seeds: np.ndarray) -> FirstObs:
        self._arrays.first_seed[:], self._arrays.episode[:] = seeds, 0
        try:
            self._stepper.reset()
        except (BrokenEnvironment, UsageError) as error:
            raise TooManyFaults(f"environment {self.spec.name!r}: {error}") from error
        return self._results.first()

    def send(self, part: int, actions: dict[AgentId, PyTree]) -> None:
        self._results.write_actions(self.parts[part], actions)

    def receive(self, part: int) -> OutsideSteps:
        try:
            self._stepper.step()
        except (BrokenEnvironment, UsageError) as error:
            raise TooManyFaults(f"environment {self.spec.name!r}: {error}") from error
        steps = self._results.steps[part]
        self._faults.see(steps)
        return steps

    def infos(self) -> dict[int, dict[AgentId, dict]]:
        return self._stepper.infos()

    def foreach_env(self, function: EnvFunction, seeds: np.ndarray | None) -> list[Any]:
        if seeds is not None:
            self._arrays.first_seed[:], self._arrays.episode[:] = seeds, 0
        return list(self._stepper.foreach_env(function).values())

    def close(self) -> None:
        self._stepper.close()
