"""Environments of EnvPool (https://github.com/sail-sg/envpool, 1.2): Atari, MuJoCo and others.

`make("envpool:Pong-v5")` makes one; arguments are those of EnvPool's own `make`. All copies are
stepped in C++ by the threads of one pool, which XLA calls within the compiled program.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.experimental import io_callback

from jaxrl.adapters import wrapping
from jaxrl.adapters.fast import WithFastChanges
from jaxrl.core.batched_env import BatchedEnvironment
from jaxrl.core.errors import UsageError, brief, reason_of
from jaxrl.core.fields import without
from jaxrl.core.spaces import Box, Dict, Discrete, Space
from jaxrl.core.types import PyTree

with wrapping.imported("envpool", "envpool"):
    import envpool

# Arguments of EnvPool's `make` that training sets, or that change nothing.
NOT_ARGUMENTS = {
    *("num_envs", "batch_size", "seed", "env_seed", "max_num_players"),
    *("base_path", "gym_reset_return_info", "reward_threshold", "thread_affinity_offset"),
}
MOST_THREADS = 1024  # of a pool; EnvPool ends the process where the system refuses one
TYPES = {"float64": "float32", "int64": "int32"}  # JAX has 32 bits by default
NO_VMAP = (
    "an environment of EnvPool cannot be vmapped: its pool takes one batch of actions; "
    "train one seed and one setting at a time, without a sweep"
)
STALE = (
    "the episodes of this training were ended: another one reset the same pool of EnvPool; build "
    "an algorithm for each"
)


@wrapping.constructors("envpool", lambda: envpool.list_all_envs())
def constructor(name: str) -> wrapping.Maker:
    """The constructor of EnvPool's environment `name`."""
    config = _made(name, envpool.make_spec, name).config._asdict()
    return wrapping.Maker(EnvPool, without(config, NOT_ARGUMENTS))


class NoParams(struct.PyTreeNode):
    """EnvPool's numbers are arguments of the pool: none can be traced."""


class Ticket(struct.PyTreeNode):
    """A placeholder for the state of a pool's copies, [E], which each call passes on.

    So the program depends on the order of the calls, and keeps it.
    """

    number: jax.Array  # i32  of the last reset of all copies
    truncated: jax.Array  # bool  the time limit ended the episode


class EnvPool(WithFastChanges, BatchedEnvironment):
    """A task of EnvPool. Each object has pools of its own, one for each number of copies.

    Observations in float64 become float32, and images have their channels last.

    Args:
        task: EnvPool's name.
        seed: of the pools: copy i draws by seed + i.
        direct: whether XLA calls the pool where it can, on a CPU; else Python does for it.
        **args: of `envpool.make`.

    Attributes:
        time_limit: "truncates", or "terminates"; set before the first step.
    """

    state_outside, time_limit = True, wrapping.TRUNCATES

    def __init__(self, task: str, *, seed: int = 0, direct: bool = True, **args: Any):
        self._task, self._seed, self._args = task, seed, args
        num_threads = args.get("num_threads", 0)
        if not isinstance(num_threads, int) or not 0 <= num_threads <= MOST_THREADS:
            raise UsageError(
                f"environment {self.name!r}: num_threads must be an integer from 0, for all cores, "
                f"to {MOST_THREADS:,}, not {brief(num_threads)}"
            )
        self._spec = _made(task, envpool.make_spec, task, **args)
        self._parts = _observed(self.name, self._spec)
        self._action_space = _action_space(self.name, self._spec)
        self._pools: dict[int, Pool] = {}
        self._direct = direct and sys.platform == "linux" and hasattr(jax, "enable_x64")

    @property
    def name(self) -> str:
        return f"envpool:{self._task}"

    @property
    def default_params(self) -> NoParams:
        return NoParams()

    def separate(self, number: int) -> "EnvPool":
        """The same task in pools of its own. Copies have seeds in a row, so these are far apart."""
        seed = int(np.random.SeedSequence((self._seed, number)).generate_state(1)[0]) >> 2
        env = EnvPool(self._task, seed=seed, direct=self._direct, **self._args)
        env.time_limit = self.time_limit
        return env

    def observation_space(self, params: PyTree = None) -> Space:
        spaces = {name: part.space for name, part in self._parts.items()}
        return spaces.get("") or Dict(spaces)

    def action_space(self, params: PyTree = None) -> Space:
        return self._action_space

    def is_truncated(self, state: Ticket, params: PyTree) -> jax.Array:
        return state.truncated

    def reset_batch(self, keys, params):
        pool = self._pool(len(keys))
        obs, number = io_callback(pool.reset, (pool.obs_types, pool.number_type))
        return self._converted(obs), Ticket(number, jnp.zeros(len(keys), bool))

    def step_batch(self, keys, state, action, params):
        pool = self._pool(len(keys))
        ways = {"default": pool.step_by_callback}
        if self._direct:
            ways["cpu"] = pool.step_directly

        def step(number, action):
            return jax.lax.platform_dependent(number, action, **ways)

        number, obs, reward, done, truncated = _refusing_vmap(step)(state.number, action)
        ended = done if self.time_limit == wrapping.TERMINATES else done & ~truncated
        return self._converted(obs), Ticket(number, truncated), reward, ended, {}

    def restart_batch(self, keys, ended, reached, params):
        """A pool resets a copy by itself in the call after its end: those copies get that call."""
        pool, (obs, state) = self._pool(len(keys)), reached

        def restarted(number):
            types = (pool.obs_types, pool.number_type)
            fresh, number = io_callback(pool.restart, types, number, ended)
            return self._converted(fresh), number

        def as_reached(number):
            return obs, number

        fresh, number = jax.lax.cond(jnp.any(ended), restarted, as_reached, state.number)
        obs = jax.tree.map(lambda new, old: jax.vmap(jnp.where)(ended, new, old), fresh, obs)
        return obs, Ticket(number, state.truncated & ~ended)

    def _pool(self, num_envs: int) -> "Pool":
        if num_envs not in self._pools:
            make = lambda: Pool(self._task, num_envs, self._seed, self._args, tuple(self._parts))
            self._pools[num_envs] = _made(self._task, make)
        return self._pools[num_envs]

    def _converted(self, obs: tuple[jax.Array, ...]) -> PyTree:
        """Observations as their spaces have them."""
        parts = {}
        for (name, part), values in zip(self._parts.items(), obs, strict=True):
            parts[name] = part.convert(values)
        return parts.get("", parts)


