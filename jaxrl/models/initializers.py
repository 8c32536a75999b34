"""Initial weights of dense layers by the names and arguments of `torch.nn.init`."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.fields import number, one_of
from jaxrl.core.types import Key, PyTree
from jaxrl.models.mlp import INITIALIZERS, MLP, draw_layers

Draw = Callable[[Key, tuple[int, ...]], jax.Array]
GAINS = {  # torch.nn.init.calculate_gain
    "linear": 1.0,
    "sigmoid": 1.0,
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "selu": 0.75,
    "leaky_relu": math.sqrt(2),  # of a slope of 0
}


def _uniform(a: float = 0.0, b: float = 1.0) -> Draw:
    return lambda key, shape: jax.random.uniform(key, shape, minval=a, maxval=b)


def _normal(mean: float = 0.0, std: float = 1.0) -> Draw:
    return lambda key, shape: mean + std * jax.random.normal(key, shape)


def _truncated(mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> Draw:
    low, high = (a - mean) / std, (b - mean) / std
    return lambda key, shape: mean + std * jax.random.truncated_normal(key, low, high, shape)


def _constant(val: float) -> Draw:
    return initializers.constant(val)


def _xavier(distribution: str) -> Callable[..., Draw]:
    """Glorot and Bengio 2010: variance gain^2 / mean(fan_in, fan_out)."""
    return lambda gain=1.0: initializers.variance_scaling(gain**2, "fan_avg", distribution)


def _kaiming(distribution: str) -> Callable[..., Draw]:
    """He et al. 2015: variance gain^2 / fan, with the gain of the activation."""

    def make(a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Draw:
        slope = a if nonlinearity == "leaky_relu" else 0.0
        scale = GAINS[nonlinearity] ** 2 / (1 + slope**2)
        return initializers.variance_scaling(scale, mode, distribution)

    return make


def _orthogonal(gain: float = 1.0) -> Draw:
    """Saxe et al. 2014: orthonormal columns, or rows if there are fewer, times the gain."""
    return lambda key, shape: draw_layers(key, [shape], [gain], "orthogonal")[0]["kernel"]


BIASES: dict[str, Callable[..., Draw]] = {
    "uniform_": _uniform,
    "normal_": _normal,
    "trunc_normal_": _truncated,
    "constant_": _constant,
    "ones_": lambda: initializers.ones,
    "zeros_": lambda: initializers.zeros,
}
KERNELS: dict[str, Callable[..., Draw]] = {
    **BIASES,
    "eye_": lambda: lambda key, shape: jnp.eye(*shape),
    "xavier_uniform_": _xavier("uniform"),
    "xavier_normal_": _xavier("normal"),
    "kaiming_uniform_": _kaiming("uniform"),
    "kaiming_normal_": _kaiming("normal"),
    "orthogonal_": _orthogonal,
}
CHECKS = {
    "mode": one_of("fan_in", "fan_out"),
    "nonlinearity": one_of(*GAINS),
    "std": number(0.0, open_low=True),
}


@dataclass(frozen=True)
class NamedMLP(MLP):
    """An MLP whose layers of `hiddens` begin by names of `torch.nn.init`.

    The layers above them, of outputs and `head_hiddens`, begin as `initializer` says.

    kernels, biases: (name, arguments as pairs); None: as `initializer` says.
    """

    kernels: tuple[str, tuple] | None = None
    biases: tuple[str, tuple] | None = None

    def init(self, key: Key) -> PyTree:
        """The same tree as an `MLP`'s."""
        key, layers_key = jax.random.split(key)
        params = super().init(layers_key)
        for part in ("shared",) if self.vf_share_layers else ("policy", "value"):
            for layer in params[part][: len(self.hiddens)]:
                key, kernel_key, bias_key = jax.random.split(key, 3)
                if self.kernels is not None:
                    layer["kernel"] = _drawn(KERNELS, self.kernels, kernel_key, layer["kernel"])
                if self.biases is not None:
                    layer["bias"] = _drawn(BIASES, self.biases, bias_key, layer["bias"])
        return params


def _drawn(table: dict, named: tuple[str, tuple], key: Key, like: jax.Array) -> jax.Array:
    name, arguments = named
    return table[name](**dict(arguments))(key, like.shape)


def with_names(network: Any, config: Any) -> Any:
    """The `MLP`, or the CNN around one, with the initialisers that `config` names.

    Raises:
        UsageError: an unknown name or argument.
    """
    if not isinstance(network, MLP):
        return replace(network, mlp=with_names(network.mlp, config))
    kernels, biases = initializers_of(config)
    held = {field.name: getattr(network, field.name) for field in fields(network)}
    return NamedMLP(**held, kernels=kernels, biases=biases)


def initializers_of(config: Any) -> list[tuple[str, tuple] | None]:
    """(kernels, biases) as of a `NamedMLP`, from the settings of these names.

    Raises:
        UsageError: an unknown name or argument.
    """
    name = config.fcnet_kernel_initializer
    kernel = None if name in INITIALIZERS else name
    return [
        _named("fcnet_kernel_initializer", kernel, config.fcnet_kernel_initializer_kwargs, KERNELS),
        _named(
            "fcnet_bias_initializer",
            config.fcnet_bias_initializer,
            config.fcnet_bias_initializer_kwargs,
            BIASES,
        ),
    ]


def _named(setting: str, name: str | None, arguments: tuple, table: dict) -> Any:
    """(name, arguments) of a setting and its `_kwargs`, or None where no name is given."""
    if name is None and arguments:
        raise UsageError(
            f"{setting}_kwargs={brief(dict(arguments))} needs a {setting} of torch.nn.init: "
            f"{', '.join(sorted(table))}"
        )
    if name is None:
        return None
    if name not in table:
        raise unknown_name(setting, name, [*table, *(INITIALIZERS if table is KERNELS else ())])
    parameters = inspect.signature(table[name]).parameters
    values = {key: part.default for key, part in parameters.items()} | dict(arguments)
    for argument, value in values.items():
        if argument not in parameters:
            raise unknown_name(f"argument of {name}", argument, parameters)
        if value is inspect.Parameter.empty:
            raise UsageError(f"{setting}='{name}' needs {setting}_kwargs={{{argument!r}: NUMBER}}")
        CHECKS.get(argument, number())(f"{setting}_kwargs[{argument!r}]", value)
    if values.get("a", 0.0) >= values.get("b", math.inf):
        low, high = brief(values["a"]), brief(values["b"])
        raise UsageError(f"{setting}_kwargs: a={low} must be less than b={high}")
    return name, tuple(sorted(arguments))
