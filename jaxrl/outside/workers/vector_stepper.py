"""Stepping of a `gymnasium.vector.VectorEnv`, whose copies step together by its own means.

Its three ways to begin new episodes are all taken. With "NextStep" the step after an end begins
one, without its action: that row is reported as lost, and no fault is counted. This module must not
import JAX.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, explained
from jaxrl.core.mask_parts import MASK
from jaxrl.core.number_types import NotHeldError, as_type
from jaxrl.outside.workers.arrays import EnvForm, RangeCheck, StepArrays, metrics_of
from jaxrl.outside.workers.copies import AGENT, FIVE, described, of_length
from jaxrl.outside.workers.env_functions import EnvFunction, envs_in
from jaxrl.outside.workers.listed_infos import with_gymnasiums_interface
from jaxrl.outside.workers.masks import MaskSource, ObservedMask, method_of
from jaxrl.outside.workers.shared_generators import Draws, OwnGenerators
from jaxrl.outside.workers.sources import Source, close, make_copy
from jaxrl.outside.workers.space_forms import form_of, read, write
from jaxrl.outside.workers.stepper import BrokenEnvironment, Fault, reason_to_drop

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"  # Gymnasium's own words


def declared(env: Any, name: str) -> EnvForm:
    """The form of a `VectorEnv`'s arrays, as far as its spaces state it."""
    env = with_gymnasiums_interface(env)
    action = form_of(env.single_action_space, f"action of {name}")
    observed = ObservedMask(env.single_observation_space, action)
    observation = form_of(observed.space, f"observation of {name}", is_observed=True)
    return EnvForm((AGENT,), (observation,), (action,), True, (), True, waits=False)


