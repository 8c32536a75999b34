"""What whoever acts gives to a policy, read as arrays: parts of observations, and masks."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.number_types import NotHeldError, as_type
from jaxrl.core.program_spaces import mask_length
from jaxrl.core.spaces import Box, Space, beyond, range_of
from jaxrl.core.types import PolicyId


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
    if rows.dtype.kind not in "biuf" or not np.all((rows == 0) | (rows == 1)):
        raise UsageError(f"policy {policy!r}: action_mask must be True or False, not {brief(mask)}")
    return jnp.asarray(rows.astype(bool))
