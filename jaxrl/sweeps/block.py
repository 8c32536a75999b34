"""Members on somebody else's clock: another's loop says when they train, when they are kept and when they go on."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.run import checkpoint
from jaxrl.run.devices import on_host, on_one
from jaxrl.run.lines import dumped
from jaxrl.run.program import CAPACITY
from jaxrl.run.recorder import Snapshot
from jaxrl.run.results import Lifetime, Result, result_names
from jaxrl.sweeps.batches import most_that_fit
from jaxrl.sweeps.members import Numbers, State, is_done
from jaxrl.sweeps.plan import Group, Trial, groups_of
from jaxrl.sweeps.programs import program_of
from jaxrl.sweeps.standing import Standing, last_result, numbers_for, stacked
from jaxrl.sweeps.store import keep_trial
from jaxrl.sweeps.values import check_path, readers_of

BLOCK = "block.json"  # of a saved block's folder, beside a run's folder for each member


class Block:
    """Trials that differ in numbers alone, trained side by side in one program, which the first `train` compiles.

    Args:
        trials: the members.
        metric: a path in the result tree, which must be there.
        devices: that the members are split over.

    Raises:
        UsageError: members of several shapes, or more than fit; nothing is compiled yet.
    """

    def __init__(self, trials: Sequence[Trial], *, metric: str, devices: int = 1):
        self.group, self.devices, self.metric = only_group(trials), devices, metric
        self.trials, self.algorithm = self.group.trials, self.group.algorithm
        shapes = self.group.shapes.metrics
        check_path(metric, readers_of(self.algorithm, shapes), "metric")
        if (fit := most_that_fit(self.group, devices)) < len(trials):
            raise UsageError(f"{len(trials):,} members do not fit into memory, {fit:,} do: make more trials of them")
        one_update = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), shapes)
        self.result_names = result_names(self.algorithm, one_update)
        self.lifetimes = [Lifetime() for _ in trials]
        self.results: list[Result | None] = [None] * len(trials)  # of each one's last finite update
        self.seconds = self.compile_seconds = 0.0  # of the last `train`; of the program
        self._numbers, self._state = self._prepared(), None

    @property
    def is_over(self) -> bool:
        """Whether every member has had all of its updates, or has diverged."""
        return self._state is not None and bool(jnp.all(is_done(self._state, self._numbers)))

    @property
    def diverged(self) -> list[bool]:
        size = len(self.trials)
        return [False] * size if self._state is None else np.asarray(self._state.diverged)[:size].tolist()

    def train(self, count: int = 1) -> list[Result | None]:
        """At most `count` updates of each member; each one's last result tree."""
        members = program_of(self.group, self._numbers, self.metric, (), self.devices)
        self.compile_seconds = members.compile_seconds
        if self._state is None:
            self._state = members.start(self._numbers)
        self.seconds = 0.0
        while count > 0 and not self.is_over:
            part = min(count, CAPACITY)
            before, begin = np.array(self._state.runner.num_updates), time.perf_counter()
            self._state, _ = members.chunk(self._state, self._numbers, part)
            self._take(before, time.perf_counter() - begin)
            count -= part
        return self.results

    def save(self, path: Path) -> None:
        """Writes a run's folder for each member, which `load_policy` and `--resume` take, and what `load` needs."""
        if self._state is None:
            self.train(0)
        held = jax.tree.map(on_host, on_one(self._state))
        for i, trial in enumerate(self.trials):
            runner = jax.tree.map(lambda leaf, i=i: leaf[i], held.runner)
            snapshot = Snapshot(runner, *trial.numbers, self.lifetimes[i], self.results[i], [])
            keep_trial(path / trial.name, trial, self.algorithm, snapshot)
        facts = {"lifetimes": [asdict(own) for own in self.lifetimes], "diverged": self.diverged}
        (path / BLOCK).write_text(dumped({**facts, "results": self.results}) + "\n", encoding="utf-8")

    def load(self, path: Path) -> None:
        """Goes on from a saved block, each member with the numbers that it has here.

        Raises:
            UsageError: no saved block, another number of members, or one of other shapes.
        """
        facts = self._facts(path)
        shapes = self.group.shapes.metrics
        metrics, states = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), []
        for i, trial in enumerate(self.trials):
            where = f"checkpoint {path / trial.name}"
            arrays = checkpoint.read(checkpoint.find(path / trial.name)).arrays
            key, lifetime = jax.random.key(trial.config.seed, impl="threefry2x32"), Lifetime(**facts["lifetimes"][i])
            template = jax.eval_shape(self.algorithm.init, key, *trial.numbers)
            runner = checkpoint.filled(template, arrays, "runner", where)
            flags = jnp.bool_(False), jnp.bool_(facts["diverged"][i])
            states.append(State(runner, metrics, jnp.int32(lifetime.num_episodes), *flags))
            self.lifetimes[i], self.results[i] = lifetime, facts["results"][i]
        filled = states + [states[0]] * (self._numbers.last.shape[0] - len(states))
        self._state = stacked(filled)

    def _facts(self, path: Path) -> dict[str, Any]:
        try:
            facts = json.loads((path / BLOCK).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} holds no saved members: {BLOCK}: {error}") from None
        if len(facts["lifetimes"]) != len(self.trials):
            raise UsageError(f"{path} holds {len(facts['lifetimes'])} members, here are {len(self.trials)}")
        return facts

    def _prepared(self) -> Numbers:
        """Those of the members; filled up by copies of the first, which have nothing to do, to share all devices."""
        standings = [Standing(trial, self.algorithm, trial.config.num_updates) for trial in self.trials]
        extra = -len(standings) % self.devices
        lasts = [own.last for own in standings] + [0] * extra
        return numbers_for(standings + [standings[0]] * extra, lasts, [])

    def _take(self, before: np.ndarray, seconds: float) -> None:
        """Brings each member's lifetime and result up to date after a chunk."""
        self.seconds += seconds
        moved = np.array(self._state.runner.num_updates) - before
        metrics, num_episodes = jax.tree.map(np.asarray, on_one((self._state.metrics, self._state.num_episodes)))
        for i, lifetime in enumerate(self.lifetimes):
            if not moved[i]:
                continue
            lifetime.training_iteration += int(moved[i])
            lifetime.num_env_steps += int(moved[i]) * self.algorithm.num_env_steps
            lifetime.num_episodes = int(num_episodes[i])
            lifetime.time_total_s += seconds
            own = jax.tree.map(lambda leaf, i=i: leaf[i], metrics)
            self.results[i] = last_result(self.algorithm, own, lifetime, seconds / int(moved[i]))


def only_group(trials: Sequence[Trial]) -> Group:
    """The one that all of the trials belong to."""
    groups = groups_of(trials)
    if len(groups) > 1:
        one, other = (group.trials[0].settings for group in groups[:2])
        differ = ", ".join(f"{name}={one.get(name)} and {other.get(name)}" for name in {**one, **other})
        raise UsageError(f"members of one trial must differ in numbers alone, not in {differ}")
    return groups[0]
