"""Settings of PPO that suit compiled environments: wide, short rollouts, few epochs, a small network.

RLlib's defaults suit environments that are slow to step: each step is learned from 30 times, by a large network. In a
compiled program a step costs almost nothing and learning is what takes the time, so it pays to play more and to
learn less from each step. Measured over several environments in benchmarks/fast.py.
"""

from collections.abc import Mapping
from typing import Any

import jax

from jaxrl.core.spaces import Box, Space, tree_of
from jaxrl.models.cnn import is_image
from jaxrl.models.player import without_mask
from jaxrl.ppo.settings import DEFAULT_SIZES, resolve_sizes

FITTED = (*DEFAULT_SIZES, "total_env_steps", "policies", "model")  # given settings that the others follow
NUM_ENVS = 64
TARGET_BATCH = 2048  # environment steps of an iteration, as long as rollouts stay within these lengths:
ROLLOUT_LENGTHS = (16, 128)
NUM_MINIBATCHES, NUM_EPOCHS = 4, 4
TOTAL_ENV_STEPS = 1_000_000
FIRST_LR, LAST_LR = 1e-3, 1e-4
SMALL_IMAGE = 16  # pixels of the longer side, up to which one layer of small convolutions is enough
SMALL_IMAGE_FILTERS = ((16, 3, 1),)
LARGE_IMAGE_FILTERS = ((16, 8, 4), (32, 4, 2))


def fast_settings(setup: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for an environment; none depends on the machine, so a seed gives the same numbers everywhere.

    Args:
        setup: `PPOConfig.setup()`, the environment and its policies.
        changes: settings that the user gives. Those here fit them: the sizes, the learning rate, the network.
    """
    num_envs = changes.get("num_envs") or NUM_ENVS
    shortest, longest = ROLLOUT_LENGTHS
    given = {name: changes.get(name) for name in DEFAULT_SIZES}
    length = min(max(TARGET_BATCH // num_envs, shortest), longest)
    sizes = {"num_envs": num_envs, "rollout_length": length, "train_batch_size": num_envs * length}
    sizes = resolve_sizes({name: size for name, size in given.items() if size is not None}, sizes)
    total_env_steps = changes.get("total_env_steps", TOTAL_ENV_STEPS)
    return {
        **sizes,
        "minibatch_size": max(1, sizes["train_batch_size"] // NUM_MINIBATCHES),
        "num_epochs": NUM_EPOCHS,
        "total_env_steps": total_env_steps,
        "lr": ((0, FIRST_LR), (total_env_steps, LAST_LR)),
        "lambda_": 0.95,
        "clip_param": 0.2,
        "value_clip": None,
        "vf_loss_coeff": 0.5,
        "grad_clip": 0.5,
        "fcnet_hiddens": (64, 64),
        "normalize_returns": True,
        **_settings_of_spaces(setup, custom_model=changes.get("model") is not None),
    }


def _settings_of_spaces(setup: Any, custom_model: bool) -> dict[str, Any]:
    """What follows from spaces, for all policies or, where these differ, by policy."""
    env, params = setup.env, setup.env_params
    by_policy = {
        policy: {
            **_reading(without_mask(env.observation_space(agents[0], params)), custom_model),
            **_acting(env.action_space(agents[0], params), custom_model),
        }
        for policy, agents in setup.policies.items()
    }
    first, *others = by_policy.values()
    return first if all(other == first for other in others) else {"per_policy": by_policy}


def _reading(space: Space, custom_model: bool) -> dict[str, Any]:
    """Images through convolutions, unless the network is the user's own; other numbers normalised."""
    images = [part for part in jax.tree.leaves(tree_of(space)) if is_image(part)]
    if images and not custom_model:
        longest = max(max(part.shape[:2]) for part in images)
        return {"conv_filters": SMALL_IMAGE_FILTERS if longest <= SMALL_IMAGE else LARGE_IMAGE_FILTERS}
    return {"observation_filter": "MeanStdFilter"} if isinstance(space, Box) and not images else {}


def _acting(space: Space, custom_model: bool) -> dict[str, Any]:
    """A Gaussian's log-std is one parameter for each number: surer than one that depends on the observation."""
    return {"free_log_std": True} if isinstance(space, Box) and not custom_model else {}
