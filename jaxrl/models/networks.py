"""The network that a configuration chooses: layers, convolutions, a memory, or the user's own.

What a configuration does not choose is not imported.
"""

from typing import TYPE_CHECKING, Any

import jax

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Space, tree_of
from jaxrl.models.mlp import INITIALIZERS, MLP
from jaxrl.models.model import Model, RecurrentModel
from jaxrl.models.network_inputs import ALL_AGENTS, LAST, is_image
from jaxrl.ops.distributions import num_log_stds

FLOAT32, BFLOAT16 = NETWORK_DTYPES = ("float32", "bfloat16")

if TYPE_CHECKING:
    from jaxrl.models.attention import Attention
    from jaxrl.models.cells import GRU, LSTM
    from jaxrl.models.cnn import CNN


def network_of(
    config: Any, inputs: Space, action_space: Space, value_inputs: Space | None
) -> Model | RecurrentModel:
    """The network for `inputs` and the program's `action_space`.

    Args:
        config: the settings of networks (`jaxrl.algorithms.model_config.NetworkSettings`) and of
            a Box's actions.
        value_inputs: what a centralised critic reads; None: what the policy reads.
    """
    _check_log_std_init(config, action_space)
    if config.model is not None:
        from jaxrl.models.custom import custom_model

        return custom_model(config.model, inputs, action_space, config.action_distribution)
    if config.network_dtype == BFLOAT16:
        from jaxrl.models.mixed_precision import mixed_precision

        plain = config.replace(network_dtype=FLOAT32)
        return mixed_precision(network_of(plain, inputs, action_space, value_inputs))
    if config.use_lstm or config.use_gru or config.use_attention:
        return _with_memory(config, inputs, action_space, value_inputs)
    kind = {"vf_share_layers": config.vf_share_layers, "value_space": value_inputs}
    return _layers(config, inputs, action_space, **kind)


def check_initializers(config: Any) -> None:
    """Refuses unknown names and arguments of initialisers."""
    if _names_initializers(config):
        from jaxrl.models.initializers import initializers_of

        initializers_of(config)


def _check_log_std_init(config: Any, action_space: Space) -> None:
    if not config.log_std_init or config.free_log_std:
        return
    is_gaussian = num_log_stds(action_space) and config.action_distribution != "beta"
    needed = "free_log_std=True" if is_gaussian else "Box actions of a Gaussian"
    raise UsageError(f"log_std_init={config.log_std_init} needs {needed}")


def _names_initializers(config: Any) -> bool:
    """Returns whether a setting asks for what only `jaxrl.models.initializers` has."""
    arguments = config.fcnet_kernel_initializer_kwargs, config.fcnet_bias_initializer_kwargs
    is_named = config.fcnet_kernel_initializer not in INITIALIZERS
    return is_named or config.fcnet_bias_initializer is not None or any(arguments)


def _with_memory(
    config: Any, inputs: Space, action_space: Space, value_inputs: Space | None
) -> RecurrentModel:
    from jaxrl.models.recurrent_network import RecurrentNetwork

    core = _core(config)
    below = config.replace(head_fcnet_hiddens=())
    torso = _layers(below, inputs, action_space, vf_share_layers=True)
    value_torso = None
    if value_inputs is not None:
        has_image = any(map(is_image, jax.tree.leaves(tree_of(value_inputs))))
        filters = below.conv_filters if has_image else None
        value_config = below.replace(conv_filters=filters, conv_channels=_value_channels(below))
        value_torso = _layers(value_config, value_inputs, action_space, vf_share_layers=True)
    features = Box(-float("inf"), float("inf"), (core.num_outputs,))
    heads = MLP(
        features,
        action_space,
        hiddens=config.head_fcnet_hiddens,
        activation=config.fcnet_activation,
        initializer=config.fcnet_kernel_initializer,
        free_log_std=config.free_log_std,
        log_std_init=config.log_std_init,
        action_distribution=config.action_distribution,
    )
    return RecurrentNetwork(torso, core, heads, config.vf_share_layers, value_torso)


def _core(config: Any) -> "GRU | LSTM | Attention":
    """The memory of the network."""
    initializer = config.fcnet_kernel_initializer
    if not config.use_attention:
        from jaxrl.models.cells import GRU, LSTM

        return (LSTM if config.use_lstm else GRU)(config.lstm_cell_size, initializer)
    from jaxrl.models.attention import Attention

    return Attention(
        num_outputs=config.attention_dim,
        num_units=config.attention_num_transformer_units,
        num_heads=config.attention_num_heads,
        head_dim=config.attention_head_dim,
        memory=config.attention_memory_inference,
        mlp_dim=config.attention_position_wise_mlp_dim,
        gate_bias=config.attention_init_gru_gate_bias,
        initializer=initializer,
    )


def _layers(
    config: Any,
    inputs: Space,
    action_space: Space,
    *,
    vf_share_layers: bool,
    value_space: Space | None = None,
) -> "MLP | CNN":
    layers = {
        "action_space": action_space,
        "value_space": value_space,
        "hiddens": config.fcnet_hiddens,
        "head_hiddens": config.head_fcnet_hiddens,
        "activation": config.fcnet_activation,
        "vf_share_layers": vf_share_layers,
        "initializer": config.fcnet_kernel_initializer,
        "free_log_std": config.free_log_std,
        "log_std_init": config.log_std_init,
        "action_distribution": config.action_distribution,
    }
    if config.conv_filters is None:
        network = MLP(inputs, **layers)
    else:
        from jaxrl.models.cnn import cnn

        layers |= {"conv_channels": config.conv_channels, "value_channels": _value_channels(config)}
        network = cnn(inputs, config.conv_filters, config.conv_activation, **layers)
    if _names_initializers(config):
        from jaxrl.models.initializers import with_names

        return with_names(network, config)
    return network


def _value_channels(config: Any) -> str | None:
    """The channel axis of the value network's images; the last for those of all agents joined."""
    return LAST if config.critic_observation == ALL_AGENTS else config.conv_channels
