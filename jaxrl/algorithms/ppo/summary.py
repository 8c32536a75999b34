"""Summary of a configuration in a few lines: policies, networks, sizes and the objective."""

import functools
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax

from jaxrl.algorithms.base import batch_line, environment_line, idle_lines
from jaxrl.algorithms.model_config import NETWORK, model_name
from jaxrl.algorithms.ppo.batch import BatchLayout, batch_layout
from jaxrl.algorithms.ppo.clipped_rewards import described
from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.algorithms.ppo.hypers import PPOSpec
from jaxrl.algorithms.ppo.loss import Terms, total_loss
from jaxrl.core.errors import counted
from jaxrl.core.fields import field_names
from jaxrl.core.plan import Line
from jaxrl.core.spaces import Box, Space, is_tree, parts_of, tree_of
from jaxrl.core.types import PolicyId
from jaxrl.models.model import num_parameters
from jaxrl.models.network_inputs import ALL_AGENTS, OWN, STATE, is_image, layout_of
from jaxrl.models.networks import BFLOAT16
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.ops.distributions import num_log_stds
from jaxrl.ops.environment_actions import ActionForm
from jaxrl.ops.minibatch import num_minibatches
from jaxrl.rollout.critic_inputs import critic_spaces

SLOW_FACTOR = 10  # times the arithmetic of PPOConfig.fast, from which on the summary says so
MAX_NAMED_AGENTS = 4  # of a policy
VALUE_LOSS = {
    "loss": "min((V - R)^2, {vf_clip_param:g})",
    "prediction": "max((V - R)^2, (V clipped to V_old +- {vf_clip_param:g} - R)^2)",
    None: "(V - R)^2",
}
CRITICS = {  # the value network, by critic_observation
    OWN: "a value network of its own",
    STATE: "a centralised value network, of the global state",
    ALL_AGENTS: "a centralised value network, of all agents' observations",
}


def describe(config: PPOConfig) -> list[Line]:
    """Policies, sizes, updates and the objective; what several have alike is said once."""
    algorithm, (label, batch) = config.build(), batch_line(config)
    if config.num_updates * config.train_batch_size != config.total_env_steps:
        batch += f" (total_env_steps={config.total_env_steps:,}, rounded up)"
    lines = [environment_line(config), (label, batch)]
    if config.callbacks:
        lines.append(("callbacks", ", ".join(map(_callback, config.callbacks))))
    networks: dict[tuple[str, ...], list[Line]] = {}
    learners: dict[tuple[str, ...], list[PolicyId]] = {}
    for group, policy_spec in zip(algorithm.grouping.groups, algorithm.policy_specs, strict=True):
        for policy, agents in zip(group.policies, group.agents, strict=True):
            policy_config = config.for_policy(policy)
            size = f"{num_parameters(policy_spec.model):,} parameters"
            details = (f"{_network(policy_config, policy_spec)}, {size}",)
            details += _actions(policy_config, group.action_space)
            if group.structure.trained:
                shape = (config.rollout_length, config.num_envs, len(agents))
                layout = batch_layout(policy_spec, shape)
                learning = (
                    _minibatches(policy_config, layout, group.structure.blocks),
                    f"loss = {_objective(policy_config, group.structure)}",
                    _advantages(policy_config),
                )
                learners.setdefault(learning, []).append(policy)
            elif group.structure.drawn:
                details += (f"played by {algorithm.opponents.describe()}",)
            else:
                details += ("not trained",)
            spaces = f"{group.observation_space} -> {group.action_space}"
            networks.setdefault(details, []).append(
                ("policy", f"{policy} plays {_names(agents)}: {spaces}")
            )
    for details, policies in networks.items():
        lines += [*policies, *_below(details)]
    for (first, *rest), policies in learners.items():
        whose = f"{_names(policies, 'policies')}: " if len(learners) > 1 else ""
        lines += [("learning", f"{whose}{first}"), *_below(rest)]
    return lines + idle_lines(config) + _faster(config) + _other_than_built_in(config)


