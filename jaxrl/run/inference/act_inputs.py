"""The inputs that a caller gives to a policy, checked and read as arrays."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.number_types import NotHeldError, as_type
from jaxrl.core.program_spaces import mask_length
from jaxrl.core.spaces import Box, Space, beyond, is_tree, range_of, tree_of
from jaxrl.core.types import AgentId, PolicyId, PyTree
from jaxrl.models.policy_spec import MASK, PolicyInputs, PolicySpec, PolicyState

READ_HERE = ("begins", "prev_reward", MASK, "agent")  # of the arguments of `Policy.act`


class ActInputs(NamedTuple):
    """The inputs of a policy, for a batch of any leading axes."""

    obs: PyTree  # [..., *space.shape], a tree where the space is one
    policy_state: PolicyState  # before the step
    inputs: PolicyInputs


@dataclass(frozen=True)
class ActReader:
    """Reads what whoever acts gives to a policy.

    Args:
        policy_spec: what is static about the policy.
        policy: its name, for errors.
        agents: that it plays.
        memory: its state for each agent that it has acted for.
    """

    policy_spec: PolicySpec
    policy: PolicyId
    agents: tuple[AgentId, ...]
    memory: Mapping[AgentId | None, PolicyState]

    def read(
        self, observation: Any, arguments: Mapping[str, Any], *, masked: bool
    ) -> tuple[tuple[int, ...], ActInputs]:
        """(the observation's leading axes, what the policy acts on).

        Args:
            arguments: further ones of `Policy.act`, by name.
            masked: whether a mask of the possible actions is needed.

        Raises:
            UsageError: see `Policy.act`.
        """
        for name in arguments.keys() - set(READ_HERE):
            names = ("explore", "key", *READ_HERE)
            raise unknown_name("argument", name, names, f"of policy {self.policy!r}")
        agent, mask = arguments.get("agent"), arguments.get(MASK)
        observation, observed_mask = self.policy_spec.given_observation(observation)
        if observed_mask is not None and mask is not None:
            raise UsageError(f"policy {self.policy!r}: the observation holds an {MASK} already")
        mask = mask if observed_mask is None else observed_mask
        obs, batch_shape = self._observation(observation)
        policy_state = self._policy_state(agent, batch_shape, arguments)
        agent_id = jnp.full(batch_shape, self._number_of(agent), jnp.int32)
        action_mask = None
        if masked or mask is not None:
            action_mask = read_mask(self.policy_spec.action_space, mask, batch_shape, self.policy)
        inputs = self.policy_spec.inputs(policy_state, action_mask, agent_id)
        return batch_shape, ActInputs(obs, policy_state, inputs)

    def _observation(self, observation: Any) -> tuple[PyTree, tuple[int, ...]]:
        """(the observation as arrays, their leading axes)."""
        space = self.policy_spec.observation_space
        spaces, structure = jax.tree.flatten(tree_of(space))
        try:
            parts = structure.flatten_up_to(observation) if is_tree(space) else [observation]
        except (ValueError, TypeError):
            raise UsageError(
                f"policy {self.policy!r} takes observations of {space}, not "
                f"{type(observation).__name__}"
            ) from None
        arrays = [self._array("an observation", part) for part in parts]
        read = [
            jnp.asarray(checked_part(space, array, self.policy))
            for space, array in zip(spaces, arrays, strict=True)
        ]
        shapes = {
            array.shape[: array.ndim - len(space.shape)]
            for space, array in zip(spaces, read, strict=True)
        }
        if len(shapes) > 1:
            raise UsageError(
                f"policy {self.policy!r}: the parts of an observation differ in their leading "
                f"axes: {shapes}"
            )
        return jax.tree.unflatten(structure, read), shapes.pop()

    def _policy_state(
        self, agent: AgentId | None, batch_shape: tuple[int, ...], arguments: Mapping[str, Any]
    ) -> PolicyState:
        """The state that the policy remembers, afresh where an episode begins."""
        if agent is not None and not isinstance(agent, str):
            raise UsageError(
                f"policy {self.policy!r}: agent must be the name of one, not {brief(agent)}"
            )
        flags = self._flags("begins", arguments.get("begins", False))
        begins = self._for_each("begins", flags, batch_shape)
        fresh = self.policy_spec.initial_state(batch_shape)
        policy_state = self.memory.get(agent, fresh)
        if jax.tree.map(jnp.shape, policy_state) != jax.tree.map(jnp.shape, fresh):
            raise UsageError(
                f"policy {self.policy!r} remembers episodes side by side that are not of the shape "
                f"{list(batch_shape)}: "
                "reset() it first"
            )
        if self.policy_spec.inputs_spec.prev_reward and agent in self.memory:
            prev_reward = arguments.get("prev_reward", 0.0)
            reward = self._numbers("prev_reward", prev_reward)
            if not np.all(np.abs(reward) <= np.finfo(np.float32).max):
                raise UsageError(
                    f"policy {self.policy!r}: prev_reward must be finite, not {brief(prev_reward)}"
                )
            reward = self._for_each("prev_reward", np.float32(reward), batch_shape)
            policy_state = policy_state.replace(prev_reward=reward)
        return self.policy_spec.reset_where(begins, policy_state)

    def _number_of(self, agent: AgentId | None) -> int:
        """The agent's number among the policy's; 0 where the policy is not told who it plays."""
        needs_agent = bool(self.policy_spec.inputs_spec.num_agents)
        if agent not in self.agents and (needs_agent or (agent is not None and self.agents)):
            why = ", which is told which one it plays" if needs_agent else ""
            where = f"of policy {self.policy!r}{why}"
            raise unknown_name("agent", agent, self.agents, where)
        return self.agents.index(agent) if needs_agent else 0

    def _for_each(self, name: str, values: np.ndarray, batch_shape: tuple[int, ...]) -> jax.Array:
        """`values` [] or [...] as an array [...]."""
        if values.shape not in ((), batch_shape):
            or_batch = f", or one for each of the batch, {list(batch_shape)}" if batch_shape else ""
            raise UsageError(
                f"policy {self.policy!r}: {name} must be a single value{or_batch}, not of shape "
                f"{list(values.shape)}"
            )
        return jnp.broadcast_to(values, batch_shape)

    def _flags(self, name: str, argument: Any) -> np.ndarray:
        """An argument of True and False, or of 1 and 0, as bool."""
        flags = as_flags(self._numbers(name, argument))
        if flags is None:
            raise UsageError(
                f"policy {self.policy!r}: {name} must be True or False, not {brief(argument)}"
            )
        return flags

    def _numbers(self, name: str, argument: Any) -> np.ndarray:
        numbers = self._array(name, argument)
        if numbers.dtype.kind not in "biuf":
            raise UsageError(
                f"policy {self.policy!r}: {name} must be bools or numbers, not {brief(argument)}"
            )
        return numbers

    def _array(self, name: str, argument: Any) -> np.ndarray:
        try:
            return np.asarray(argument)
        except (ValueError, TypeError):  # rows of several lengths
            raise UsageError(
                f"policy {self.policy!r}: {name} must be an array, not {brief(argument)}"
            ) from None


def as_flags(numbers: np.ndarray) -> np.ndarray | None:
    """An array of True and False, or of 1 and 0, as bool; None for any other."""
    if numbers.dtype.kind not in "biuf" or not np.all((numbers == 0) | (numbers == 1)):
        return None
    return numbers.astype(bool)


def checked_part(space: Space, obs: np.ndarray, policy: PolicyId) -> np.ndarray:
    """A part of an observation, [..., *space.shape], in the space's type.

    Raises:
        UsageError: another shape or type, numbers that are not finite or out of range.
    """
    takes = f"policy {policy!r} takes observations"
    if obs.shape[obs.ndim - len(space.shape) :] != space.shape or obs.ndim < len(space.shape):
        shape = list(space.shape)
        raise UsageError(f"{takes} of shape {shape}, or batches of them, not {list(obs.shape)}")
    if obs.dtype.kind not in ("biuf" if np.issubdtype(space.dtype, np.floating) else "biu"):
        raise UsageError(f"{takes} of {np.dtype(space.dtype)}, not {obs.dtype}")
    if np.issubdtype(obs.dtype, np.inexact) and not np.all(np.isfinite(obs)):
        bad = obs[~np.isfinite(obs)][0]
        raise UsageError(
            f"policy {policy!r}: an observation must be finite numbers; it holds {bad}"
        )
    if not isinstance(space, Box) and np.any(beyond(space, obs)):
        above, shown = range_of(space)[1] + 1, " ".join(str(obs).split())
        raise UsageError(f"{takes} from {space.start} to below {above.tolist()}, not {shown:.200}")
    try:
        return as_type(obs, jax.dtypes.canonicalize_dtype(space.dtype))
    except NotHeldError as error:
        raise UsageError(f"policy {policy!r}: an observation holds {error}") from None


def read_mask(space: Space, mask: Any, batch_shape: tuple[int, ...], policy: PolicyId) -> jax.Array:
    """The possible actions of a space, bool[*batch_shape, A].

    Args:
        mask: the flags of all its integers in a row, or an array or several with those of each.

    Raises:
        UsageError: no mask, one of another shape, or numbers that are no flags.
    """
    if not (length := mask_length(space)):
        raise UsageError(f"policy {policy!r}: a mask needs discrete actions, not {space}")
    needed = (*batch_shape, length)
    what = (
        f"policy {policy!r}: action_mask must be bool{list(needed)}, the actions that are possible"
    )
    if mask is None:
        raise UsageError(f"{what}, not left out")
    shown, rows = brief(mask), None
    with contextlib.suppress(ValueError, TypeError):
        parts = [np.asarray(part) for part in (mask if isinstance(mask, tuple) else (mask,))]
        shown = list(parts[0].shape) if len(parts) == 1 else shown
        rows = np.concatenate([part.reshape(*batch_shape, -1) for part in parts], axis=-1)
    if rows is None or rows.shape != needed:
        raise UsageError(f"{what}, not {shown}")
    if (flags := as_flags(rows)) is None:
        raise UsageError(f"policy {policy!r}: action_mask must be True or False, not {brief(mask)}")
    return jnp.asarray(flags)
