"""The facts of a Python environment: its spaces, and the results of a first reset and step.

They are played as training plays, so what would spoil an episode is refused before training.
"""

from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.program_spaces import countable, from_program, mask_length, program_space
from jaxrl.core.python_kinds import VECTOR, kind_of
from jaxrl.core.spaces import Box, Space, tree_of
from jaxrl.core.types import AgentId, PyTree
from jaxrl.outside.workers.arrays import EnvForm, Seen, StepArrays
from jaxrl.outside.workers.copies import copy_of
from jaxrl.outside.workers.shared_generators import preserved
from jaxrl.outside.workers.sources import Source
from jaxrl.outside.workers.stepper import Fault, Stepper
from jaxrl.outside.workers.vector import Results, VectorSpec, spec_of
from jaxrl.outside.workers.vector_stepper import VectorStepper, declared


def probe(source: Source, made: Any) -> EnvForm:
    """The form of an environment's arrays, which is reset and stepped once to see them.

    Args:
        made: the environment.

    Raises:
        UsageError: its spaces are not supported, or the reset or the step spoils the episode.
    """
    name, findings = source.name, Seen()
    same = Source(name, lambda env=made: env, is_given=True)

    def refuse(fault: Fault) -> None:
        where = f", in its first step with the action {fault.action}" if fault.step else ""
        raise UsageError(f"environment {name!r} cannot be reset and stepped: {fault.reason}{where}")

    if kind_of(made) == VECTOR:
        form, num_envs = declared(made, name), int(made.num_envs)
        arrays = StepArrays(form, num_envs, findings=findings)
        stepper = VectorStepper(same, arrays, refuse)
    else:
        copy, num_envs = copy_of(made, name), 1
        form, made = copy.declared(), copy.env
        arrays = StepArrays(form, num_envs, findings=findings)
        stepper = Stepper(same, arrays, range(1), refuse)
    results = Results(arrays, (slice(0, num_envs),))
    with preserved():
        stepper.reset()
        actions = possible_actions(spec_of(name, form), results.first().action_mask, num_envs)
        results.write_actions(slice(0, num_envs), actions)
        stepper.step()
    if findings.masked and not all(action.num_actions for action in form.actions):
        raise UsageError(f"environment {name!r}: an action_mask needs discrete actions")
    waits = findings.waits or bool(getattr(made, "metadata", {}).get("agents_wait"))
    limit = getattr(getattr(made, "spec", None), "max_episode_steps", None)
    return form._replace(
        masked=findings.masked,
        metrics=tuple(sorted(findings.metrics)),
        waits=waits,
        time_limit=limit if isinstance(limit, int) else None,
    )


def possible_actions(
    spec: VectorSpec, masks: dict[AgentId, np.ndarray] | None, num_envs: int
) -> dict[AgentId, PyTree]:
    """Actions of all agents in all copies: the first possible ones, of Boxes those nearest to 0."""
    masks = masks or dict.fromkeys(spec.agents)
    actions = {}
    for agent, space in spec.action_spaces.items():
        actions[agent] = _possible(space, masks[agent], num_envs)
    return actions


def _possible(space: Space, mask: np.ndarray | None, num_envs: int) -> PyTree:
    """A possible action of one agent, [E, ...]; each part of integers has its part of the mask."""
    parts, structure = jax.tree.flatten(tree_of(space))
    found, begin = [], 0
    for part in parts:
        flags, length = None, mask_length(part)
        if mask is not None and length:
            flags = mask[:, begin : begin + length]
            begin += length
        found.append(_first_possible(countable(part), flags, num_envs).astype(part.dtype))
    return structure.unflatten(found)


def _first_possible(space: Space, mask: np.ndarray | None, num_envs: int) -> np.ndarray:
    """The first possible action of a plain space in each copy, [E, ...]."""
    if isinstance(space, Box):
        nearest = np.clip(0, space.low, space.high).astype(space.dtype)
        return np.broadcast_to(nearest, (num_envs, *space.shape))
    ends = np.cumsum(space.counts)
    if mask is None:
        mask = np.ones((num_envs, ends[-1]), bool)
    first = [part.argmax(axis=1) for part in np.split(mask, ends[:-1], axis=1)]
    inside = np.stack(first, axis=1).reshape(num_envs, *program_space(space).shape)
    return from_program(space, inside)