def _below(details: Iterable[str]) -> list[Line]:
    """Lines under another one, without a label."""
    return [("", detail) for detail in details]


def _faster(config: PPOConfig) -> list[Line]:
    """A line for settings that learn far longer from each step than `PPOConfig.fast` does."""
    fast = PPOConfig.fast(config.env, dict(config.env_args), policies=config.policies)
    times = _learning_cost(config) / _learning_cost(fast)
    if times < SLOW_FACTOR:
        return []
    arithmetic = f"learning takes {times:,.0f} times the arithmetic of "
    fast = f"PPOConfig.fast({_arguments(config)}), which suits compiled environments"
    return [("speed", arithmetic + fast)]


def _other_than_built_in(config: PPOConfig) -> list[Line]:
    """A line where `PPOConfig.fast` chose otherwise for a user's network than for the built-in one.

    Whoever compares the two networks would compare these settings as well.
    """
    models: dict[PolicyId, dict[str, Any]] = {}
    for policy in config.setup().policies:
        if (model := config.for_policy(policy).model) is not None:
            models[policy] = {"model": model}
    if not models:
        return []
    make = functools.partial(
        PPOConfig.fast,
        config.env,
        dict(config.env_args),
        policies=config.policies,
        num_envs=config.num_envs,
        total_env_steps=config.total_env_steps,
    )
    policy, *_ = models
    present, chosen = config.for_policy(policy), make(per_policy=models).for_policy(policy)
    built_in = make().for_policy(policy)
    differing = []
    for name in sorted(set(field_names(config)) - {*NETWORK, "free_log_std", "per_policy"}):
        if getattr(chosen, name) != getattr(built_in, name):
            if getattr(present, name) != getattr(chosen, name):
                return []  # these are not the settings of `fast`
            differing.append(f"{name}={getattr(built_in, name)!r}")
    if not differing:
        return []
    of_built_in = f"PPOConfig.fast gives the built-in network {', '.join(differing)}"
    return [("comparing", f"{of_built_in}: give your network the same to compare the two")]


def _arguments(config: PPOConfig) -> str:
    """The environment as `PPOConfig.fast` takes it: `'arena', {'width': 9}`; an object is `env`."""
    if not isinstance(config.env, str):
        return "env"
    return f"{config.env!r}, {dict(config.env_args)!r}" if config.env_args else repr(config.env)


def _learning_cost(config: PPOConfig) -> float:
    """The cost of learning from an environment step: agents x epochs x parameters, summed."""
    setup = config.setup()
    critics, total = critic_spaces(config, setup), 0
    for policy, agents in setup.policies.items():
        spaces = (
            space(agents[0], setup.env_params)
            for space in (setup.env.observation_space, setup.env.action_space)
        )
        more = len(agents), critics[policy]
        model = config.policy_spec(policy, *spaces, *more).model
        total += len(agents) * config.for_policy(policy).num_epochs * num_parameters(model)
    return total


def _names(names: Sequence[str], of_what: str = "agents") -> str:
    """`a, b`, or of many the first and the last."""
    if len(names) <= MAX_NAMED_AGENTS:
        return ", ".join(names)
    return f"{len(names)} {of_what}, {names[0]} to {names[-1]}"


def _callback(entry: Any) -> str:
    """`module:Class` as it was given, or the class's name."""
    if isinstance(entry, str):
        return entry
    return (entry if isinstance(entry, type) else type(entry)).__qualname__


