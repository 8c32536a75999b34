"""A network for waterworld's sensors: the same weights for each ray, as a convolution has.

Food on one side is caught as food on the other side is. A network of dense layers has to learn that
for each of the sensors; this one learns it once.

    model="jaxrl.envs.networks.ray_network:RayNetwork(num_sensors=30, speed_features=True)"
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Space

# of waterworld's blocks; the others are speeds
IS_DISTANCE = (True, True, True, False, True, False, True, False)
NUM_TOUCHES = 2  # the numbers after the sensors': whether food, and whether poison, is touched
SPEED_SCALE = 2.0  # most relative speeds are below a half of the observation's unit
RAY_UNITS, UNITS = 32, 64  # of each hidden layer, for each ray and for all of them together


class RayNetwork(nn.Module):
    """Policy: two layers at each ray, which see its neighbours, then one of all rays together.

    All rays together are h(0) + ... + h(n - 1), the same weighted by each ray's cosine, and by its
    sine, with h the second layer's outputs. The value is that of two dense layers of all numbers.

    num_sensors, speed_features: as the environment has them.

    Raises:
        UsageError: other observations or actions.
    """

    observation_space: Space
    action_space: Space
    num_sensors: int = 30
    speed_features: bool = True

    def __post_init__(self):
        space, needed = self.observation_space, self.num_readings + NUM_TOUCHES
        size = space.size if isinstance(space, Box) else 0
        if size != needed or not isinstance(self.action_space, Box):
            arguments = f"num_sensors={self.num_sensors}, speed_features={self.speed_features}"
            raise UsageError(
                f"RayNetwork({arguments}) needs a Box of {needed} numbers and Box actions, not "
                f"{space} and {self.action_space}"
            )
        super().__post_init__()

    @property
    def is_distance(self) -> tuple[bool, ...]:
        """A flag for each block of `num_sensors` numbers: whether it holds distances."""
        return IS_DISTANCE if self.speed_features else tuple(filter(None, IS_DISTANCE))

    @property
    def num_readings(self) -> int:
        return len(self.is_distance) * self.num_sensors

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        rays = readings(obs[..., : self.num_readings], self.is_distance)
        # Neighbours are read by the first layer: two rays tell where a body is.
        rays = nn.relu(nn.Dense(RAY_UNITS)(with_neighbours(rays)))
        rays = nn.relu(nn.Dense(RAY_UNITS)(rays))
        hidden = jnp.concatenate([gathered(rays), obs[..., self.num_readings :]], axis=-1)
        hidden = nn.relu(nn.Dense(UNITS)(hidden))
        small = nn.initializers.orthogonal(0.01)
        logits = nn.Dense(2 * self.action_space.size, kernel_init=small)(hidden)
        value = nn.tanh(nn.Dense(UNITS)(nn.tanh(nn.Dense(UNITS)(obs))))
        return logits, nn.Dense(1)(value)[..., 0]


def readings(obs: jax.Array, is_distance: tuple[bool, ...]) -> jax.Array:
    """f32[..., blocks n] as f32[..., n, blocks]: 0 where nothing is sensed, nearer is larger."""
    blocks = obs.reshape(*obs.shape[:-1], len(is_distance), -1)
    chosen = np.array(is_distance)[:, None]
    return jnp.swapaxes(jnp.where(chosen, 1.0 - blocks, SPEED_SCALE * blocks), -1, -2)


def with_neighbours(rays: jax.Array) -> jax.Array:
    """f32[..., n, c] as f32[..., n, 3 c]: the ray before, the ray, the ray after, in a circle."""
    return jnp.concatenate([jnp.roll(rays, 1, -2), rays, jnp.roll(rays, -1, -2)], axis=-1)


def gathered(rays: jax.Array) -> jax.Array:
    """f32[..., n, c] as f32[..., 3 c]: sums over the rays, plain and by their directions."""
    angle = np.arange(rays.shape[-2]) * (2 * np.pi / rays.shape[-2])
    basis = np.stack([np.ones_like(angle), np.cos(angle), np.sin(angle)]).astype(np.float32)
    sums = jnp.einsum("...nc,kn->...kc", rays, basis)
    return sums.reshape(*rays.shape[:-2], -1)
