"""Settings of PPO for compiled environments: wide, short rollouts, few epochs, small networks.

RLlib's defaults suit environments that are slow to step: each step is learned from 30 times, by a
large network. In a compiled program a step costs almost nothing and learning is what takes the
time, so it pays to play more and to learn less from each step. Measured over several environments
in benchmarks/fast.py.
"""

from collections.abc import Mapping
from typing import Any

import jax

from jaxrl.algorithms.ppo.tuned import TOTAL, stretched
from jaxrl.algorithms.validators import DEFAULT_SIZES, per_policy, resolve_sizes
from jaxrl.core.fields import INT64, as_count, count, without
from jaxrl.core.frozen import freeze
from jaxrl.core.spaces import Box, Space, tree_of
from jaxrl.core.types import AgentId, PolicyId
from jaxrl.models.network_inputs import (
    ALL_AGENTS,
    OBSERVATION,
    OWN,
    SMALL_IMAGE,
    STATE,
    is_byte_picture,
    is_image,
    layout_of,
    without_mask,
)
from jaxrl.rollout.critic_inputs import critic_space

SIZES, MINIBATCH = ("num_envs", "rollout_length"), "minibatch_size"
NUM_ENVS = 64
TARGET_BATCH = 2048  # environment steps of an iteration, as long as rollouts have these lengths:
ROLLOUT_LENGTHS = (16, 128)
NUM_MINIBATCHES, NUM_EPOCHS = 4, 4
TOTAL_ENV_STEPS = 1_000_000
FIRST_LR, LAST_LR = 1e-3, 1e-4
# Of an image of at most SMALL_IMAGE x SMALL_IMAGE the cells are read as one row, in large batches
# and at a high rate, as PureJaxRL does for MinAtar. With convolutions, one seed in three of
# Breakout-MinAtar stays at 24, however long it trains.
SMALL_IMAGE_BATCH, SMALL_IMAGE_NUM_MINIBATCHES = 8192, 8
SMALL_IMAGE_LR = 5e-3
SMALL_IMAGE_SETTINGS = {"fcnet_activation": "relu", "entropy_coeff": 0.01}
LARGE_IMAGE_FILTERS = ((16, 8, 4), (32, 4, 2))


