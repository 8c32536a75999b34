"""Over how many devices a configuration's environments and minibatches can be split, and when that pays."""

from typing import Any

from jaxrl.core.errors import UsageError

MOST_BLOCKS = 8
ROWS_WORTH_SPLITTING = (
    2048  # of a minibatch on each core; measured with benchmarks/engine.py --devices
)


def blocks_of(config: Any) -> int:
    """`shuffle_blocks`, or where it is None the most that fit, whatever devices there are."""
    if config.shuffle_blocks is not None:
        return config.shuffle_blocks
    length = 1  # of what minibatches are made of
    if config.use_lstm or config.use_gru or config.use_attention:
        length = min(config.max_seq_len, config.rollout_length)
    fitting = (
        n
        for n in range(MOST_BLOCKS, 0, -1)
        if config.num_envs % n == config.minibatch_size % n == 0
    )
    return next(
        n for n in fitting if n & (n - 1) == 0 and (n == 1 or n * length <= config.minibatch_size)
    )


def devices_worth_using(config: Any, cores: int) -> int:
    """The most cores, a power of two, on which every policy's minibatches still have rows enough."""
    configs = [config.for_policy(policy) for policy in config.setup().policies]
    number = 1
    while 2 * number <= cores and all(
        blocks_of(each) % (2 * number) == 0
        and each.minibatch_size >= 2 * number * ROWS_WORTH_SPLITTING
        for each in configs
    ):
        number *= 2
    return number


def check_devices(config: Any, number: int) -> None:
    """Refuses a number of devices that minibatches cannot be split over."""
    for policy in config.setup().policies:
        policy_config = config.for_policy(policy)
        if blocks_of(policy_config) % number:
            raise UsageError(
                f"devices={number} does not divide shuffle_blocks={blocks_of(policy_config)} of policy {policy!r}, "
                f"which must divide num_envs={policy_config.num_envs} and minibatch_size={policy_config.minibatch_size}"
            )