class Part(NamedTuple):
    """A part of the observations, as EnvPool and as the space has it."""

    space: Space
    channels_first: bool

    def convert(self, values: jax.Array) -> jax.Array:
        if self.channels_first:
            values = jnp.moveaxis(values, 1, -1)
        return values.astype(self.space.dtype)


class Pool:
    """E copies of a task, and the calls that reach them from a compiled program.

    EnvPool's own `xla()` is not used: it leaves half the room that float64 needs, and the numbers
    of MuJoCo's tasks run over it.
    """

    def __init__(self, task: str, num_envs: int, seed: int, args: dict, names: tuple[str, ...]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._envs = envpool.make_gymnasium(task, num_envs=num_envs, seed=seed, **args)
        self._all = np.arange(num_envs, dtype=np.int32)
        self._number = 0  # of resets of all copies
        self._calls = {call: _registered(self._envs, call, *of) for call, of in self._envs._xla()}
        keys = list(self._envs._state_keys)
        self._obs = [keys.index(f"obs:{name}" if name else "obs") for name in names]
        self._others = [keys.index(key) for key in ("reward", "done", "trunc")]
        *_, (self._action_dtype, shape) = self._calls["send"].takes
        self._action_shape = tuple(shape[1:])
        types = [_type_of(dtype, tuple(shape)) for dtype, shape in self._calls["recv"].gives]
        self.number_type = jax.ShapeDtypeStruct((num_envs,), np.int32)
        self.obs_types = tuple(types[i] for i in self._obs)
        self._step_types = (self.number_type, self.obs_types, *(types[i] for i in self._others))

    def step_directly(self, number: jax.Array, action: jax.Array) -> tuple:
        """(number, obs, reward, done, truncated): XLA calls the pool."""
        with jax.enable_x64(True):  # or JAX would take float64 for float32
            (number,) = self._call("send", number, self._all, self._all, action)
            number, *arrays = self._call("recv", number)
            return number, *self._results(arrays)

    def step_by_callback(self, number: jax.Array, action: jax.Array) -> tuple:
        """The same, by Python."""
        return io_callback(self._step, self._step_types, number, action)

    def reset(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """(obs, number) of new episodes of all copies; on the host."""
        self._number += 1
        self._envs._reset(self._all)
        return self._received()[0], np.full_like(self._all, self._number)

    def restart(self, number: jax.Array, ended: jax.Array) -> tuple[tuple[np.ndarray, ...], Any]:
        """(obs, number) of new episodes where they `ended`, zeros elsewhere; on the host."""
        self._check(number)
        copies = np.flatnonzero(ended).astype(np.int32)
        ignored = np.zeros((len(copies), *self._action_shape), self._action_dtype)
        self._envs._send([copies, copies, ignored])
        obs = tuple(np.zeros(obs_type.shape, obs_type.dtype) for obs_type in self.obs_types)
        for rows, fresh in zip(obs, self._received()[0], strict=True):
            rows[copies] = fresh
        return obs, np.asarray(number)

    def _step(self, number: jax.Array, action: jax.Array) -> tuple:
        self._check(number)
        self._envs._send([self._all, self._all, np.array(action, self._action_dtype)])
        return np.asarray(number), *self._received()

    def _check(self, number: jax.Array) -> None:
        if np.asarray(number)[0] != self._number:
            raise RuntimeError(STALE)

    def _received(self) -> tuple:
        return self._results(self._envs._recv())

    def _results(self, arrays: list) -> tuple:
        """(obs, reward, done, truncated), in 32 bits."""
        typed = lambda i: arrays[i].astype(_type_of(arrays[i].dtype).dtype)
        return tuple(map(typed, self._obs)), *map(typed, self._others)

    def _call(self, name: str, number: jax.Array, *arguments: Any) -> tuple[jax.Array, ...]:
        """A call by XLA. EnvPool leaves its first array as it is, which orders the calls."""
        call = self._calls[name]
        typed = []
        for value, (dtype, _) in zip(arguments, call.takes, strict=True):
            typed.append(jnp.asarray(value, dtype))
        gives = [jax.ShapeDtypeStruct(tuple(shape), dtype) for dtype, shape in call.gives]
        function = jax.ffi.ffi_call(
            call.target,
            (self.number_type, *gives),
            has_side_effect=True,
            input_output_aliases={0: 0},
        )
        return function(number, *typed, handle=call.handle)


class Call(NamedTuple):
    """A function of a pool that XLA calls."""

    target: str  # the name under which XLA knows it
    handle: np.int64  # of the pool
    takes: tuple  # (dtype, shape) of the arrays after the first
    gives: tuple


def _registered(envs: Any, name: str, handle: bytes, types: tuple, targets: tuple) -> Call:
    """A pool's function by name, made known to XLA; pools of one class share it."""
    target = f"jaxrl/{type(envs).__module__}.{type(envs).__name__}/{name}"
    if target not in _targets:
        jax.ffi.register_ffi_target(target, targets[0], platform="cpu", api_version=1)
        _targets.add(target)
    takes, gives = (tuple(of)[1:] for of in types)
    return Call(target, np.int64(int.from_bytes(handle, sys.byteorder)), takes, gives)


_targets: set[str] = set()


def _refusing_vmap(step: Callable[..., tuple]) -> Callable[..., tuple]:
    guarded = jax.custom_batching.custom_vmap(step)

    @guarded.def_vmap
    def refuse(axis_size, in_batched, *arguments):
        raise UsageError(NO_VMAP)

    return guarded


def _made(task: str, make: Callable[..., Any], *names: str, **args: Any) -> Any:
    """The result of a call of EnvPool; its errors in one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Gymnasium, about spaces
            return make(*names, **args)
    except (ImportError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise UsageError(f"environment envpool:{task}: {reason_of(error)}") from error


def _observed(name: str, spec: Any) -> dict[str, Part]:
    """The parts of the observations; one alone has the name ""."""
    if spec.config.max_num_players > 1:
        raise UsageError(
            f"environment {name} has several players; EnvPool's tasks of one are known"
        )
    parts = {}
    for key, array in spec.state_array_spec.items():
        if key.startswith("obs"):
            part = key.removeprefix("obs").removeprefix(":")
            parts[part] = _part(name, part, array)
    return parts


def _part(name: str, key: str, array: Any) -> Part:
    shape = _shape(name, f"observation {key}".strip(), array)
    if array.is_discrete or (shape == () and np.issubdtype(array.dtype, np.integer)):
        return Part(_integer(array), channels_first=False)
    dtype = np.dtype(np.uint8) if array.dtype == bool else _type_of(array.dtype).dtype
    low, high = _bounds(array, shape)
    image = array.dtype == np.uint8 and len(shape) == 3 and shape[0] < shape[2]
    if image:
        shape, low, high = (*shape[1:], shape[0]), np.moveaxis(low, 0, -1), np.moveaxis(high, 0, -1)
    return Part(Box(low, high, shape, dtype.name), channels_first=image)


def _action_space(name: str, spec: Any) -> Space:
    arrays = spec.action_array_spec
    keys = [key for key in arrays if key not in ("env_id", "players.env_id")]
    if len(keys) != 1:
        raise UsageError(f"environment {name}: actions of {len(keys)} parts are not supported")
    array = arrays[keys[0]]
    shape = _shape(name, "action", array)
    if np.issubdtype(array.dtype, np.floating):
        return Box(*_bounds(array, shape), shape)
    if shape != ():
        raise UsageError(
            f"environment {name}: integer actions of shape {shape} are not supported; allowed: one"
        )
    return _integer(array)


def _bounds(array: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    return np.broadcast_to(array.minimum, shape), np.broadcast_to(array.maximum, shape)


def _integer(array: Any) -> Discrete:
    low, high = int(array.minimum), int(array.maximum)
    return Discrete(high - low + 1, start=low)


def _shape(name: str, what: str, array: Any) -> tuple[int, ...]:
    """The shape of a space's arrays, without the axis of players, whose size is one."""
    shape = tuple(array.shape)
    if shape[:1] == (-1,):
        shape = shape[1:]
    if -1 in shape or array.dtype == object:
        raise UsageError(f"environment {name}: {what} changes its shape, which JAX does not allow")
    return shape


def _type_of(dtype: Any, shape: tuple[int, ...] = ()) -> jax.ShapeDtypeStruct:
    """The type here of an array of EnvPool."""
    name = np.dtype(dtype).name
    return jax.ShapeDtypeStruct(shape, np.dtype(TYPES.get(name, name)))
