"""Copies outside JAX whose steps are arrays of JAX already, during a rollout.

Such steps never become arrays of the host. One compiled call for each step records it and chooses
the next actions, so on an accelerator nothing leaves it.
"""

import functools
from concurrent.futures import Executor
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.core.outside_env import OutsideSteps
from jaxrl.core.types import AgentId, Key, PyTree
from jaxrl.models.policy_spec import PolicyOutput, PolicyWeights
from jaxrl.ops.packing import Packed
from jaxrl.outside.host_part import Game, Playing, playing_of, record_step
from jaxrl.outside.host_steps import act, gather_on_host, scatter_on_host
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec, draw_randomness

# (noise by group, env_steps) of all steps of a rollout, [T, ...]
_Draws = tuple[tuple[jax.Array, ...], PyTree]


class _Chosen(NamedTuple):
    """Copies, and the actions that were chosen for them."""

    playing: Playing
    outputs: list[PolicyOutput]  # by group
    actions: dict[AgentId, PyTree]  # the environment's, [E, ...]


class DevicePart:
    """A `Part` for copies whose steps are arrays of JAX.

    Args:
        recorder: not needed.
    """

    def __init__(
        self,
        game: Game,
        envs: EnvBatch,
        randomness: tuple[Key, PyTree],
        num_steps: int,
        recorder: Executor,
    ):
        statics = game.spec, num_steps
        self._game = game
        self._steps: OutsideSteps | None = None  # taken, and not recorded yet
        self._chosen, self._draws = _begin(statics, game.packed, envs, randomness, game.env_params)

    @property
    def actions(self) -> dict[AgentId, PyTree]:
        """The environment's, [E, ...]."""
        return self._chosen.actions

    def take(self, steps: OutsideSteps) -> None:
        """Keeps a step; its arrays are whole until the next one is asked for."""
        self._steps = steps

    def choose(self) -> None:
        """Records the step that was taken, and chooses the next actions."""
        game, (playing, outputs, _) = self._game, self._chosen
        self._chosen = _advance(
            game.spec, game.packed, (playing, outputs), self._steps, self._draws, game.env_params
        )
        # The arrays of the step belong to whoever stepped, who changes them next.
        jax.block_until_ready(self._chosen.actions)

    def finished(self) -> Playing:
        """The copies, and what was recorded of them: all steps."""
        self.choose()  # of no use but to record the last step
        return self._chosen.playing


@functools.partial(jax.jit, static_argnums=0)
def _begin(
    statics: tuple[RolloutSpec, int],
    weights: Packed,
    envs: EnvBatch,
    randomness: tuple[Key, jax.Array | None],
    env_params: PyTree,
) -> tuple[_Chosen, _Draws]:
    (spec, num_steps), (env_keys, env_steps) = statics, randomness
    weights = weights.unpack()
    draws = draw_randomness(spec, env_keys, num_steps).noise, env_steps
    outputs, actions = _act(spec, weights, envs, draws, jnp.int32(0), env_params)
    playing = playing_of(statics, weights, envs, outputs, env_params)
    return _Chosen(playing, outputs, actions), draws


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _advance(
    spec: RolloutSpec,
    weights: Packed,
    before: tuple[Playing, list[PolicyOutput]],
    steps: OutsideSteps,
    draws: _Draws,
    env_params: PyTree,
) -> _Chosen:
    """The next actions, after a step that is recorded; after the last one they are not played."""
    playing, outputs = before
    weights = weights.unpack()
    gather = functools.partial(gather_on_host, spec.grouping, stack=jnp.stack)
    steps = steps._replace(obs=gather(steps.obs), final_obs=gather(steps.final_obs))
    playing = record_step(spec, weights, playing, (outputs, steps), env_params)
    return _Chosen(playing, *_act(spec, weights, playing.envs, draws, playing.step, env_params))


def _act(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    envs: EnvBatch,
    draws: _Draws,
    step: jax.Array,
    env_params: PyTree,
) -> tuple[list[PolicyOutput], dict[AgentId, PyTree]]:
    """(outputs by group, the environment's actions by agent) of a step of the rollout."""
    of_step = jax.tree.map(lambda leaf: leaf[jnp.minimum(step, len(leaf) - 1)], draws)
    outputs, actions = act(spec, weights, envs, of_step, env_params)
    return outputs, scatter_on_host(spec.grouping, actions)
