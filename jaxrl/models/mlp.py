"""MLP: fully connected policy and value networks, separate or with shared layers."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, Space, is_tree, parts_of, tree_of
from jaxrl.core.types import Key, PyTree
from jaxrl.ops.distributions import (
    Distribution,
    from_logits,
    num_log_stds,
    num_logits,
    with_log_stds,
)

ACTIVATIONS: dict[str, Callable] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "linear": lambda x: x,
}
INITIALIZERS = ("uniform", "orthogonal")


@dataclass(frozen=True)
class MLP:
    """Layers of widths `hiddens` from an observation to a distribution's logits and a value.

    The defaults are RLlib's. Integers of Discrete and MultiDiscrete observations are looked up in
    the first layer, which equals the product with a one-hot vector. Box observations are flattened.
    For a tree of spaces the first layer reads the concatenated parts.

    initializer:
        "uniform"     weights and biases U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as in PyTorch and RLlib
        "orthogonal"  gain sqrt(2), 0.01 for the logits, 1 for the value; biases 0 (Andrychowicz et
                      al. 2021)
    free_log_std, log_std_init:
        whether the log-std of a Box's actions is a separate parameter, and not an output; its
        initial value
    action_distribution:
        of a Box's actions, from ACTION_DISTRIBUTIONS
    value_space:
        what the value network reads, if it is not `observation_space`; `apply` then takes an
        `ActorCritic` of both, and no layers are shared
    head_hiddens:
        widths of the layers above `hiddens`, of policy and value each; never shared
    """

    observation_space: Space
    action_space: Space
    hiddens: tuple[int, ...] = (256, 256)
    activation: str = "tanh"
    vf_share_layers: bool = False
    initializer: str = "uniform"
    free_log_std: bool = False
    log_std_init: float = 0.0
    action_distribution: str = "gaussian"
    value_space: Space | None = None
    head_hiddens: tuple[int, ...] = ()

    def __post_init__(self):
        """Rejects spaces that are not supported, before anything is traced."""
        num_logits(self.action_space, self.action_distribution)
        for space in self._spaces.values():
            input_size(space)
        if self.free_log_std and not num_log_stds(self.action_space):
            raise UsageError(f"free_log_std=True needs Box actions, not {self.action_space}")
        if self.free_log_std and self.action_distribution == "beta":
            raise UsageError(
                "free_log_std=True does not fit action_distribution='beta', which has no log-std"
            )

    def init(self, key: Key) -> PyTree:
        """{"policy": layers, "value": layers}, with `vf_share_layers` also "shared" below both.

        Layers are a list of {"kernel": f32[in, out], "bias": f32[out]}. With `free_log_std` also
        "log_std" f32[d].
        """
        shapes = self._shapes()
        sizes = [(inputs + 1) * outputs for layers in shapes.values() for inputs, outputs in layers]
        drawn = noise_for(self.initializer, key, (sum(sizes),))  # each draw costs compile time
        noise = iter(jnp.split(drawn, np.cumsum(sizes)[:-1]))
        last_gains = {"policy": 0.01, "value": 1.0, "shared": math.sqrt(2)}
        params = {}
        for part, layers in shapes.items():
            params[part] = []
            for i, shape in enumerate(layers):
                gain = last_gains[part] if i == len(layers) - 1 else math.sqrt(2)
                params[part].append(draw_layer(next(noise), shape, gain, self.initializer))
        if self.free_log_std:
            first = jnp.float32(self.log_std_init)  # strong: the trained ones have its type
            params["log_std"] = jnp.full(num_log_stds(self.action_space), first)
        return params

    def apply(self, params: PyTree, obs: PyTree) -> tuple[Distribution, jax.Array]:
        """(distribution [...], value f32[...]) of obs `[..., *observation_space.shape]`."""
        if self.vf_share_layers and self.hiddens:
            features = self.features(params, obs)
            return self._heads(params, features, features, is_input=False)
        if self.value_space is not None:
            return self.apply_apart(params, obs.policy, obs.value)
        return self.apply_apart(params, obs, obs)

    @property
    def num_features(self) -> int:
        """The width of the layers that policy and value share."""
        return self.hiddens[-1]

    def init_features(self, key: Key) -> PyTree:
        """The parameters of the shared layers only, for a network that has other heads."""
        return {"shared": self.init(key)["shared"]}

    def features(self, params: PyTree, obs: PyTree) -> jax.Array:
        """The outputs of the shared layers, f32[..., num_features]."""
        features = self._network(params["shared"], obs, self.observation_space)
        return ACTIVATIONS[self.activation](features)

    def apply_apart(
        self, params: PyTree, policy_obs: PyTree, value_obs: PyTree
    ) -> tuple[Distribution, jax.Array]:
        """Applies the network like `apply`, with separate inputs for the value; not with shared
        layers.

        Without an input for the value, None, it is 0.
        """
        return self._heads(params, policy_obs, value_obs, is_input=True)

    def _heads(
        self, params: PyTree, policy_inputs: PyTree, value_inputs: PyTree, *, is_input: bool
    ):
        spaces = self._spaces if is_input else {"policy": None, "value": None}
        logits = self._network(params["policy"], policy_inputs, spaces["policy"])
        if value_inputs is None:
            value = jnp.zeros((*logits.shape[:-1], 1))
        else:
            value = self._network(params["value"], value_inputs, spaces["value"])
        if self.free_log_std:
            logits = with_log_stds(self.action_space, logits, params["log_std"])
        return from_logits(self.action_space, logits, self.action_distribution), value[..., 0]

    @property
    def _spaces(self) -> dict[str, Space]:
        """The space that each part reads."""
        value = self.observation_space if self.value_space is None else self.value_space
        return {"policy": self.observation_space, "value": value}

    def _shapes(self) -> dict[str, list[tuple[int, int]]]:
        """(in, out) of every layer of every part."""
        num_outputs = num_logits(self.action_space, self.action_distribution)
        if self.free_log_std:
            num_outputs -= num_log_stds(self.action_space)
        outputs = {"policy": num_outputs, "value": 1}
        if self.vf_share_layers:
            sizes = (input_size(self.observation_space), *self.hiddens)
            heads = {
                part: list(itertools.pairwise((sizes[-1], *self.head_hiddens, size)))
                for part, size in outputs.items()
            }
            return {"shared": list(itertools.pairwise(sizes)), **heads}
        hiddens = *self.hiddens, *self.head_hiddens
        return {
            part: list(itertools.pairwise((input_size(space), *hiddens, outputs[part])))
            for part, space in self._spaces.items()
        }

    def _network(
        self, layers: list[dict[str, jax.Array]], inputs: PyTree, space: Space | None
    ) -> jax.Array:
        """Layers with the activation between them; the first reads observations of `space`."""
        activation = ACTIVATIONS[self.activation]
        for i, layer in enumerate(layers):
            if i == 0 and space is not None:
                inputs = _read(space, layer["kernel"], inputs)
            else:
                inputs = activation(inputs) if i > 0 else inputs
                inputs = inputs @ layer["kernel"]
            inputs = inputs + layer["bias"].reshape((1,) * (inputs.ndim - 1) + (-1,))
        return inputs


def input_size(space: Space) -> int:
    """The number of inputs of an observation: one per category, or per element of a Box."""
    match space:
        case Discrete() | MultiDiscrete():
            return sum(space.counts)
        case Box():
            return space.size
    if is_tree(space):
        return sum(map(input_size, jax.tree.leaves(tree_of(space))))
    raise UsageError(
        f"observation space {space} is not supported; "
        "allowed: Discrete, MultiDiscrete, Box, Dict, Tuple"
    )


def noise_for(initializer: str, key: Key, shape: tuple[int, ...]) -> jax.Array:
    """Random numbers for `draw_layer`, f32[*shape].

    Standard normal for "orthogonal", else uniform in [-1, 1).
    """
    if initializer == "orthogonal":
        return jax.random.normal(key, shape)
    return jax.random.uniform(key, shape, minval=-1.0)


def draw_layer(
    noise: jax.Array, shape: tuple[int, int], gain: float, initializer: str
) -> dict[str, jax.Array]:
    """A layer from (in + 1) * out random numbers of `noise_for` with the same initializer."""
    kernel, bias = noise[: math.prod(shape)].reshape(shape), noise[math.prod(shape) :]
    if initializer == "orthogonal":
        tall = shape[0] >= shape[1]
        columns = orthonormal_columns(kernel if tall else kernel.T)
        return {"kernel": gain * (columns if tall else columns.T), "bias": jnp.zeros(shape[1])}
    bound = 1 / math.sqrt(shape[0])
    return {"kernel": bound * kernel, "bias": bound * bias}


def orthonormal_columns(matrix: jax.Array) -> jax.Array:
    """Gram-Schmidt orthogonalisation of the columns of f32[m, n], with m >= n.

    Each column is orthogonalised twice ("twice is enough", Giraud et al. 2005). For a standard
    normal matrix the result is uniformly distributed (Mezzadri 2007). LAPACK's QR would deadlock:
    under vmap jaxlib (0.10.2) waits inside the thread pool that does its work, and on two cores two
    such waits block each other.
    """

    def clean(i, basis):
        column = matrix[:, i]
        for _ in range(2):
            column = column - basis @ (basis.T @ column)
        return basis.at[:, i].set(column / jnp.linalg.norm(column))

    return jax.lax.fori_loop(0, matrix.shape[1], clean, jnp.zeros_like(matrix))


def _read(space: Space, kernel: jax.Array, obs: PyTree) -> jax.Array:
    """The product of the encoded observation and the first layer's kernel, f32[..., out]."""
    if is_tree(space):
        return _read_parts(space, kernel, obs)
    if isinstance(space, Box):
        return _flat(space, obs).astype(kernel.dtype) @ kernel
    return lookup(kernel, _rows(space, obs))