def fast_settings(plain: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for an environment; none depends on the machine, so seeds mean the same.

    An environment's `fast_changes` count as given, unless the user gives others; their schedules
    reach over as large a share of another number of steps.

    Args:
        plain: a configuration of the environment and its policies.
        changes: settings that the user gives. Those here fit them: the sizes, the learning rate,
            the network.

    Returns:
        No setting of the user's but the sizes, and `per_policy` with what the spaces decide for
        each policy.

    Raises:
        UsageError: sizes that are no sizes, or `per_policy` that is no mapping of mappings.
    """
    setup = plain.setup()
    of_the_env = stretched(plain, getattr(setup.env, "fast_changes", {}), changes.get(TOTAL))
    sizes_of_the_env = {
        name: of_the_env.pop(name) for name in (*SIZES, MINIBATCH) if name in of_the_env
    }
    of_the_env = without(of_the_env, changes)
    first_log_std = of_the_env.pop("log_std_init", None)
    changes = {**of_the_env, **changes}
    chosen_by_policy = freeze(changes.get("per_policy", {}))
    per_policy("per_policy", chosen_by_policy)
    chosen_by_policy = {name: dict(settings) for name, settings in chosen_by_policy}
    small_images = _learns_from_small_images(setup, changes, chosen_by_policy)
    target_batch = SMALL_IMAGE_BATCH if small_images else TARGET_BATCH
    sizes = _sizes(changes, sizes_of_the_env, target_batch)
    num_minibatches = SMALL_IMAGE_NUM_MINIBATCHES if small_images else NUM_MINIBATCHES
    if MINIBATCH in sizes_of_the_env:  # as many of them, where the user changes the batch
        unchanged = _sizes({}, sizes_of_the_env, target_batch)
        num_minibatches = unchanged["train_batch_size"] // sizes_of_the_env[MINIBATCH]
    total_env_steps = as_count(
        changes.get("total_env_steps", max(TOTAL_ENV_STEPS, sizes["train_batch_size"]))
    )
    count(most=INT64)("total_env_steps", total_env_steps)
    chosen = {
        MINIBATCH: max(1, sizes["train_batch_size"] // num_minibatches),
        "num_epochs": NUM_EPOCHS,
        "total_env_steps": total_env_steps,
        "lr": _falling(FIRST_LR, LAST_LR, total_env_steps),
        "lambda_": 0.95,
        "clip_param": 0.2,
        "value_clip": None,
        "vf_loss_coeff": 0.5,
        "grad_clip": 0.5,
        "fcnet_hiddens": (64, 64),
        "normalize_returns": True,
    }
    if _has_large_pictures(setup, changes, chosen_by_policy):
        chosen["normalize_images"] = True  # of no effect for policies without pictures of bytes
    common, by_policy = _settings_of_spaces(
        setup, changes, chosen_by_policy, total_env_steps, first_log_std
    )
    chosen = without({**chosen, **common}, changes)
    return {**of_the_env, **chosen, **sizes, "per_policy": by_policy}


def _sizes(
    changes: Mapping[str, Any], sizes_of_the_env: Mapping[str, int], target_batch: int
) -> dict[str, int]:
    """num_envs, rollout_length and train_batch_size: those given, and what suits them."""
    chosen = {
        name: as_count(changes[name]) for name in DEFAULT_SIZES if changes.get(name) is not None
    }
    for name, size in chosen.items():
        count()(name, size)
    num_envs = {"num_envs": NUM_ENVS, **sizes_of_the_env, **chosen}["num_envs"]
    shortest, longest = ROLLOUT_LENGTHS
    suitable = min(max(target_batch // num_envs, shortest), longest)
    length = sizes_of_the_env.get("rollout_length", suitable)
    return resolve_sizes(
        chosen,
        {"num_envs": num_envs, "rollout_length": length, "train_batch_size": num_envs * length},
    )


def _settings_of_spaces(
    setup: Any,
    changes: Mapping[str, Any],
    chosen_by_policy: Mapping[PolicyId, dict[str, Any]],
    total_env_steps: int,
    first_log_std: float | None,
) -> tuple[dict[str, Any], dict[PolicyId, dict[str, Any]]]:
    """(for all policies, by policy): what follows from the spaces, and what was chosen by policy.

    It stands by policy where the policies differ, without the settings that `changes` has for all.
    """
    env, params = setup.env, setup.env_params
    choices = {}
    for policy, agents in setup.policies.items():
        settings = {**changes, **chosen_by_policy.get(policy, {})}
        observation_space = without_mask(env.observation_space(agents[0], params))
        chosen = {
            **_reading(observation_space, settings, total_env_steps),
            **_acting(env.action_space(agents[0], params), settings, first_log_std),
        }
        if not _critic_can_be_filtered(setup, settings):
            chosen.pop("observation_filter", None)
        choices[policy] = without(chosen, changes)
    first, *others = choices.values()
    if all(choice == first for choice in others):
        return first, {policy: dict(settings) for policy, settings in chosen_by_policy.items()}
    policies = dict.fromkeys([*choices, *chosen_by_policy])
    return {}, {
        policy: {**choices.get(policy, {}), **chosen_by_policy.get(policy, {})}
        for policy in policies
    }


def _reading(space: Space, settings: Mapping[str, Any], total_env_steps: int) -> dict[str, Any]:
    """Images through convolutions, unless the network is the user's own; other numbers normalised.

    Small images, the boards of MinAtar and the like, have settings of their own, measured there.
    """
    images = _images(space)
    if not images:
        return {"observation_filter": "MeanStdFilter"} if isinstance(space, Box) else {}
    if settings.get("model") is not None:
        return {}
    if not _are_small(images, settings):
        return {"conv_filters": LARGE_IMAGE_FILTERS}
    return {**SMALL_IMAGE_SETTINGS, "lr": _falling(SMALL_IMAGE_LR, LAST_LR, total_env_steps)}


def _critic_can_be_filtered(setup: Any, settings: Mapping[str, Any]) -> bool:
    """Returns whether a centralised critic reads plain numbers; True where there is none."""
    source = settings.get("critic_observation", OWN)
    if source not in (STATE, ALL_AGENTS):
        return True
    space = critic_space(source, setup.env, setup.env_params)
    return space is None or isinstance(space[OBSERVATION], Box)


def _learns_from_small_images(
    setup: Any, changes: Mapping[str, Any], chosen_by_policy: Mapping[PolicyId, dict[str, Any]]
) -> bool:
    """Returns whether the built-in networks of all policies read small images."""

    def reads(policy: PolicyId, agent: AgentId) -> bool:
        settings = {**changes, **chosen_by_policy.get(policy, {})}
        space = without_mask(setup.env.observation_space(agent, setup.env_params))
        return settings.get("model") is None and _are_small(_images(space), settings)

    return all(reads(policy, agents[0]) for policy, agents in setup.policies.items())


def _has_large_pictures(
    setup: Any, changes: Mapping[str, Any], chosen_by_policy: Mapping[PolicyId, dict[str, Any]]
) -> bool:
    """Returns whether some policy reads pictures of bytes that are no small boards."""
    for policy, agents in setup.policies.items():
        images = _images(without_mask(setup.env.observation_space(agents[0], setup.env_params)))
        settings = {**changes, **chosen_by_policy.get(policy, {})}
        if any(map(is_byte_picture, images)) and not _are_small(images, settings):
            return True
    return False


def _images(space: Space) -> list[Box]:
    return [part for part in jax.tree.leaves(tree_of(space)) if is_image(part)]


def _are_small(images: list[Box], settings: Mapping[str, Any]) -> bool:
    layouts = [layout_of(part, settings.get("conv_channels")) for part in images]
    return bool(layouts) and max(max(layout.size) for layout in layouts) <= SMALL_IMAGE


def _falling(first: float, last: float, total_env_steps: int) -> tuple[tuple[int, float], ...]:
    """A schedule over the whole training."""
    return (0, first), (total_env_steps, last)


def _acting(
    space: Space, settings: Mapping[str, Any], first_log_std: float | None
) -> dict[str, Any]:
    """A Gaussian's log-std does not depend on the observation, which learns more reliably."""
    gaussian = isinstance(space, Box) and settings.get("action_distribution") != "beta"
    if not gaussian or settings.get("model") is not None:
        return {}
    starts = first_log_std is not None and settings.get("free_log_std", True)
    return {"free_log_std": True} | ({"log_std_init": first_log_std} if starts else {})
