"""Frame stacking: an environment that shows its last few observations at once.

The frames are a part of the state, so that automatic resets, recorded episodes and the last
observation of an episode that a time limit cuts hold no frame of another episode.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.env import is_multi_agent
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import count, one_of, takes
from jaxrl.core.mask_parts import MASK
from jaxrl.core.registry import make_with
from jaxrl.core.spaces import Box, Space, space_of, tree_of
from jaxrl.core.types import Key, PyTree
from jaxrl.core.wrapped_env import (
    AlikeAgents,
    ManyAgents,
    OneAgent,
    Wrapped,
    form_of,
    require_wrappable,
)

MOST_FRAMES = 1000


class FramesState(struct.PyTreeNode):
    """A state of the environment, and the frames that it shows."""

    inner: PyTree
    frames: PyTree  # [..., num_frames * n], as the observation, the oldest first


@dataclasses.dataclass(frozen=True)
class _Frames(Wrapped):
    """An environment of stacked frames; see `frame_stack`."""

    env: Any
    num_frames: int
    padding: str

    def _inside(self, state: FramesState, params: PyTree) -> tuple[PyTree, PyTree]:
        return state.inner, params

    def observation_space(self, *of: Any) -> Space:
        space = tree_of(self.env.observation_space(*of))
        pads = self.padding == "zero"
        return space_of(_map_parts(lambda part: _stacked(part, self.num_frames, pads), space))

    def _reset(self, reset: Callable, key: Key, params: PyTree) -> tuple[PyTree, FramesState]:
        def begin(frame):
            earlier = frame if self.padding == "reset" else jnp.zeros_like(frame)
            return jnp.concatenate([*[earlier] * (self.num_frames - 1), frame], axis=-1)

        obs, inner = reset(key, params)
        frames = _map_parts(begin, obs)
        return frames, FramesState(inner, frames)

    def _step(
        self, step: Callable, key: Key, state: FramesState, action: PyTree, params: PyTree
    ) -> tuple:
        def push(frames, frame):
            return jnp.concatenate([frames[..., frame.shape[-1] :], frame], axis=-1)

        obs, inner, reward, terminated, info = step(key, state.inner, action, params)
        frames = _map_parts(push, state.frames, obs)
        return frames, FramesState(inner, frames), reward, terminated, info


class _OfOneAgent(_Frames, OneAgent):
    pass


class _OfManyAgents(_Frames, ManyAgents):
    pass


class _OfAlikeAgents(_Frames, AlikeAgents):
    pass


@takes(num_frames=count(most=MOST_FRAMES), padding=one_of("reset", "zero"))
def frame_stack(env: Any, num_frames: int = 4, padding: str = "reset") -> Any:
    """The environment whose observations are its last `num_frames`, joined along the last axis.

    Boxes [..., n] become [..., num_frames * n], the oldest frame first; each agent has its own, and
    each part of a Dict or Tuple. A part "action_mask" stays as it is.

        config = jaxrl.PPOConfig(env=jaxrl.frame_stack("gymnax:Breakout-MinAtar", 4))

    Args:
        env: an environment in JAX, or its name.
        padding: what stands for frames before an episode's first: "reset", its first one, or
            "zero", as Gymnasium's `FrameStackObservation` calls them.

    Raises:
        UsageError: observations that are no Boxes, or an environment outside JAX.
    """
    env, params = make_with(env, {})
    require_wrappable(env, "frame_stack", "FrameStackObservation")
    form = form_of(env, (_OfOneAgent, _OfManyAgents, _OfAlikeAgents))
    stacked = form(env, num_frames, padding)
    for agent in env.agents if is_multi_agent(env) else (None,):
        stacked.observation_space(*(() if agent is None else (agent,)), params)
    return stacked


def _map_parts(stack: Callable, *trees: PyTree) -> PyTree:
    """`stack` of each part; a mask of possible actions is that of the last tree, for now alone."""

    def of_part(path, *parts):
        is_mask = MASK in [getattr(step, "key", None) for step in path]
        return parts[-1] if is_mask else stack(*parts)

    return jax.tree_util.tree_map_with_path(of_part, *trees)


def _stacked(space: Space, number: int, is_padded: bool) -> Box:
    """The space of several frames, some of them zeros if `is_padded`."""
    if not isinstance(space, Box) or not space.shape:
        raise UsageError(f"frame_stack: observations must be Boxes with an axis, not {space}")
    bounds = []
    for bound, beyond in ((space.low, np.minimum), (space.high, np.maximum)):
        bound = beyond(bound, 0) if is_padded else bound
        if np.ndim(bound):
            bound = np.concatenate([bound] * number, axis=-1)
        bounds.append(bound)
    return Box(*bounds, (*space.shape[:-1], number * space.shape[-1]), space.dtype)