def _read_parts(space: Space, kernel: jax.Array, obs: PyTree) -> jax.Array:
    """Reads a tree like `_read`: one product per run of Boxes, one lookup of all integers."""
    terms, rows, first = [], [], 0
    is_box_part = lambda named: isinstance(named[1], Box)
    for is_box, run in itertools.groupby(parts_of(space, obs), is_box_part):
        flat, begin = [], first
        for _, part, values in run:
            if is_box:
                flat.append(_flat(part, values).astype(kernel.dtype))
            else:
                rows.append(_rows(part, values.astype(jnp.int32)) + first)
            first += input_size(part)
        if is_box:
            terms.append(jnp.concatenate(flat, axis=-1) @ kernel[begin:first])
    if rows:
        terms.append(lookup(kernel, jnp.concatenate(rows, axis=-1)))
    return sum(terms[1:], start=terms[0])


def _flat(space: Box, obs: jax.Array) -> jax.Array:
    """The flattened observation, [..., size]."""
    return obs.reshape(*obs.shape[: obs.ndim - len(space.shape)], space.size)


def _rows(space: Discrete | MultiDiscrete, obs: jax.Array) -> jax.Array:
    """The rows of the kernel that encode an observation, [..., K]."""
    if isinstance(space, Discrete):
        return obs[..., None]
    offsets = np.cumsum((0, *space.counts[:-1]), dtype=np.int32)
    return obs + offsets.reshape((1,) * (obs.ndim - 1) + (-1,))


def lookup(kernel: jax.Array, index: jax.Array) -> jax.Array:
    """The sum of the rows `index`, i32[..., K], of `kernel`, f32[..., out]."""
    return jnp.sum(kernel[index], axis=-2)
