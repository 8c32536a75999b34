"""Sizes that no memory holds, refused before XLA meets them."""

import math
from typing import TYPE_CHECKING

import jax

from jaxrl.core import memory
from jaxrl.core.errors import UsageError
from jaxrl.core.settings import INT32
from jaxrl.core.spaces import Space, tree_of
from jaxrl.loop.policies import Grouping
from jaxrl.models.model import has_memory, num_parameters
from jaxrl.models.player import Player

if TYPE_CHECKING:
    from jaxrl.ppo.config import PPOConfig

COPIES = 4  # of each parameter: itself, its gradient, Adam's two moments
ROW = 5 * 4  # bytes of a row beside its observation: action, reward, value, log-probability, flags
WIDE = 2048  # below it, no layer fills a memory, and a network need not be traced to know


def check_sizes(config: "PPOConfig", grouping: Grouping, players: tuple[Player, ...]) -> None:
    """Refuses rollouts and networks larger than the memory there is, by what they need at least.

    Raises:
        UsageError: names the settings and what they need.
    """
    rollout = 0
    for group in grouping.groups:
        num_agents = sum(map(len, group.agents))
        rows = config.train_batch_size * len(group.agents[0])
        if rows > INT32:
            raise UsageError(
                f"num_envs={config.num_envs} x rollout_length={config.rollout_length} of policy "
                f"{group.policies[0]!r} are {rows:,} rows; at most {INT32:,} can be counted"
            )
        rollout += config.train_batch_size * num_agents * (ROW + _bytes_of(group.observation_space))
    window = 4 * config.metrics_num_episodes_for_smoothing * (2 + len(grouping.agents))
    smoothing = f"metrics_num_episodes_for_smoothing={config.metrics_num_episodes_for_smoothing} needs"
    _refuse_beyond_memory(window, smoothing, "fewer episodes need less")
    sizes = f"num_envs={config.num_envs} x rollout_length={config.rollout_length}"
    _refuse_beyond_memory(rollout, f"{sizes}: a rollout needs", "fewer environments or shorter rollouts need less")
    for group, player in zip(grouping.groups, players, strict=True):
        policy = group.policies[0]
        if name := _wide(config.for_policy(policy)):
            needed = 4 * COPIES * num_parameters(player.model) * len(group.policies)
            what = f"{name} of policy {policy!r}: learning its {num_parameters(player.model):,} parameters needs"
            _refuse_beyond_memory(needed, what, "smaller layers need less")
        if has_memory(player.model):
            carry = jax.eval_shape(lambda model=player.model: model.initial_carry((1,)))
            each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(carry))
            needed = each * config.num_envs * sum(map(len, group.agents))
            what = f"num_envs={config.num_envs}: what the network of policy {policy!r} remembers needs"
            _refuse_beyond_memory(needed, what, "fewer environments or a smaller memory need less")


def _refuse_beyond_memory(needed: int, what: str, advice: str) -> None:
    least = memory.host_memory()
    if least is None or needed <= least:
        return
    there_is = memory.most_memory()  # perhaps of accelerators, which hold more
    if there_is is not None and needed > there_is:
        raise UsageError(f"{what} at least {memory.in_units(needed)}; there are {memory.in_units(there_is)}; {advice}")


def _bytes_of(space: Space) -> int:
    """Of one observation."""
    leaves = jax.tree.leaves(tree_of(space))
    return sum(math.prod(leaf.shape) * jax.numpy.dtype(leaf.dtype).itemsize for leaf in leaves)


def _wide(config: "PPOConfig") -> str | None:
    """The setting, with its value, that makes a layer of this network wide, if one does."""
    if config.model is not None:
        return None
    widths = {"fcnet_hiddens": max(config.fcnet_hiddens, default=0)}
    if config.conv_filters:
        widths["conv_filters"] = max(filters * kernel * kernel for filters, kernel, _ in config.conv_filters)
    if config.use_lstm or config.use_gru:
        widths["lstm_cell_size"] = config.lstm_cell_size
    if config.use_attention:
        names = ("attention_dim", "attention_num_heads", "attention_head_dim", "attention_position_wise_mlp_dim")
        names = (*names, "attention_num_transformer_units")
        widths |= {name: getattr(config, name) for name in names}
    name = max(widths, key=widths.get)
    return f"{name}={getattr(config, name)}" if widths[name] > WIDE else None
