"""A network for pursuit's views of a grid: what it learns for one direction it knows for all four.

An evader on the left is surrounded as an evader above is. A network of dense layers has to learn
that for each direction; this one learns it once, as a group-equivariant network (Cohen and Welling
2016) of the quarter turns.

    model="jaxrl.envs.networks.rotation_network:RotationNetwork"
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete, Space

NUM_ACTIONS = 5
MOVES = (1, 3, 2, 0)  # left, right, down, up, in quarter turns to the left from up


class RotationNetwork(nn.Module):
    """Policy and value: two layers each, with the same weights for the view turned to each side.

    A turned view gives turned logits and the same value. Mirrored views are others: the policy can
    go round a building in one direction.

    units: of the hidden layers, for each direction.

    Raises:
        UsageError: observations that are not a square view, or other actions than pursuit's.
    """

    observation_space: Space
    action_space: Space
    units: tuple[int, int] = (32, 16)

    def __post_init__(self):
        shape = self.observation_space.shape if isinstance(self.observation_space, Box) else ()
        is_view = len(shape) == 3 and shape[0] == shape[1]
        if not is_view or self.action_space != Discrete(NUM_ACTIONS):
            raise UsageError(
                "RotationNetwork needs a Box of n x n x channels and Discrete(5), not "
                f"{self.observation_space} and {self.action_space}"
            )
        super().__post_init__()

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        policy, value = self.hidden(obs), self.hidden(obs)
        small = nn.initializers.orthogonal(0.01)
        moves = Turned(1, small)(policy)[..., MOVES]
        stay = nn.Dense(1, kernel_init=small)(over_directions(policy))
        logits = jnp.concatenate([moves, stay], axis=-1)
        return logits, nn.Dense(1)(over_directions(value))[..., 0]

    def hidden(self, obs: jax.Array) -> jax.Array:
        hidden = nn.tanh(View(self.units[0])(obs))
        return nn.tanh(Turned(self.units[1], nn.initializers.orthogonal(2**0.5))(hidden))


class View(nn.Module):
    """f32[..., n, n, channels] as f32[..., 4 units]: a dense layer of the four turned views.

    Of an even view the last row and column are left out: pursuit pads them.
    """

    units: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        side = obs.shape[-2] - 1 + obs.shape[-2] % 2
        obs = obs[..., :side, :side, :]
        size = side * side * obs.shape[-1]
        kernel = self.param("kernel", nn.initializers.orthogonal(2**0.5), (size, self.units))
        bias = self.param("bias", nn.initializers.zeros, (self.units,))
        kernel = kernel.reshape(side, side, -1, self.units)
        # Turning the weights costs less than turning the views.
        turned = [jnp.rot90(kernel, k).reshape(size, self.units) for k in range(4)]
        return dense(obs.reshape(*obs.shape[:-3], size), turned, bias)


class Turned(nn.Module):
    """f32[..., 4 n] as f32[..., 4 units]: a dense layer whose weights turn with the direction."""

    units: int
    kernel_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        size = hidden.shape[-1]
        kernel = self.param("kernel", self.kernel_init, (size, self.units))
        bias = self.param("bias", nn.initializers.zeros, (self.units,))
        turned = [jnp.roll(kernel, k * size // 4, axis=0) for k in range(4)]
        return dense(hidden, turned, bias)


def dense(inputs: jax.Array, kernels: list[jax.Array], bias: jax.Array) -> jax.Array:
    """f32[..., n] as f32[..., 4 units]: the outputs of the four kernels f32[n, units]."""
    outputs = inputs @ jnp.concatenate(kernels, axis=1)
    return outputs + jnp.broadcast_to(jnp.tile(bias, len(kernels)), outputs.shape)


def over_directions(hidden: jax.Array) -> jax.Array:
    """f32[..., 4 n] as f32[..., n]: sums over the directions."""
    return jnp.sum(hidden.reshape(*hidden.shape[:-1], 4, -1), axis=-2)
