"""The check of an environment outside JAX: copies are made, reset and stepped as training does."""

from typing import Any

import jax
import numpy as np

from jaxrl.core.env_contract import CheckedEnv, broken, require
from jaxrl.core.errors import TooManyFaults
from jaxrl.core.outside_env import OutsideSteps
from jaxrl.core.program_spaces import countable, from_program, mask_length, program_space
from jaxrl.core.spaces import Space, tree_of
from jaxrl.core.tasks import METRICS_RULE, wrong_metric_name
from jaxrl.core.types import AgentId, Key, PyTree

RULES = (
    "its spaces are of a supported kind",
    "a first reset and a first step give what the spaces say",
    "no reset and no step fails",
    "observations of reset and step lie in their spaces",
    METRICS_RULE,
    "rewards and metrics are finite",
    "an agent that does not act gets no reward",
)


def check_outside(env: Any, steps: int, key: Key) -> tuple[str, ...]:
    """The rules, which hold over `steps` steps of random actions, episode after episode.

    Raises:
        ContractError: at the first broken rule.
    """
    spec = env.spec
    case = CheckedEnv(env, None, spec.agents, spec.observation_spaces, spec.action_spaces)
    wrong = wrong_metric_name(spec.metrics, None)
    require(case, wrong is None, f"info['metrics'] {wrong}")
    copies = env.vector(env.num_copies or 1, num_workers=0, max_consecutive_faults=0)
    try:
        observations = _play(case, copies, steps, key)
    except TooManyFaults as error:
        raise broken(case, f"no reset and no step may fail, but {error}") from error
    finally:
        copies.close()
    for agent, space in case.obs_spaces.items():
        stacked = jax.tree.map(lambda *leaves: np.concatenate(leaves), *observations[agent])
        inside = np.asarray(jax.vmap(space.contains)(stacked))
        found = jax.tree.map(lambda leaf, inside=inside: leaf[inside.argmin()], stacked)
        rule = f"observations of agent {agent!r} must lie in {space}, not be {found}"
        require(case, bool(inside.all()), rule)
    return RULES


def _play(case: CheckedEnv, copies: Any, steps: int, key: Key) -> dict[AgentId, list[PyTree]]:
    """All observations of each agent, [E, ...] each."""
    number, seed = copies.num_envs, int(jax.random.key_data(key)[-1])
    generator = np.random.default_rng(seed)
    first = copies.reset(np.arange(number, dtype=np.uint32) + np.uint32(seed))
    observations, masks = {agent: [] for agent in case.agents}, first.action_mask
    _keep(observations, first.obs)
    keys = jax.random.split(key, (steps, number))
    drawn = {
        agent: jax.tree.map(np.asarray, jax.vmap(jax.vmap(space.sample))(keys))
        for agent, space in case.action_spaces.items()
    }
    for step in range(steps):
        actions = {
            agent: jax.tree.map(lambda leaf, step=step: leaf[step], drawn[agent])
            if masks is None
            else _possible(space, masks[agent], generator)
            for agent, space in case.action_spaces.items()
        }
        copies.send(0, actions)
        reached = copies.receive(0)
        _check_step(case, reached)
        _keep(observations, reached.final_obs)
        _keep(observations, reached.obs)
        masks = reached.action_mask
    return observations


def _keep(observations: dict[AgentId, list[PyTree]], obs: dict[AgentId, PyTree]) -> None:
    for agent, rows in observations.items():
        rows.append(jax.tree.map(np.array, obs[agent]))  # copies, which the next step overwrites


def _check_step(case: CheckedEnv, reached: OutsideSteps) -> None:
    rule = f"rewards must be finite, not {reached.reward.tolist()}"
    require(case, bool(np.isfinite(reached.reward).all()), rule)
    for name, values in reached.metrics.items():
        rule = f"info['metrics'][{name!r}] must be finite"
        require(case, bool(np.isfinite(values).all()), rule)
    paid = ~reached.active & (reached.reward != 0)
    rule = "an agent that does not act must get no reward"
    require(case, case.env.spec.waits or not paid.any(), rule)


def _possible(space: Space, mask: np.ndarray, generator: np.random.Generator) -> PyTree:
    """Possible actions of an agent, [E, ...]; each part of integers has its part of the mask."""
    parts, structure = jax.tree.flatten(tree_of(space))
    ends = np.cumsum([mask_length(part) for part in parts])
    pairs = zip(parts, np.split(mask, ends[:-1], axis=1), strict=True)
    return structure.unflatten([_integers(part, flags, generator) for part, flags in pairs])


def _integers(space: Space, mask: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Possible integers of one part, [E, ...]."""
    choices = countable(space)
    by_entry = np.split(mask, np.cumsum(choices.counts)[:-1], axis=1)
    chances = [np.where(flags, generator.random(flags.shape), -1.0) for flags in by_entry]
    inside = np.stack([chance.argmax(axis=1) for chance in chances], axis=1)
    inside = inside.reshape(len(mask), *program_space(choices).shape)
    return from_program(choices, inside).astype(space.dtype)
