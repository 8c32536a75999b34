"""Policy step: a policy as one pure function of named arrays, which exported files compute.

    obs, state_in_*, mask, agent, prev_reward, noise  ->  action, action_dist_inputs, state_out_*

Every array begins with the batch's axis. A policy has those inputs that it uses. Observations and
actions in parts have a name for each, `obs_image`, `action_move` and so on.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal

from jaxrl.core.errors import UsageError
from jaxrl.core.program_spaces import mask_length
from jaxrl.core.spaces import Space, is_tree, parts_of, tree_of
from jaxrl.core.types import PyTree
from jaxrl.models.mixed_precision import in_float32
from jaxrl.models.policy_spec import MASK, PolicySpec, PolicyState, PolicyWeights, without_mask
from jaxrl.ops.distributions import dist_inputs

OBS, ACTION, DIST_INPUTS, NOISE = "obs", "action", "action_dist_inputs", "noise"
MASK_INPUT, AGENT, PREV_REWARD = "mask", "agent", "prev_reward"
STATE_IN, STATE_OUT = "state_in_", "state_out_"


class Tensor(NamedTuple):
    """An input or an output."""

    name: str
    shape: tuple[int, ...]  # of each row; the batch's axis comes before
    dtype: str


# The outputs of an exported file for inputs [B, ...], by name.
Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


class Built(NamedTuple):
    """A step in a file's format, not written yet."""

    run: Run
    files: Callable[[Path, dict[str, Any]], dict[Path, bytes]]  # for a path and its metadata