def _network(config: PPOConfig, policy_spec: PolicySpec) -> str:
    memory, critic = _memory(config), policy_spec.critic
    inputs = []
    if config.lstm_use_prev_action:
        inputs.append("its last action")
    if config.lstm_use_prev_reward:
        inputs.append("what that brought")
    if config.agent_id_obs:
        inputs.append("which agent it plays")
    beside = f", told {' and '.join(inputs)}" if inputs else ""
    if config.model is not None:
        return f"network {model_name(config.model)}{beside}"
    layers = " x ".join(map(str, config.fcnet_hiddens)) or "no hidden layer"
    if config.conv_filters is not None:
        below = ", ".join(
            f"{filters} of {kernel}x{kernel} by {stride}"
            for filters, kernel, stride in config.conv_filters
        )
        moved = _channels_first(config, policy_spec.observation_space)
        layers = f"convolutions {below} {config.conv_activation}{moved}, then {layers}"
    if config.observation_filter is not None:
        layers = f"{config.observation_filter}, then {layers}"
    shared = CRITICS[OWN if critic is None else critic.source]
    if config.vf_share_layers:
        shared = "value and policy share layers"
    heads = " x ".join(map(str, config.head_fcnet_hiddens))
    above = f", then {heads} for policy and value each" if heads else ""
    if config.network_dtype == BFLOAT16:
        beside += ", products in bfloat16"
    return f"network {layers} {config.fcnet_activation}{memory}{above}, {shared}{beside}"


def _channels_first(config: PPOConfig, space: Space) -> str:
    """The plan's remark on images with their channels first; empty for others."""
    if not is_tree(space):
        named = [("", space)]
    else:
        named = [(f"{name} ", part) for name, part, _ in parts_of(space, tree_of(space))]
    images = [
        (name, layout_of(part, config.conv_channels)) for name, part in named if is_image(part)
    ]
    moved = [f"{name}{layout}" for name, layout in images if layout.is_first]
    return f" ({'; '.join(moved)})" if moved else ""


def _memory(config: PPOConfig) -> str:
    if config.use_attention:
        units = config.attention_num_transformer_units
        blocks = f"{units} gated transformer block{'s' if units > 1 else ''}"
        return (
            f", then {blocks} of {config.attention_dim} over "
            f"{config.attention_memory_inference} steps back, trained over {config.max_seq_len} at "
            "once"
        )
    if config.use_lstm or config.use_gru:
        cell = f"{'an LSTM' if config.use_lstm else 'a GRU'} of {config.lstm_cell_size}"
        return f", then {cell}, trained over {config.max_seq_len} steps at once"
    return ""


def _actions(config: PPOConfig, space: Space) -> tuple[str, ...]:
    if not num_log_stds(space):
        return ()
    if config.action_distribution == "beta":
        return ("actions of a Beta over the bounds",)
    std = "a parameter of the network" if config.free_log_std else "an output of the network"
    if config.log_std_init:
        std += f" ({config.log_std_init:g} at first)"
    if config.action_distribution == "squashed_gaussian":
        log_std = f"its log-std {std}"
        return (f"actions of a Gaussian, {log_std}, squashed to the bounds by tanh",)
    boxes = [part for part in jax.tree.leaves(tree_of(space)) if num_log_stds(part)]
    fitted = ", ".join(dict.fromkeys(_fitted(config, box) for box in boxes))
    return (f"actions of a diagonal Gaussian, its log-std {std}, {fitted}",)


def _fitted(config: PPOConfig, space: Box) -> str:
    """The way in which a Gaussian's actions are brought to the space's bounds."""
    normalize, clip = config.normalize_actions, config.clip_actions
    bounds = ActionForm(space, normalize, clip).bounds(space)
    if bounds.stretched.all():
        return "[-1, 1] stretched to the bounds and clipped"
    if bounds.stretched.any():
        return "[-1, 1] stretched to the bounds where both are finite, and clipped"
    return "clipped to the bounds" if bounds.are_kept else "as they are"


