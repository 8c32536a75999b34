"""The copies of a simulator that steps them in one call; their steps are arrays of JAX."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.env_config import EnvConfig
from jaxrl.core.errors import TooManyFaults, UsageError, brief, explained, reason_of
from jaxrl.core.outside_env import OutsideSteps
from jaxrl.core.spaces import Dict, Space, parts_of, tree_of
from jaxrl.core.types import DEFAULT_AGENT, AgentId, PyTree
from jaxrl.outside.workers.env_functions import EnvFunction
from jaxrl.outside.workers.shared_generators import Draws, OwnGenerators
from jaxrl.outside.workers.simulators import TIME_OUTS, Simulator, SimulatorResults
from jaxrl.outside.workers.sources import close
from jaxrl.outside.workers.tensors import maker_like, to_host, to_jax
from jaxrl.outside.workers.vector import FaultCount, FirstObs, VectorSpec

log = logging.getLogger(__name__)


class SimulatorCopies:
    """A `VectorEnv`: all copies of a simulator.

    Observations are views of the simulator's tensors where `to_jax` can give one.

    Args:
        action_types: like the action space: names of types as the simulator takes them.
        closes: whether `close` ends the simulator.
    """

    gives_jax_arrays = True
    num_restarts = 0

    def __init__(
        self,
        simulator: Simulator,
        spec: VectorSpec,
        action_types: PyTree,
        faults: FaultCount,
        *,
        closes: bool,
    ):
        self.spec, self.num_envs = spec, simulator.num_envs
        self.parts = (slice(0, self.num_envs),)
        self._simulator, self._faults, self._closes = simulator, faults, closes
        self._action_types, self._actions = action_types, None
        self._device = jax.local_devices()[0]
        self._draws = Draws()
        self._generators = OwnGenerators(self._draws, seed=0)
        self._tensor_of: Callable[[jax.Array, str], Any] | None = None
        self._yes = jnp.ones(self.num_envs, bool)
        self._no, self._active = ~self._yes, self._yes[:, None]
        self._were_lost = np.zeros(self.num_envs, bool)
        self._has_told = False
        self.context = EnvConfig()  # that functions of the environment get

    @property
    def num_faults(self) -> int:
        return self._faults.total

    def reset(self, seeds: np.ndarray) -> FirstObs:
        seed = int(seeds[0]) & 0x7FFFFFFF
        self._generators.begin(seed)
        results = self._call("reset", self._simulator.reset, seed)
        self._were_lost = np.zeros(self.num_envs, bool)
        obs, critic = self._read(results.obs, results.critic)
        copied = functools.partial(jax.tree.map, functools.partial(jnp.array, copy=True))
        return FirstObs({DEFAULT_AGENT: copied(obs)}, None, None, copied(critic))

    def send(self, part: int, actions: dict[AgentId, PyTree]) -> None:
        arrays = jax.tree.map(jnp.asarray, actions[DEFAULT_AGENT])
        self._actions = jax.tree.map(self._tensor_of, arrays, self._action_types)

    def receive(self, part: int) -> OutsideSteps:
        """The results of a step, which is taken here.

        Raises:
            TooManyFaults: the step fails, or its tensors have other shapes than the spaces say.
        """
        self._draws.count_step()
        results = self._call("step", self._simulator.step, self._actions)
        self._check_numbers(results)
        obs, critic = self._read(results.obs, results.critic)
        final_obs, final_critic, final_known = obs, critic, self._no
        if (final := self._simulator.final(results)) is not None:
            (final_obs, final_critic), final_known = self._read(*final), self._yes
        observed = obs, critic, final_obs, final_critic
        numbers = _numbers(results.has_dones, *self._numbers_of(results), observed)
        reward, terminated, truncated, episode_done, lost = numbers
        if final is None and not self._has_told:
            self._tell_of_time_limits(truncated)
        if self._count_lost(np.asarray(lost)):
            obs, critic, final_obs, final_critic = _without_lost(lost, observed)
        steps = OutsideSteps(
            obs={DEFAULT_AGENT: obs},
            final_obs={DEFAULT_AGENT: final_obs},
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            active=self._active,
            episode_done=episode_done,
            lost=lost,
            metrics={},
            action_mask=None,
            acting=None,
            final_known=final_known,
            critic=critic,
            final_critic=final_critic,
        )
        self._faults.see(steps)
        return steps

    def foreach_env(self, function: EnvFunction, seeds: np.ndarray | None) -> list[Any]:
        with explained("the simulator"):
            return [function(self._simulator.env, self.context)]

    def close(self) -> None:
        if self._closes:
            close(self._simulator.env)

    def _call(self, what: str, call: Any, argument: Any) -> SimulatorResults:
        """The results of the simulator, which has generators of random numbers for itself."""
        try:
            return self._draws.alone(lambda: self._generators.play(call, argument))
        except UsageError as error:
            raise self._wrong(str(error)) from error
        except Exception as error:
            raise self._wrong(f"its {what} failed: {reason_of(error)}") from error

    def _read(self, obs: PyTree, critic: PyTree | None) -> tuple[PyTree, PyTree | None]:
        """Observations as arrays of the types that the spaces have."""
        obs = self._arrays(self.spec.observation_spaces[DEFAULT_AGENT], obs, "the observation")
        if self.spec.critic_space is None:
            return obs, None
        return obs, self._arrays(self.spec.critic_space, critic, "the critic's observation")

    def _arrays(self, space: Space, tensors: PyTree, what: str) -> PyTree:
        try:
            tensors = _parts_in(space, tensors)
            named = [(name, part.shape, tensor) for name, part, tensor in parts_of(space, tensors)]
        except (KeyError, TypeError, ValueError):
            raise self._wrong(f"{what} is {brief(tensors)}, not of {space}") from None
        for name, shape, tensor in named:
            self._check_shape(f"{what} {name}".strip(), tensor, shape)
        if self._tensor_of is None:
            self._tensor_of = maker_like(named[0][2])

        def read(part, tensor):
            array = to_jax(tensor, self._device)
            return array if array.dtype == part.dtype else array.astype(part.dtype)

        return jax.tree.map(read, tree_of(space), tensors)

    def _check_numbers(self, results: SimulatorResults) -> None:
        names = ("dones", TIME_OUTS) if results.has_dones else ("terminated", "truncated")
        self._check_shape("reward", results.reward, ())
        for name, flags in zip(names, results.ends, strict=True):
            if flags is not None:
                self._check_shape(name, flags, ())

    def _check_shape(self, what: str, tensor: Any, shape: tuple[int, ...]) -> None:
        found, expected = getattr(tensor, "shape", None), (self.num_envs, *shape)
        if found is None:
            raise self._wrong(f"{what} is {brief(tensor)}, not a tensor of shape {expected}")
        if tuple(found) != expected:
            raise self._wrong(f"{what} has shape {tuple(found)}, not {expected}")

    def _wrong(self, reason: str) -> TooManyFaults:
        return TooManyFaults(f"environment {self.spec.name!r}: {reason}")

    def _numbers_of(self, results: SimulatorResults) -> tuple[Any, tuple]:
        """(reward, ends) as a compiled call takes them: those of the host as they are."""
        read = to_host
        if self._device.platform != "cpu":
            read = functools.partial(to_jax, device=self._device)
        return jax.tree.map(read, (results.reward, results.ends))

    def _count_lost(self, lost: np.ndarray) -> bool:
        """Counts copies that gave NaN and did not in the step before; returns whether any did."""
        new = lost & ~self._were_lost
        self._were_lost = lost
        if new.any() or lost.all():
            copy = int(np.flatnonzero(lost)[0])
            reason = f"copy {copy}: an observation or a reward is NaN or infinite"
            self._faults.add(reason, int(new.sum()))
        return bool(lost.any())

    def _tell_of_time_limits(self, truncated: jax.Array) -> None:
        self._has_told = bool(np.asarray(truncated).any())
        if self._has_told:
            log.warning(
                "environment %r gives no last observation (info['final_obs']): a time limit is "
                "bootstrapped from the observation before it",
                self.spec.name,
            )


def _parts_in(space: Space, tensors: PyTree) -> PyTree:
    """Tensors without the parts that a space does not have."""
    if not isinstance(space, Dict):
        return tensors
    return {name: _parts_in(part, tensors[name]) for name, part in space.spaces.items()}


@functools.partial(jax.jit, static_argnums=0)
def _numbers(has_dones: bool, reward: Any, ends: tuple, observed: tuple) -> tuple:
    """(reward, terminated, truncated [E, 1], episode_done, lost [E]); lost: a number is infinite.

    Args:
        has_dones: whether `ends` are (dones, time-outs or None), and not (terminated, truncated).
        observed: (obs, critic's, and both before any reset).
    """
    first = ends[0] != 0
    second = jnp.zeros_like(first) if ends[1] is None else ends[1] != 0
    episode_done = first if has_dones else first | second
    truncated = first & second if has_dones else second & ~first
    obs, critic, *final = observed
    is_sound = jnp.isfinite(reward) & _are_finite((obs, critic), len(reward))
    is_sound = is_sound & (_are_finite(final, len(reward)) | ~episode_done)
    episode_done, truncated = episode_done & is_sound, truncated & is_sound
    reward = jnp.where(is_sound, reward, 0).astype(jnp.float32)
    flags = episode_done & ~truncated, truncated
    return reward[:, None], *(flag[:, None] for flag in flags), episode_done, ~is_sound


def _are_finite(tree: PyTree, number: int) -> jax.Array:
    """A mask of the copies all of whose floats are finite, bool[E]."""
    found = jnp.ones(number, bool)
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            found = found & jnp.all(jnp.isfinite(leaf.reshape(number, -1)), axis=1)
    return found


@jax.jit
def _without_lost(lost: jax.Array, observed: tuple) -> tuple:
    """Observations with zeros in the rows of copies that are lost."""

    def keep(leaf):
        return jnp.where(lost.reshape(-1, *[1] * (leaf.ndim - 1)), jnp.zeros_like(leaf), leaf)

    return jax.tree.map(keep, observed)