class PolicyStep:
    """One step of a policy: {name of an input: array} to {name of an output: array}.

    The state that its actions do not depend on, such as the carry of a separate value network, is
    left out. `initial_state` has the rest as an episode begins with.

    Args:
        masked: whether a mask of the possible actions is an input; one that is a part of the
            observation is.
        explore: whether actions are sampled, by an input of random numbers.
    """

    def __init__(
        self, policy_spec: PolicySpec, weights: PolicyWeights, *, masked: bool, explore: bool
    ):
        policy_spec = in_float32(policy_spec)
        self.policy_spec, self.explore = policy_spec, explore
        self.weights = jax.tree.map(np.asarray, weights)
        self.obs_tensors = _obs_tensors(policy_spec.observation_space)
        self.action_names = action_names(policy_spec.action_space)
        rest = _other_tensors(policy_spec, masked=masked, explore=explore)
        state, self._state_structure = _state_tensors(policy_spec)
        self._all_state = tuple(tensor.name for tensor in state)
        self.state: tuple[Tensor, ...] = state
        self.inputs = (*self.obs_tensors, *rest, *_prefixed(STATE_IN, state))
        for space, names in (
            (policy_spec.observation_space, names_of(self.inputs)),
            (policy_spec.action_space, [*self.action_names, DIST_INPUTS]),
        ):
            if len(set(names)) < len(names):
                raise UsageError(f"parts of {space} would share a name: {names}")
        self.outputs = self._traced_outputs()
        used = self._used_state()
        self.state = tuple(tensor for tensor in state if tensor.name in used)
        self.inputs = (*self.obs_tensors, *rest, *_prefixed(STATE_IN, self.state))
        self.outputs = self._traced_outputs()

    def __call__(self, inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        obs, batch = self._observations(inputs)
        policy_inputs = self.policy_spec.inputs(
            self._policy_state(inputs, batch),
            None if self._mask_in_obs else inputs.get(MASK_INPUT),
            inputs.get(AGENT),
        )
        weights = jax.tree.map(jnp.asarray, self.weights)
        # In full precision on every device, for a file acts as the policy did in its parity check.
        with jax.default_matmul_precision("highest"):
            output = self.policy_spec.act(
                weights,
                obs,
                self._policy_state(inputs, batch),
                policy_inputs,
                noise=inputs.get(NOISE),
            )
        action = self.policy_spec.to_env_action(output.action)
        after = self.policy_spec.next_state(output)
        actions = dict(zip(self.action_names, jax.tree.leaves(action), strict=True))
        outputs = {**actions, DIST_INPUTS: dist_inputs(output.distribution)}
        leaves = self._state_structure.flatten_up_to(after.replace(prev_reward=None))
        used = names_of(self.state)
        for name, leaf in zip(self._all_state, leaves, strict=True):
            if name in used:
                outputs[STATE_OUT + name] = leaf
        return outputs

    def named(self, obs: PyTree, others: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Observations [..., *observation_space.shape] and other inputs, by name and type."""
        parts = zip(names_of(self.obs_tensors), jax.tree.leaves(obs), strict=True)
        values, typed = {**others, **dict(parts)}, {}
        for tensor in self.inputs:
            if tensor.name in values:
                typed[tensor.name] = np.asarray(values[tensor.name]).astype(tensor.dtype)
        return typed

    def initial_state(self, batch_size: int) -> dict[str, np.ndarray]:
        """The inputs `state_in_*` at the start of an episode."""
        leaves = jax.tree.leaves(_without_reward(self.policy_spec.initial_state((batch_size,))))
        by_name = dict(zip(self._all_state, leaves, strict=True))
        return {STATE_IN + tensor.name: np.asarray(by_name[tensor.name]) for tensor in self.state}

    @property
    def _mask_in_obs(self) -> bool:
        return _has_mask(self.policy_spec.observation_space)

    def _observations(self, inputs: Mapping[str, jax.Array]) -> tuple[PyTree, int]:
        """(the observation as the environment gives it, the batch's size)."""
        spaces, structure = jax.tree.flatten(tree_of(self.policy_spec.observation_space))
        parts = []
        for tensor, space in zip(self.obs_tensors, spaces, strict=True):
            # Only the mask arrives in another type than the environment's.
            parts.append(jnp.asarray(inputs[tensor.name]).astype(_dtype(space)))
        return jax.tree.unflatten(structure, parts), parts[0].shape[0]

    def _policy_state(self, inputs: Mapping[str, jax.Array], batch: int) -> PolicyState:
        fresh = self.policy_spec.initial_state((batch,))
        leaves = self._state_structure.flatten_up_to(_without_reward(fresh))
        for i, name in enumerate(self._all_state):
            leaves[i] = inputs.get(STATE_IN + name, leaves[i])
        state = jax.tree.unflatten(self._state_structure, leaves)
        return state.replace(prev_reward=inputs.get(PREV_REWARD))

    def _traced_outputs(self) -> tuple[Tensor, ...]:
        outputs = jax.eval_shape(self, rows(self.inputs, 1))
        return tuple(_tensor(name, output) for name, output in outputs.items())

    def positional(self, outputs: list[str]) -> Callable[..., tuple[jax.Array, ...]]:
        """The step from the inputs in their order to some outputs in that order."""

        def run(*arrays):
            results = self(dict(zip(names_of(self.inputs), arrays, strict=True)))
            return tuple(results[name] for name in outputs)

        return run

    def program(self) -> Jaxpr:
        """The program of a batch of 1, from all inputs to all outputs."""
        run = self.positional(names_of(self.outputs))
        return jax.make_jaxpr(run)(*rows(self.inputs, 1).values()).jaxpr

    def _used_state(self) -> set[str]:
        """The names of the state that actions depend on, now or in later steps."""
        program, used = self.program(), set()
        inputs = dict(zip(names_of(self.inputs), program.invars, strict=True))
        outputs = dict(zip(names_of(self.outputs), program.outvars, strict=True))
        results = [outputs[name] for name in (*self.action_names, DIST_INPUTS)]
        while True:
            needed = _needed_for(program, results)
            found = {name for name in self._all_state if inputs[STATE_IN + name] in needed}
            if found <= used:
                return used
            results += [outputs[STATE_OUT + name] for name in found - used]
            used |= found


def names_of(tensors: Iterable[Tensor]) -> list[str]:
    return [tensor.name for tensor in tensors]


def rows(tensors: tuple[Tensor, ...], batch: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a batch, whose size may be a symbol."""
    shapes = {}
    for tensor in tensors:
        shape = (batch, *tensor.shape)
        shapes[tensor.name] = jax.ShapeDtypeStruct(shape, np.dtype(tensor.dtype))
    return shapes


def paths_of(space: Space) -> list[str]:
    """The names of a space's parts in JAX's order, "outer/inner"; "" of a plain space."""
    return [path for path, _, _ in parts_of(space, tree_of(space))]


def action_names(space: Space) -> list[str]:
    """`action`, or for each part of an action `action_move` and so on, in JAX's order."""
    if not is_tree(space):
        return [ACTION]
    return [f"{ACTION}_{path.replace('/', '_')}" for path in paths_of(space)]


def _obs_tensors(space: Space) -> tuple[Tensor, ...]:
    """The tensors of the observation: `obs`, or `obs_image` and so on; `mask` for a mask."""
    has_mask = _has_mask(space)
    is_alone = len(paths_of(space)) - has_mask == 1
    tensors = []
    for path, part, _ in parts_of(space, tree_of(space)):
        if has_mask and path == MASK:
            tensors.append(Tensor(MASK_INPUT, part.shape, "bool"))
        else:
            name = OBS if is_alone else f"{OBS}_{path.replace('/', '_')}"
            tensors.append(Tensor(name, part.shape, _dtype(part)))
    return tuple(tensors)


def _has_mask(observation_space: Space) -> bool:
    return without_mask(observation_space) != observation_space


def _other_tensors(policy_spec: PolicySpec, *, masked: bool, explore: bool) -> tuple[Tensor, ...]:
    tensors = []
    if masked and not _has_mask(policy_spec.observation_space):
        tensors.append(Tensor(MASK_INPUT, (mask_length(policy_spec.action_space),), "bool"))
    if policy_spec.inputs_spec.num_agents:
        tensors.append(Tensor(AGENT, (), "int32"))
    if policy_spec.inputs_spec.prev_reward:
        tensors.append(Tensor(PREV_REWARD, (), "float32"))
    if explore:
        noise = jax.eval_shape(lambda: policy_spec.noise(jax.random.key(0), (1,)))
        tensors.append(Tensor(NOISE, noise.shape[1:], "float32"))
    return tuple(tensors)


def _state_tensors(policy_spec: PolicySpec) -> tuple[tuple[Tensor, ...], PyTree]:
    """(the arrays of the policy's state, the structure that they are leaves of)."""
    shapes = _without_reward(jax.eval_shape(lambda: policy_spec.initial_state((1,))))
    paths, structure = jax.tree.flatten_with_path(shapes)
    tensors = []
    for path, leaf in paths:
        name = jax.tree_util.keystr(path, simple=True, separator="_").removeprefix("carry_")
        tensors.append(_tensor(name, leaf))
    return tuple(tensors), structure


def _tensor(name: str, array: jax.ShapeDtypeStruct) -> Tensor:
    return Tensor(name, array.shape[1:], array.dtype.name)


def _without_reward(state: PolicyState) -> PolicyState:
    """The state without the last reward, which is an input of its own."""
    return state.replace(prev_reward=None)


def _prefixed(prefix: str, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor._replace(name=prefix + tensor.name) for tensor in tensors)


def _dtype(space: Space) -> str:
    return jax.dtypes.canonicalize_dtype(space.dtype).name


def _needed_for(program: Jaxpr, results: Iterable[Any]) -> set[Any]:
    """The variables of a program that some of its results depend on."""
    is_variable = lambda value: not isinstance(value, Literal)
    needed = set(filter(is_variable, results))
    for equation in reversed(program.eqns):
        if not needed.isdisjoint(equation.outvars):
            needed.update(filter(is_variable, equation.invars))
    return needed
