"""MLP: fully connected policy and value networks, separate or with shared layers."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, Space, is_tree, tree_of
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
BLOCK = 64  # columns that are orthogonalised together
ABOVE_MINUS_ONE = np.nextafter(np.float32(-1), np.float32(0))  # as jax.random.normal begins


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
        by_part, last_gains = self._shapes(), {"policy": 0.01, "value": 1.0, "shared": math.sqrt(2)}
        shapes, gains = [], []
        for part, layers in by_part.items():
            shapes += layers
            gains += [math.sqrt(2) for _ in layers[:-1]] + [last_gains[part] for _ in layers[-1:]]
        drawn = iter(draw_layers(key, shapes, gains, self.initializer))
        params = {part: [next(drawn) for _ in layers] for part, layers in by_part.items()}
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
                sums = _read(space, layer["kernel"], inputs)
                inputs = sums + row_like(layer["bias"], sums)
            else:
                inputs = dense(layer, activation(inputs) if i > 0 else inputs)
        return inputs


def dense(layer: dict[str, jax.Array], inputs: jax.Array) -> jax.Array:
    """The layer's sums, f32[..., out]."""
    sums = inputs @ layer["kernel"]
    return sums + row_like(layer["bias"], sums)


def row_like(row: jax.Array, like: jax.Array) -> jax.Array:
    """A row [n] with the number of axes of `like`."""
    return row.reshape((1,) * (like.ndim - 1) + (-1,))


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


def draw_layers(
    key: Key, shapes: list[tuple[int, int]], gains: list[float], initializer: str
) -> list[dict[str, jax.Array]]:
    """Layers {"kernel": f32[in, out], "bias": f32[out]} of the shapes (in, out).

    The gains are of orthogonal kernels. All are drawn together: each draw takes time to compile.
    """
    ends = np.cumsum([(inputs + 1) * outputs for inputs, outputs in shapes])
    least = ABOVE_MINUS_ONE if initializer == "orthogonal" else -1.0
    noise = jax.random.uniform(key, (ends[-1],), minval=least)
    parts = list(zip(shapes, jnp.split(noise, ends[:-1]), strict=True))
    kernels = [part[: math.prod(shape)].reshape(shape) for shape, part in parts]
    if initializer == "orthogonal":
        kernels = zip(gains, orthogonal(kernels), strict=True)
        return [{"kernel": gain * of, "bias": jnp.zeros(of.shape[1])} for gain, of in kernels]
    roots = [math.sqrt(max(inputs, 1)) for inputs, _ in shapes]
    return [
        {"kernel": kernel / root, "bias": part[-outputs:] / root}
        for root, kernel, ((_, outputs), part) in zip(roots, kernels, parts, strict=True)
    ]


def orthogonal(noise: list[jax.Array]) -> list[jax.Array]:
    """Matrices with orthonormal columns, or rows if there are fewer, of uniform noise in (-1, 1).

    Narrow ones with columns of one length are orthogonalised together, filled up with columns of 0,
    and so are wide ones; the noise is made normal once they are stacked. All this compiles faster.
    """
    tall = [matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T for matrix in noise]
    kinds = [(matrix.shape[0], matrix.shape[1] > BLOCK) for matrix in tall]
    found = {}
    for kind in dict.fromkeys(kinds):
        group = [i for i in range(len(tall)) if kinds[i] == kind]
        most = max(tall[i].shape[1] for i in group)
        filled = [jnp.pad(tall[i], ((0, 0), (0, most - tall[i].shape[1]))) for i in group]
        normal = math.sqrt(2) * jax.lax.erf_inv(jnp.stack(filled))
        with jax.default_matmul_precision("highest"):
            drawn = jax.vmap(orthonormal_columns)(normal)
        for i, columns in zip(group, drawn, strict=True):
            columns = columns[:, : tall[i].shape[1]]
            found[i] = columns if tall[i] is noise[i] else columns.T
    return [found[i] for i in range(len(noise))]


def orthonormal_columns(matrix: jax.Array) -> jax.Array:
    """Gram-Schmidt orthogonalisation of the columns of f32[m, n], with m >= n.

    More than BLOCK columns are orthogonalised by blocks, since products of matrices are fast. Each
    column and each block is cleaned twice ("twice is enough", Giraud et al. 2005). For a standard
    normal matrix the result is uniformly distributed (Mezzadri 2007). LAPACK's QR would deadlock:
    under vmap jaxlib (0.10.2) waits inside the thread pool that does its work, and on two cores two
    such waits block each other.
    """
    n = matrix.shape[1]
    if n <= BLOCK:
        return _orthonormal_block(matrix)
    matrix = jnp.pad(matrix, ((0, 0), (0, -n % BLOCK)))

    def clean(i, basis):
        apart = lambda _, block: _orthonormal_block(block - basis @ (basis.T @ block))
        block = jax.lax.dynamic_slice_in_dim(matrix, i * BLOCK, BLOCK, axis=1)
        block = jax.lax.fori_loop(0, 2, apart, block)
        return jax.lax.dynamic_update_slice_in_dim(basis, block, i * BLOCK, axis=1)

    return jax.lax.fori_loop(0, matrix.shape[1] // BLOCK, clean, jnp.zeros_like(matrix))[:, :n]


def _orthonormal_block(matrix: jax.Array) -> jax.Array:
    """Orthonormal columns, made one after the other; columns of 0 stay 0."""

    def clean(i, basis):
        column = matrix[:, i]
        for _ in range(2):
            column = column - basis @ (basis.T @ column)
        return basis.at[:, i].set(column / jnp.maximum(jnp.linalg.norm(column), 1e-30))

    return jax.lax.fori_loop(0, matrix.shape[1], clean, jnp.zeros_like(matrix))


def _read(space: Space, kernel: jax.Array, obs: PyTree) -> jax.Array:
    """The product of the encoded observation and the first layer's kernel, f32[..., out]."""
    if not isinstance(space, Box):
        from jaxrl.models.lookups import read_parts

        return read_parts(space, kernel, obs)
    flat = obs.reshape(*obs.shape[: obs.ndim - len(space.shape)], space.size)
    return flat.astype(kernel.dtype) @ kernel
