"""Memory estimate: refuses sizes that no memory holds, before a training is compiled."""

import math
from typing import Any

import jax

from jaxrl.algorithms.base import Algorithm
from jaxrl.core import machine
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import INT32
from jaxrl.core.spaces import Space, tree_of
from jaxrl.models.model import has_memory, num_parameters
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.ops.distributions import num_logits
from jaxrl.rollout.grouping import PolicyGroup

COPIES = 4  # of each parameter: itself, its gradient, Adam's two moments
ROW = 5 * 4  # bytes of a row beside its observation: action, reward, value, log-probability, flags
WIDE = 2048  # below it, no layer fills a memory, and a network need not be traced to know


def check_sizes(config: Any, algorithm: Algorithm) -> None:
    """Refuses rollouts and networks that need more memory than there is, by a lower bound.

    Raises:
        UsageError: names the settings and what they need.
    """
    groups = list(zip(algorithm.grouping.groups, algorithm.policy_specs, strict=True))
    for group, _ in groups:
        _check_rows(config, group)
    _check_smoothing(config, len(algorithm.grouping.agents))
    _check_rollout(config, groups)
    for group, policy_spec in groups:
        _check_parameters(config, group, policy_spec)
        _check_carry(config, group, policy_spec)
    if algorithm.opponents is not None:
        _check_pool(config, algorithm)


def _check_rows(config: Any, group: PolicyGroup) -> None:
    rows = config.train_batch_size * len(group.agents[0])
    if rows > INT32:
        raise UsageError(
            f"num_envs={config.num_envs} x rollout_length={config.rollout_length} of policy "
            f"{group.policies[0]!r} are {rows:,} rows; at most {INT32:,} can be counted"
        )


def _check_smoothing(config: Any, num_agents: int) -> None:
    """The window of finished episodes: for each a length, a return, and the agents' returns."""
    episodes = config.metrics_num_episodes_for_smoothing
    what = f"metrics_num_episodes_for_smoothing={episodes} needs"
    _refuse_beyond_memory(4 * episodes * (2 + num_agents), what, "fewer episodes need less")


def _check_rollout(config: Any, groups: list[tuple[PolicyGroup, PolicySpec]]) -> None:
    needed = 0
    for group, policy_spec in groups:
        row = ROW + _bytes_of(group.observation_space)
        if policy_spec.critic is not None:
            row += _bytes_of(policy_spec.critic.space)
        needed += config.train_batch_size * sum(map(len, group.agents)) * row
    what = f"num_envs={config.num_envs} x rollout_length={config.rollout_length}: a rollout needs"
    _refuse_beyond_memory(needed, what, "fewer environments or shorter rollouts need less")


def _check_parameters(config: Any, group: PolicyGroup, policy_spec: PolicySpec) -> None:
    policy = group.policies[0]
    if name := _wide(config.for_policy(policy)):
        number = num_parameters(policy_spec.model)
        needed = 4 * COPIES * number * len(group.policies)
        what = f"{name} of policy {policy!r}: learning its {number:,} parameters needs"
        _refuse_beyond_memory(needed, what, "smaller layers need less")


def _check_carry(config: Any, group: PolicyGroup, policy_spec: PolicySpec) -> None:
    """The state that a network with memory carries, for every agent of every environment."""
    if not has_memory(policy_spec.model):
        return
    carry = jax.eval_shape(lambda: policy_spec.model.initial_carry((1,)))
    bytes_per_agent = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(carry))
    needed = bytes_per_agent * config.num_envs * sum(map(len, group.agents))
    policy = group.policies[0]
    what = f"num_envs={config.num_envs}: what the network of policy {policy!r} remembers needs"
    _refuse_beyond_memory(needed, what, "fewer environments or a smaller memory need less")


def _check_pool(config: Any, algorithm: Algorithm) -> None:
    """The members' weights, twice while one is replaced, and what all decide in a step."""
    pool = algorithm.opponents
    policy_spec = algorithm.policy_specs[pool.group]
    agents = len(algorithm.grouping.groups[pool.group].agents[0])
    decisions = (
        config.num_envs
        * agents
        * num_logits(policy_spec.action_space, policy_spec.action_distribution)
    )
    number = num_parameters(policy_spec.model)
    needed = 4 * pool.num_weights * (2 * number + decisions)
    what = f"opponents: a pool of {pool.num_weights} copies of {number:,} parameters needs"
    _refuse_beyond_memory(needed, what, "a smaller size needs less")


def _refuse_beyond_memory(needed: int, what: str, advice: str) -> None:
    least = machine.host_memory()
    if least is None or needed <= least:
        return
    there_is = machine.most_memory()  # perhaps of accelerators, which hold more
    if there_is is not None and needed > there_is:
        raise UsageError(
            f"{what} at least {machine.in_units(needed)}; there are "
            f"{machine.in_units(there_is)}; {advice}"
        )


def _bytes_of(space: Space) -> int:
    """The size of one observation in bytes."""
    leaves = jax.tree.leaves(tree_of(space))
    return sum(math.prod(leaf.shape) * jax.numpy.dtype(leaf.dtype).itemsize for leaf in leaves)


def _wide(config: Any) -> str | None:
    """The setting, with its value, that makes a layer of this network wide, if one does."""
    if config.model is not None:
        return None
    layers = ("fcnet_hiddens", "head_fcnet_hiddens")
    widths = {name: max(getattr(config, name), default=0) for name in layers}
    if config.conv_filters:
        widths["conv_filters"] = max(
            filters * kernel * kernel for filters, kernel, _ in config.conv_filters
        )
    if config.use_lstm or config.use_gru:
        widths["lstm_cell_size"] = config.lstm_cell_size
    if config.use_attention:
        names = (
            "attention_dim",
            "attention_position_wise_mlp_dim",
            "attention_num_transformer_units",
        )
        widths |= {name: getattr(config, name) for name in names}
        heads, head_dim = config.attention_num_heads, config.attention_head_dim
        widths[f"attention_num_heads={heads} x attention_head_dim={head_dim}"] = heads * head_dim
    widest = max(widths, key=widths.get)
    if widths[widest] <= WIDE:
        return None
    return widest if "=" in widest else f"{widest}={getattr(config, widest)}"
