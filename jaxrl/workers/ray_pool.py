"""Ray actors that step copies of a Python environment, on one machine or on many.

Each actor holds several copies. As with worker processes the copies are two halves that step in
turn. An actor that is lost, with its machine or alone, is replaced by a new one wherever Ray has
room, and the episodes of its copies are dropped.
"""

import functools
import importlib.util
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.errors import UsageError, brief, is_installed
from jaxrl.core.types import AgentId, PyTree
from jaxrl.workers.arrays import EnvForm, StepArrays
from jaxrl.workers.pool import START_TIMEOUT_S, halves, pickled, shares
from jaxrl.workers.sources import Source
from jaxrl.workers.stepper import Fault
from jaxrl.workers.vector import FaultCount, FirstObs, Results, VectorSteps, spec_of


class Order(NamedTuple):
    """Work that an actor was given."""

    part: int | None
    restarted: bool
    result: Any  # Ray's reference


class RayPool:
    """A `VectorEnv` whose copies step in Ray actors; arguments as of `ProcessPool`."""

    def __init__(
        self,
        env: tuple[Source, EnvForm],
        num_envs: int,
        num_workers: int,
        faults: FaultCount,
        step_timeout_s: float,
    ):
        if not is_installed("ray"):
            raise UsageError('workers="ray:N" needs ray: pip install "jaxrl[ray]"')
        import ray

        source, self._form = env
        self.spec, self.num_envs = spec_of(source.name, self._form), num_envs
        self.num_restarts, self._timeout = 0, step_timeout_s
        self.parts = halves(num_envs)
        self._arrays, self._faults = StepArrays(self._form, num_envs), faults
        self._results = Results(self._arrays)
        self._shares = shares(self.parts, num_workers)
        if not ray.is_initialized():
            ray.init(logging_level="warning", log_to_driver=False)
        cores = ray.cluster_resources().get("CPU", 1.0)
        # Actors that find no room would wait for ever.
        self._kind = _actor_class(min(1.0, cores / num_workers))
        self._source = ray.put(pickled(source))
        self._actors = [self._make(rows) for rows in self._shares]
        self._orders: list[list[Order]] = [[] for _ in self._actors]

    @property
    def num_faults(self) -> int:
        return self._faults.total

    def reset(self, seeds: np.ndarray) -> FirstObs:
        self._arrays.first_seed[:], self._arrays.episode[:] = seeds, 0
        for index in range(len(self._actors)):
            self._order(index, None)
        for index in range(len(self._actors)):
            self._finish(index, None)
        return self._results.first()

    def send(self, part: int, actions: dict[AgentId, PyTree]) -> None:
        self._results.write_actions(self.parts[part], actions)
        for index, rows in enumerate(self._shares):
            if rows[part]:
                self._order(index, part)

    def receive(self, part: int) -> VectorSteps:
        for index, rows in enumerate(self._shares):
            if rows[part]:
                self._finish(index, part)
        steps = self._results.steps(self.parts[part])
        self._faults.see(steps)
        return steps

    def close(self) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._actors = []

    def _make(self, rows: tuple[range, ...]) -> Any:
        return self._kind.remote(self._source, pickle.dumps(self._form), tuple(map(len, rows)))

    def _rows(self, index: int, part: int | None) -> np.ndarray:
        """The copies that an actor has of a part, or of all, in the order in which it has them."""
        rows = self._shares[index] if part is None else [self._shares[index][part]]
        return np.concatenate([np.arange(each.start, each.stop) for each in rows])

    def _order(self, index: int, part: int | None, restarted: bool = False) -> None:
        rows = self._rows(index, part)
        blocks = [block[rows] for block in self._arrays.inputs]
        result = self._actors[index].work.remote(part, blocks, restarted)
        self._orders[index].append(Order(part, restarted, result))

    def _finish(self, index: int, part: int | None) -> None:
        """Returns when an actor has done its work on a part, however often it is replaced."""
        while any(order.part == part for order in self._orders[index]):
            reason = self._take(index)
            if reason:
                self._replace(index, reason)

    def _take(self, index: int) -> str:
        """Stores the results of an actor's first order; else says why there are none."""
        import ray

        order = self._orders[index][0]
        rows = self._rows(index, order.part)
        # To begin, an actor may have to be started, on a machine that is started too.
        limit = START_TIMEOUT_S if order.part is None else self._timeout * len(rows)
        try:
            blocks, faults = ray.get(order.result, timeout=limit)
        except ray.exceptions.GetTimeoutError:
            return f"no result within {limit:g} s"
        except ray.exceptions.RayTaskError as error:
            return str(error.cause).splitlines()[0]
        except ray.exceptions.RayError as error:
            return f"its Ray actor was lost ({type(error).__name__})"
        del self._orders[index][0]
        for block, values in zip(self._arrays.blocks, blocks, strict=True):
            block[rows] = values
        for fault in faults:
            fault = Fault(*fault)
            self._faults.add(fault._replace(row=int(self._rows(index, None)[fault.row])))
        return ""

    def _replace(self, index: int, reason: str) -> None:
        """Makes an actor again, with new episodes, and repeats what it has not done."""
        import ray

        arrays, rows = self._arrays, self._rows(index, None)
        lost = [order.part for order in self._orders[index] if order.part is not None]
        has_begun = len(lost) == len(self._orders[index])
        ray.kill(self._actors[index])
        row = int(rows[0])
        action = brief(arrays.row(row).read_actions())
        fault = Fault(row, arrays.seed(row), int(arrays.step[row]) + 1, action, reason)
        self._faults.add(fault, len(rows) if has_begun else 0)
        self.num_restarts += 1
        arrays.episode[rows] += 1
        self._actors[index], self._orders[index] = self._make(self._shares[index]), []
        self._order(index, None, restarted=has_begun)
        for part in lost:
            self._order(index, part)


@functools.cache
def _actor_class(num_cpus: float) -> Any:
    import ray

    package = __package__.partition(".")[0]

    class Actor:  # a local class travels by value, so its process need not import jaxrl and JAX
        def __init__(self, *arguments: Any):
            init = Path(importlib.util.find_spec(package).origin)
            file = init.parent / "workers" / "process.py"
            spec = importlib.util.spec_from_file_location("jaxrl_process", file)
            process = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(process)
            process.import_jaxrl_when_used()
            from jaxrl.workers.ray_actor import StepperActor

            self._stepper = StepperActor(*arguments)

        def work(self, *arguments: Any) -> tuple:
            return self._stepper.work(*arguments)

    return ray.remote(num_cpus=num_cpus, max_restarts=0, scheduling_strategy="SPREAD")(Actor)