def _minibatches(config: PPOConfig, layout: BatchLayout, blocks: int) -> str:
    rows = config.rollout_length * layout.width
    pieces = blocks * layout.pieces_per_block(config.minibatch_size, blocks, blocks)
    updates = num_minibatches(layout.num_pieces, pieces, config.num_epochs)
    in_sequences = layout.in_sequences and layout.length > 1
    size = f"{pieces:,} sequences of {layout.length} steps" if in_sequences else f"{pieces:,}"
    optimizer = config.optimizer or "Adam"
    if not isinstance(optimizer, str):
        optimizer = getattr(optimizer, "__name__", "the given optimizer")
    return (
        f"{counted(rows, 'row')}, {counted(config.num_epochs, 'epoch')} in minibatches of {size}: "
        f"{counted(updates, 'gradient step')}, {optimizer} lr {_schedule(config.lr)}"
    )


class Formula(NamedTuple):
    """A sum in writing: `total_loss` of such formulas is the formula of the loss."""

    terms: tuple[tuple[str, str], ...] = ()  # (sign, text)

    def __add__(self, other: "Formula") -> "Formula":
        return Formula(self.terms + other.terms)

    def __sub__(self, other: "Formula") -> "Formula":
        negated = tuple(("-" if sign == "+" else "+", text) for sign, text in other.terms)
        return Formula(self.terms + negated)

    def __mul__(self, other: "Formula") -> "Formula":
        """A coefficient, a sum of at most one term, times a sum."""
        return Formula(
            tuple((sign, f"{by} {text}") for _, by in self.terms for sign, text in other.terms)
        )

    def __str__(self) -> str:
        (_, first), *rest = self.terms
        return " ".join([first, *(f"{sign} {text}" for sign, text in rest)])


def _term(text: str, present: Any = True) -> Formula:
    return Formula((("+", text),)) if present else Formula()


def _objective(config: PPOConfig, spec: PPOSpec) -> str:
    """The loss's formula, with what bounds it."""
    value_clip = None if config.vf_clip_param is None else config.value_clip
    penalised = config.use_kl_loss and config.kl_coeff
    terms = SimpleNamespace(**{name: _term(name) for name in Terms._fields})
    vars(terms).update(
        policy_loss=_term(f"-min(r A, clip(r, 1 +- {config.clip_param:g}) A)"),
        vf_loss=_term(VALUE_LOSS[value_clip].format(vf_clip_param=config.vf_clip_param)),
        entropy=_term("H"),
        mean_kl_loss=_term("KL(old || new)"),
    )
    numbers = {name: getattr(config, name) or 0.0 for name in config.numbers()}
    coefficients = SimpleNamespace(
        **{name: _term(_schedule(value), value) for name, value in numbers.items()}
    )
    coefficients.vf_loss_coeff = _term(f"{config.vf_loss_coeff:g}", config.use_critic)
    coefficients.kl_coeff = _term("k", penalised)
    model_loss = _term("the model's loss", hasattr(spec.policy_spec.model, "loss"))
    try:
        text = str(total_loss(terms, coefficients, model_loss))
    except TypeError:  # more than sums of weighted terms, which a `Formula` does not write
        text = "total_loss of jaxrl/algorithms/ppo/loss.py"
    if penalised:
        text += f", k from {config.kl_coeff:g} towards KL {config.kl_target:g}"
    for name, bound in (("dual clip", config.dual_clip), ("target KL", config.target_kl)):
        text += "" if bound is None else f"; {name} {bound:g}"
    return text


def _advantages(config: PPOConfig) -> str:
    how = "as they are"
    if config.normalize_advantages:
        how = f"standardised over the {config.normalize_advantages}"
    scaled = ", rewards in units of the return's deviation" if config.normalize_returns else ""
    scaled = described(config.clip_rewards) + scaled
    centered = ", values centered" if config.center_values else ""
    if not config.use_critic:
        return f"gamma {config.gamma:g}, no critic: advantages are returns, {how}{scaled}"
    return f"gamma {config.gamma:g}, lambda {config.lambda_:g}, advantages {how}{scaled}{centered}"


def _schedule(value: float | tuple) -> str:
    if isinstance(value, tuple):
        return " -> ".join(f"{at:g} at {step:,}" for step, at in value)
    return f"{value:g}"
