"""What a configuration will do, in words a person reads before training."""

from typing import Any

from jaxrl.algorithms.model_config import model_name
from jaxrl.algorithms.ppo.batch import BatchLayout, batch_layout
from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.algorithms.sharding import blocks_of
from jaxrl.core.spaces import Box, Space
from jaxrl.models.model import num_parameters
from jaxrl.ops.minibatch import num_minibatches

SLOW = 10  # times the arithmetic of PPOConfig.fast, from which on the plan says so
MOST_NAMED = 4  # agents of a policy
VALUE_LOSS = {
    "loss": "min((V - R)^2, {vf_clip_param:g})",
    "prediction": "max((V - R)^2, (V clipped to V_old +- {vf_clip_param:g} - R)^2)",
    None: "(V - R)^2",
}


def describe(config: PPOConfig) -> str:
    """Agents and policies, sizes, updates and the objective; policies that learn alike are explained once."""
    algorithm = config.build()
    env_args = "".join(f"  {name}={value}" for name, value in config.env_args)
    steps = config.num_updates * config.train_batch_size
    rounded = (
        f" (total_env_steps={config.total_env_steps:,}, rounded up)"
        if steps != config.total_env_steps
        else ""
    )
    lines = [
        f"environment  {config.env_name}{env_args}",
        f"batch        {config.num_envs:,} environments x {config.rollout_length:,} steps = "
        f"{config.train_batch_size:,} environment steps an iteration; "
        f"{config.num_updates:,} iterations, {steps:,} steps{rounded}",
    ]
    if config.callbacks:
        lines.append(f"callbacks    {', '.join(map(_callback, config.callbacks))}")
    heads: dict[tuple[str, ...], list[str]] = {}
    for group, policy_spec in zip(algorithm.grouping.groups, algorithm.policy_specs, strict=True):
        for policy, agents in zip(group.policies, group.agents, strict=True):
            policy_config = config.for_policy(policy)
            details = (
                f"{_network(policy_config)}, {num_parameters(policy_spec.model):,} parameters",
            )
            details += _actions(policy_config, group.action_space)
            cut = batch_layout(policy_spec, (config.rollout_length, config.num_envs, len(agents)))
            details += (
                _learning(policy_config, cut) if group.structure.trained else ("not trained",)
            )
            spaces = f"{group.observation_space} -> {group.action_space}"
            heads.setdefault(details, []).append(
                f"policy       {policy} plays {_agents(agents)}: {spaces}"
            )
    for details, policies in heads.items():
        lines += [*policies, *(f"             {detail}" for detail in details)]
    return "\n".join(lines + _faster(config))


def _faster(config: PPOConfig) -> list[str]:
    """A line for settings that learn far longer from each step than `PPOConfig.fast` does."""
    fast = PPOConfig.fast(config.env, dict(config.env_args), policies=config.policies)
    times = _learning_cost(config) / _learning_cost(fast)
    if times < SLOW:
        return []
    return [
        f"speed        learning takes {times:,.0f} times the arithmetic of PPOConfig.fast({_arguments(config)}), "
        "which suits compiled environments"
    ]


def _arguments(config: PPOConfig) -> str:
    """The environment as `PPOConfig.fast` takes it: `'arena', {'width': 9}`; an object is `env`."""
    if not isinstance(config.env, str):
        return "env"
    return f"{config.env!r}, {dict(config.env_args)!r}" if config.env_args else repr(config.env)


def _learning_cost(config: PPOConfig) -> float:
    """How much arithmetic an environment step is learned with: agents x epochs x parameters, summed over policies."""
    setup = config.setup()
    total = 0
    for policy, agents in setup.policies.items():
        spaces = (
            space(agents[0], setup.env_params)
            for space in (setup.env.observation_space, setup.env.action_space)
        )
        model = config.policy_spec(policy, *spaces, len(agents)).model
        total += len(agents) * config.for_policy(policy).num_epochs * num_parameters(model)
    return total


def _agents(agents: tuple[str, ...]) -> str:
    """`a, b`, or of many the first and the last."""
    if len(agents) <= MOST_NAMED:
        return ", ".join(agents)
    return f"{len(agents)} agents, {agents[0]} to {agents[-1]}"


def _callback(entry: Any) -> str:
    """`module:Class` as it was given, or the class's name."""
    if isinstance(entry, str):
        return entry
    return (entry if isinstance(entry, type) else type(entry)).__qualname__


