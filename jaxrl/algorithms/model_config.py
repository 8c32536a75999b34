"""The network of a policy: the settings that choose it, and the `PolicySpec` made of them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxrl.algorithms import rllib_values, validators
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import count, field_names, flag, number, one_of, pairs, setting, text
from jaxrl.core.program_spaces import action_space_inside
from jaxrl.core.spaces import Dict, Space
from jaxrl.core.types import PolicyId
from jaxrl.models.mlp import ACTIVATIONS
from jaxrl.models.model import MODEL, num_parameters
from jaxrl.models.network_inputs import CHANNELS, FILTERS, OWN, SOURCES, CriticSpec, InputsSpec
from jaxrl.models.networks import FLOAT32, NETWORK_DTYPES, check_initializers, network_of
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.ops.distributions import ACTION_DISTRIBUTIONS, MAX_LOG_STD
from jaxrl.ops.explored import EXPLORATION, check_exploration, exploration_of, read_exploration


@dataclasses.dataclass(frozen=True)
class ActingSettings:
    """The settings of `AlgorithmConfig` that say how a policy reads observations and acts."""

    observation_filter: str | None = setting(
        None,
        "MeanStdFilter: numbers by their running mean and standard deviation, and pictures in a "
        "Dict or Tuple scaled; None: as they are",
        one_of(*FILTERS),
        read=rllib_values.no_filter,
    )
    normalize_images: bool = setting(
        False, "whether pictures of bytes are scaled from their bounds, 0 to 255, to 0 to 1", flag
    )
    action_distribution: str = setting(
        "gaussian",
        "Box actions: gaussian, or beta or squashed_gaussian within bounds",
        one_of(*ACTION_DISTRIBUTIONS),
    )
    normalize_actions: bool = setting(
        True,
        "Box actions: [-1, 1] of the policy is the space's low to high where both are finite, and "
        "every finite bound is kept by clipping",
        flag,
    )
    clip_actions: bool = setting(
        True, "Box actions: clip to every finite bound, where they are not normalized", flag
    )
    explore: bool = setting(
        True, "whether actions are sampled in training; False: for policies that do not learn", flag
    )
    exploration_config: Any = setting(
        None,
        "how actions are chosen in training: type=EpsilonGreedy and its arguments (or Random, "
        "GaussianNoise, SoftQ, StochasticSampling), a function, or module:Name; None: sampled",
        check_exploration,
        read=read_exploration,
        kind=EXPLORATION,
    )


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """The settings of `AlgorithmConfig` that choose a policy's network, by RLlib's names."""

    model: Any = setting(
        None,
        "a network of your own in place of the built-in layers: a flax module, (init, apply), a "
        "function of the spaces, or module:Name",
        kind=MODEL,
    )
    fcnet_hiddens: Sequence[int] = setting((256, 256), "layer sizes", validators.sizes)
    fcnet_activation: str = setting(
        "tanh", "activation between layers", one_of(*ACTIVATIONS), read=rllib_values.activation
    )
    fcnet_kernel_initializer: str = setting(
        "orthogonal",
        "orthogonal, uniform (PyTorch's and so RLlib's), or for fcnet_hiddens a name of "
        "torch.nn.init such as xavier_uniform_",
        text("a name"),
    )
    fcnet_kernel_initializer_kwargs: Any = setting(
        (), "arguments of such a name: {'gain': 1.4}", pairs("{name: value}")
    )
    fcnet_bias_initializer: str | None = setting(
        None,
        "the same for the biases of fcnet_hiddens; None: as fcnet_kernel_initializer has them",
        text("a name", optional=True),
    )
    fcnet_bias_initializer_kwargs: Any = setting(
        (), "arguments of such a name: {'val': 0.1}", pairs("{name: value}")
    )
    vf_share_layers: bool = setting(
        False, "whether policy and value share all but their last layer", flag
    )
    head_fcnet_hiddens: Sequence[int] = setting(
        (),
        "layer sizes of policy and value each, above the layers that they share or the memory",
        validators.sizes,
    )
    free_log_std: bool = setting(
        False,
        "whether the log-std of Box actions is a parameter, not an output of the network",
        flag,
    )
    log_std_init: float = setting(
        0.0,
        "with free_log_std: the initial log-std, of actions between -1 and 1 where they are "
        "normalized",
        number(-MAX_LOG_STD, MAX_LOG_STD),
    )
    conv_filters: Any = setting(
        None,
        "convolutions below the layers, for images: filters, kernel and stride of each; None: no "
        "convolutions",
        validators.filters,
        read=rllib_values.square_filters,
    )
    conv_activation: str = setting(
        "relu",
        "activation after each convolution",
        one_of(*ACTIVATIONS),
        read=rllib_values.activation,
    )
    conv_channels: str | None = setting(
        None,
        "where images have their channels: first or last of the three axes; None: recognised, "
        "first where that axis is the smallest",
        one_of(*CHANNELS, None),
    )
    network_dtype: str = setting(
        FLOAT32,
        "operands of the network's matrix products: float32, or bfloat16, which a CPU ignores",
        one_of(*NETWORK_DTYPES),
    )
    use_lstm: bool = setting(
        False, "memory: an LSTM above the layers, below policy and value", flag
    )
    use_gru: bool = setting(False, "memory: a GRU above the layers, below policy and value", flag)
    lstm_cell_size: int = setting(
        256, "the width of the LSTM's or the GRU's state", count(most=validators.WIDEST)
    )
    lstm_use_prev_action: bool = setting(False, "whether the network is told its last action", flag)
    lstm_use_prev_reward: bool = setting(False, "whether the network is told its last reward", flag)
    max_seq_len: int = setting(
        20,
        "steps that a network with memory is trained over at once; minibatches hold sequences of "
        "them",
        count(),
    )
    use_attention: bool = setting(
        False, "memory: attention over the recent past (a gated transformer)", flag
    )
    attention_num_transformer_units: int = setting(
        1, "attention blocks, one above the other", count(most=validators.DEEPEST)
    )
    attention_dim: int = setting(
        64, "the width of an attention block", count(most=validators.WIDEST)
    )
    attention_num_heads: int = setting(
        1, "heads of an attention block", count(most=validators.DEEPEST)
    )
    attention_head_dim: int = setting(
        32, "the width of an attention head", count(most=validators.WIDEST)
    )
    attention_memory_inference: int = setting(
        50, "steps that attention looks back", count(most=validators.LONGEST)
    )
    attention_position_wise_mlp_dim: int = setting(
        32, "the width of the hidden layer in an attention block", count(most=validators.WIDEST)
    )
    attention_init_gru_gate_bias: float = setting(
        2.0,
        "bias of the gates around attention blocks: the higher, the less they change at first",
        number(),
    )
    agent_id_obs: bool = setting(
        False, "whether the network is told which of its policy's agents it plays", flag
    )
    critic_observation: str = setting(
        "own",
        "what the value network sees: own (as the policy does), state (the environment's "
        "global_state) or all-agents (what all agents observe), MAPPO's centralised critic",
        one_of(*SOURCES),
    )


NETWORK = tuple(field_names(NetworkSettings))
# What `model` has no use for, or is refused beside.
BUILT_IN = frozenset(NETWORK) - {"model", "max_seq_len"}


def check_network(config: NetworkSettings) -> None:
    """Refuses settings of networks that exclude each other."""
    chosen = [name for name in ("use_lstm", "use_gru", "use_attention") if getattr(config, name)]
    if len(chosen) > 1:
        raise UsageError(
            f"{' and '.join(f'{name}=True' for name in chosen)}: one memory is all that a network "
            "has"
        )
    check_initializers(config)
    if chosen and not config.fcnet_hiddens:
        raise UsageError(f"{chosen[0]}=True needs a layer below it, but fcnet_hiddens is empty")
    model = f"model={model_name(config.model)}: your own model"
    if config.model is not None and chosen:
        raise UsageError(f"{chosen[0]}=True and {model} has its own memory")
    if config.model is not None and config.network_dtype != FLOAT32:
        raise UsageError(f"network_dtype={config.network_dtype!r} and {model} chooses its types")
    if config.critic_observation == OWN:
        return
    critic = f"critic_observation={config.critic_observation!r}"
    if config.vf_share_layers:
        raise UsageError(
            f"{critic} and vf_share_layers=True: layers that see no more than the policy and a "
            "critic that does cannot be the same"
        )
    if config.model is not None:
        raise UsageError(
            f"{critic} and model={model_name(config.model)}: a centralised critic needs the "
            "built-in networks; your own model reads one observation"
        )


def make_policy_spec(
    config: Any,
    observation_space: Space,
    action_space: Space,
    num_agents: int = 1,
    critic_space: Dict | None = None,
) -> PolicySpec:
    """A policy's specification from its configuration and the spaces that it plays between.

    Args:
        num_agents: that the policy plays.
        critic_space: what a centralised critic sees, as in `CriticSpec`; None: there is none.
    """
    inputs_spec = InputsSpec(
        num_agents if config.agent_id_obs else 0,
        prev_action=config.lstm_use_prev_action,
        prev_reward=config.lstm_use_prev_reward,
    )
    critic, value_inputs = None, None
    if critic_space is not None:
        number = num_agents if num_agents > 1 else inputs_spec.num_agents
        critic_inputs = dataclasses.replace(inputs_spec, num_agents=number)
        critic = CriticSpec(config.critic_observation, critic_space, critic_inputs)
        value_inputs = critic.input_space(action_space)
    inputs = inputs_spec.input_space(observation_space, action_space)
    chosen = action_space_inside(action_space)  # what the model's distribution is over
    return PolicySpec(
        network_of(config, inputs, chosen, value_inputs),
        observation_space,
        action_space,
        observation_filter=config.observation_filter,
        normalize_images=config.normalize_images,
        ignored=config.ignore_observations,
        normalize_actions=config.normalize_actions,
        clip_actions=config.clip_actions,
        action_distribution=config.action_distribution,
        inputs_spec=inputs_spec,
        max_seq_len=config.max_seq_len,
        critic=critic,
        exploration=exploration_of(
            config.exploration_config, config.explore, chosen, config.action_distribution
        ),
    )


def check_learner(policy: PolicyId, config: Any, policy_spec: PolicySpec) -> None:
    """Refuses a policy that would learn, by its own `config`, without exploring or parameters."""
    if not config.explore:
        raise UsageError(
            f"explore=False: policy {policy!r} learns, and from its likeliest actions alone it "
            "cannot; it is for policies that are not in policies_to_train"
        )
    if config.model is not None and not num_parameters(policy_spec.model):
        raise UsageError(
            f"model={model_name(config.model)}: policy {policy!r} has no parameters and cannot "
            "learn; leave it out of policies_to_train=[...]"
        )


def model_name(model: Any) -> str:
    """The name of a model, for people."""
    if isinstance(model, str):
        return model
    return getattr(model, "__qualname__", type(model).__qualname__)