class VectorStepper:
    """A `Stepper` for the copies of one `VectorEnv`. A fault drops the episodes of all."""

    def __init__(self, source: Source, arrays: StepArrays, report: Callable[[Fault], None]):
        self._source, self._arrays, self._report = source, arrays, report
        self._reached = RangeCheck(arrays, arrays.final_obs, range(arrays.num_envs))
        self._draws = Draws()
        self._generators = OwnGenerators(self._draws, seed=0)
        self._env = self._drawing(self._make)
        mode = self._env.metadata.get("autoreset_mode", NEXT_STEP)
        self._mode = getattr(mode, "value", mode)
        if self._mode not in (NEXT_STEP, SAME_STEP, DISABLED):
            raise UsageError(f"environment {source.name!r}: unknown autoreset_mode {mode!r}")
        self._observed = ObservedMask(self._env.single_observation_space, arrays.form.actions[0])
        self._masks = MaskSource(_method_of(self._env))

    def reset(self) -> None:
        arrays = self._arrays
        seeds = [arrays.seed(row) for row in range(arrays.num_envs)]
        self._generators.begin(seeds[0])
        try:
            obs, info = self._drawing(lambda: self._env.reset(seed=seeds))
        except Exception:  # some draw for all copies from one seed
            obs, info = self._drawing(lambda: self._env.reset(seed=seeds[0]))
        arrays.step[:], arrays.restarted[:] = 0, False
        obs, masks = self._observed.split(obs)
        self._write_obs(arrays.obs, obs)
        self._write_masks(masks, info, np.ones(arrays.num_envs, bool))
        check = RangeCheck(arrays, arrays.obs, range(arrays.num_envs))
        if wrong := check.wrong_rows():
            raise BrokenEnvironment(check.reason(wrong[0]))

    def step(self) -> None:
        arrays = self._arrays
        arrays.lost[:] = arrays.restarted
        arrays.step[:] += 1
        try:
            self._step()
            wrong = self._reached.wrong_rows()
            reason = ""
            if wrong:
                reason = self._reached.reason(wrong[0])
            elif not np.isfinite(arrays.reward).all():
                reason = "a reward is NaN"
        except BaseException as error:
            reason = reason_to_drop(error)
        if reason:
            self._drop(reason)

    def infos(self) -> dict[int, dict[str, dict]]:
        """None: they are in arrays of all copies."""
        return {}

    def foreach_env(self, function: EnvFunction) -> dict[int, Any]:
        """The same as a `Stepper`'s, of the environments in it; of itself where it shows none."""
        return self._call_each(function, self._env)

    def close(self) -> None:
        if not self._source.is_given:
            close(self._env)

    def _step(self) -> None:
        arrays = self._arrays
        self._draws.count_step()
        results = self._drawing(lambda: self._env.step(self._actions()))
        obs, reward, terminated, truncated, info = of_length(5, results, FIVE)
        begun = arrays.restarted.copy()  # "NextStep": in this step their episodes began
        reward = self._of_copies(reward, "reward", "fiub")
        terminated = self._of_copies(terminated, "terminated", "b")
        truncated = self._of_copies(truncated, "truncated", "b")
        ended = (terminated | truncated) & ~begun
        self._write_rewards(np.where(begun, 0, reward))
        arrays.terminated[:, 0] = terminated & ~begun
        arrays.truncated[:, 0] = truncated & ~terminated & ~begun
        arrays.active[:, 0] = ~begun
        arrays.episode_done[:] = ended
        obs, masks = self._observed.split(obs)
        self._write_obs(arrays.obs, obs)
        self._write_obs(arrays.final_obs, obs)
        self._write_masks(masks, info, ~ended | (self._mode == SAME_STEP))
        self._write_metrics(info)
        arrays.step[begun | ended] = 0
        arrays.restarted[:] = ended & (self._mode == NEXT_STEP)
        if not ended.any():
            return
        if self._mode == SAME_STEP:
            form = arrays.form.observations[0]
            for row in np.flatnonzero(ended):
                views = [leaf[row, 0, ...] for leaf in arrays.final_obs[0]]
                write(form, views, self._observed.split(info["final_obs"][row])[0])
        elif self._mode == DISABLED:
            self._begin(ended)

    def _begin(self, ended: np.ndarray) -> None:
        """Begins new episodes of some copies, each with its own seed."""
        arrays = self._arrays
        arrays.episode[ended] += 1
        seeds: list[int | None] = [None] * arrays.num_envs
        for row in np.flatnonzero(ended):
            seeds[row] = arrays.seed(row)
        options = {"reset_mask": ended}
        obs, info = self._drawing(lambda: self._env.reset(seed=seeds, options=options))
        obs, masks = self._observed.split(obs)
        self._write_obs(arrays.obs, obs)
        self._write_masks(masks, info, ended)

    def _drop(self, reason: str) -> None:
        """Reports a fault, and begins new episodes of all copies."""
        arrays = self._arrays
        step = int(arrays.step.max())
        self._report(Fault(0, arrays.seed(0), step, "of all copies", reason))
        arrays.episode[:] += 1
        if not self._source.is_given:
            close(self._env)
            self._env = self._drawing(self._make)
        self.reset()
        for block, final in zip(arrays.obs[0], arrays.final_obs[0], strict=True):
            final[:] = block
        arrays.lost[:], arrays.episode_done[:], arrays.reward[:] = True, False, 0
        arrays.metrics[:] = 0
        for flags in (arrays.terminated, arrays.truncated, arrays.active):
            flags[:] = False

    def _drawing(self, call: Callable[[], Any]) -> Any:
        """The result of a call of the environment, which draws from generators of its own."""
        return self._draws.alone(lambda: self._generators.play(call))

    def _make(self) -> Any:
        env = with_gymnasiums_interface(make_copy(self._source))
        if env.num_envs != self._arrays.num_envs:
            raise UsageError(
                f"environment {self._source.name!r} steps {env.num_envs} copies: num_envs must be "
                f"{env.num_envs}, not {self._arrays.num_envs}"
            )
        if self._source.created is not None:
            self._call_each(self._source.created, env)
        return env

    def _call_each(self, function: EnvFunction, env: Any) -> dict[int, Any]:
        results = {}
        for number, copy in enumerate(envs_in(env)):
            with explained(f"copy {number}"):
                results[number] = function(copy, self._source.context(number))
        return results

    def _actions(self) -> Any:
        """Actions of all copies as the environment takes them."""
        form, arrays = self._arrays.form.actions[0], self._arrays
        return read(form, [leaf[:, 0] for leaf in arrays.action[0]])

    def _of_copies(self, values: Any, what: str, kinds: str) -> np.ndarray:
        """A number or a flag of each copy; ValueError if it is something else."""
        found = np.asarray(values)
        if found.shape != (self._arrays.num_envs,) or found.dtype.kind not in kinds:
            raise ValueError(f"{what} is {described(values)}, not a value for each copy")
        return found

    def _write_rewards(self, rewards: np.ndarray) -> None:
        try:
            self._arrays.reward[:, 0] = as_type(rewards, np.float32)
        except NotHeldError as error:
            raise ValueError(f"a reward is {error}") from None

    def _write_obs(self, blocks: list[list[np.ndarray]], obs: Any) -> None:
        views, batch = [leaf[:, 0] for leaf in blocks[0]], (self._arrays.num_envs,)
        write(self._arrays.form.observations[0], views, obs, batch)

    def _write_masks(self, masks: Any, info: Mapping, acting: np.ndarray) -> None:
        """Stores the masks of the copies that act next.

        Args:
            masks: of all copies, from their observations; None: they are elsewhere.
        """
        arrays = self._arrays
        is_there = self._observed.is_part
        if not is_there:
            is_there, masks = self._masks.find(info)
        if not (is_there and arrays.form.masked):
            if is_there:
                raise ValueError("there is an action_mask, and in the first step there was none")
            return
        if arrays.findings is not None:
            arrays.findings.masked = True
        has_mask = info.get(f"_{MASK}", acting) if MASK in info else acting
        for row in np.flatnonzero(acting):
            if not has_mask[row]:
                raise ValueError(f"info['action_mask'] is missing for copy {row}")
            arrays.mask[0][row, 0] = arrays.mask_readers[0].read(_of_copy(masks, row))

    def _write_metrics(self, info: Mapping) -> None:
        found, findings = metrics_of(info), self._arrays.findings
        if findings is not None:
            findings.metrics |= {name: 0.0 for name in found if not name.startswith("_")}
        for index, name in enumerate(self._arrays.form.metrics):
            self._arrays.metrics[:, index] = found.get(name, 0)


def _method_of(env: Any) -> Callable[[], Any] | None:
    """The method that gives the masks of all copies: the copies' own, or the environment's."""
    copies = getattr(env.unwrapped, "envs", None)
    methods = [method_of(copy) for copy in copies or ()]
    if methods and None not in methods:
        return lambda: [method() for method in methods]
    return method_of(env)


def _of_copy(masks: Any, row: int) -> Any:
    """The mask of one copy, of masks with the copies' axis in each array."""
    if isinstance(masks, Mapping):
        return {name: _of_copy(part, row) for name, part in masks.items()}
    if isinstance(masks, tuple):
        return tuple(_of_copy(part, row) for part in masks)
    return masks[row]
