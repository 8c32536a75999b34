"""Sharding: how many devices environments and minibatches can be split over, and when that pays.

An algorithm with the settings `minibatch_size` and `shuffle_blocks` splits each minibatch, of which
every block of environments gives an equal share. Any other learns from its whole batch at once,
which any number of devices that divides `num_envs` can split.
"""

from typing import Any

from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.core.env import has_outside_state
from jaxrl.core.errors import UsageError

BLOCKS = (8, 4, 2, 1)
# Rows of a gradient step on each core; measured with benchmarks/engine.py --devices.
ROWS_WORTH_SPLITTING = 2048


def blocks_of(config: Any) -> int:
    """`shuffle_blocks`, or where it is None the most that fit, whatever devices there are."""
    if config.shuffle_blocks is not None:
        return config.shuffle_blocks
    length = 1  # of what minibatches are made of
    if config.use_lstm or config.use_gru or config.use_attention:
        length = min(config.max_seq_len, config.rollout_length)
    fitting = [n for n in BLOCKS if config.num_envs % n == config.minibatch_size % n == 0]
    return next(n for n in fitting if n == 1 or n * length <= config.minibatch_size)


def devices_worth_using(config: AlgorithmConfig, cores: int) -> int:
    """The most cores, a power of two, on which every policy's gradient steps have rows enough."""
    if has_outside_state(config.setup().env):
        return 1
    configs = [config.for_policy(policy) for policy in config.setup().policies]
    number = 1
    while 2 * number <= cores and all(_is_worth(settings, 2 * number) for settings in configs):
        number *= 2
    return number


def check_devices(config: AlgorithmConfig, number: int) -> None:
    """Refuses a number of devices that training cannot be split over."""
    if config.is_offline and number > 1:
        raise UsageError(f"devices={number}: learning from recorded episodes trains on one device")
    if has_outside_state(config.setup().env) and number > 1:
        raise UsageError(f"devices={number}: {config.env_name} trains on one device, beside a pool")
    for policy in config.setup().policies:
        settings = config.for_policy(policy)
        if not _has_minibatches(settings):
            if settings.num_envs % number:
                raise UsageError(f"devices={number} does not divide num_envs={settings.num_envs}")
        elif blocks_of(settings) % number:
            raise UsageError(
                f"devices={number} does not divide shuffle_blocks={blocks_of(settings)} of "
                f"policy {policy!r}, which must divide num_envs={settings.num_envs} and "
                f"minibatch_size={settings.minibatch_size}"
            )


def _is_worth(config: AlgorithmConfig, number: int) -> bool:
    """Returns whether a policy's gradient steps gain from so many cores."""
    if _has_minibatches(config):
        blocks, rows = blocks_of(config), config.minibatch_size
    else:
        blocks, rows = config.num_envs, config.train_batch_size
    return blocks % number == 0 and rows >= number * ROWS_WORTH_SPLITTING


def _has_minibatches(config: AlgorithmConfig) -> bool:
    return hasattr(config, "minibatch_size") and hasattr(config, "shuffle_blocks")