def _network(config: PPOConfig) -> str:
    memory = _memory(config)
    told = {"lstm_use_prev_action": "its last action", "lstm_use_prev_reward": "what that brought"}
    told = [words for name, words in told.items() if getattr(config, name)]
    told += ["which agent it plays"] if config.agent_id_obs else []
    beside = f", told {' and '.join(told)}" if told else ""
    if config.model is not None:
        return f"network {model_name(config.model)}, your own{beside}"
    layers = " x ".join(map(str, config.fcnet_hiddens)) or "no hidden layer"
    if config.conv_filters is not None:
        below = ", ".join(
            f"{filters} of {kernel}x{kernel} by {stride}"
            for filters, kernel, stride in config.conv_filters
        )
        layers = f"convolutions {below} {config.conv_activation}, then {layers}"
    if config.observation_filter is not None:
        layers = f"{config.observation_filter}, then {layers}"
    shared = (
        "value and policy share layers" if config.vf_share_layers else "a value network of its own"
    )
    return f"network {layers} {config.fcnet_activation}{memory}, {shared}{beside}"


def _memory(config: PPOConfig) -> str:
    if config.use_attention:
        units = config.attention_num_transformer_units
        return (
            f", then {units} gated transformer block{'s' if units > 1 else ''} of {config.attention_dim} over "
            f"{config.attention_memory_inference} steps back, trained over {config.max_seq_len} at once"
        )
    if config.use_lstm or config.use_gru:
        kind = "an LSTM" if config.use_lstm else "a GRU"
        return f", then {kind} of {config.lstm_cell_size}, trained over {config.max_seq_len} steps at once"
    return ""


def _actions(config: PPOConfig, space: Space) -> tuple[str, ...]:
    if not isinstance(space, Box):
        return ()
    if config.action_distribution == "beta":
        return ("actions of a Beta over the bounds",)
    std = "a parameter" if config.free_log_std else "an output"
    if config.action_distribution == "squashed_gaussian":
        return (
            f"actions of a Gaussian, its log-std {std} of the network, squashed to the bounds by tanh",
        )
    fitted = (
        "[-1, 1] stretched to the bounds and clipped" if config.normalize_actions else "as they are"
    )
    fitted = (
        "clipped to the bounds" if config.clip_actions and not config.normalize_actions else fitted
    )
    return (f"actions of a diagonal Gaussian, its log-std {std} of the network, {fitted}",)


def _learning(config: PPOConfig, cut: BatchLayout) -> tuple[str, ...]:
    rows, blocks = config.rollout_length * cut.width, blocks_of(config)
    pieces = blocks * cut.share(config.minibatch_size, blocks, blocks)
    updates = num_minibatches(cut.num_pieces, pieces, config.num_epochs)
    size = f"{pieces:,} sequences of {cut.length} steps" if cut.in_sequences else f"{pieces:,}"
    bounds = "".join(
        f"; {name} {value:g}"
        for name, value in (("dual clip", config.dual_clip), ("target KL", config.target_kl))
        if value is not None
    )
    optimizer = config.optimizer or "Adam"
    optimizer = (
        optimizer
        if isinstance(optimizer, str)
        else getattr(optimizer, "__name__", "the given optimizer")
    )
    value_clip = None if config.vf_clip_param is None else config.value_clip
    value = VALUE_LOSS[value_clip].format(vf_clip_param=config.vf_clip_param)
    entropy = f" - {_schedule(config.entropy_coeff)} H" if config.entropy_coeff else ""
    penalty = f" + k KL(old || new), k from {config.kl_coeff:g} towards KL {config.kl_target:g}"
    penalty = penalty if config.use_kl_loss and config.kl_coeff else ""
    return (
        f"{rows:,} rows, {config.num_epochs} epochs in minibatches of {size}: "
        f"{updates:,} gradient steps, {optimizer} lr {_schedule(config.lr)}",
        f"loss = -min(r A, clip(r, 1 +- {config.clip_param:g}) A) + {config.vf_loss_coeff:g} {value}"
        f"{entropy}{penalty}{bounds}",
        f"gamma {config.gamma:g}, lambda {config.lambda_:g}, advantages "
        + (
            f"standardised over the {config.normalize_advantages}"
            if config.normalize_advantages
            else "as they are"
        )
        + (", rewards in units of the return's deviation" if config.normalize_returns else ""),
    )


def _schedule(value: float | tuple) -> str:
    return (
        " -> ".join(f"{at:g} at {step:,}" for step, at in value)
        if isinstance(value, tuple)
        else f"{value:g}"
    )
