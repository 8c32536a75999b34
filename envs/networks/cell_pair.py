"""A network that knows the way from its agent's cell of a grid to another agent's.

Layers on one-hot cells see 10,000 pairs of cells of the arena and have to learn the way of each;
this one looks up the 361 ways themselves as well.

    model = "jaxrl.envs.networks.cell_pair:CellPair(height=10, width=10)"
    per_policy={"pol2": {"model": model}}
"""

import flax.linen as nn
import jax

from jaxrl.core.spaces import Space
from jaxrl.envs.networks.cell_memory import check_grid, place_space, places, policy_and_value


class CellPair(nn.Module):
    """Policy and value, two layers each, of both cells and the way from one to the other.

    Observations i32[..., 2] are (the agent's cell, the other's cell), numbered row by row; logits
    f32[..., actions] and a value f32[...] come out.

    height, width: of the grid.

    Raises:
        UsageError: other observations or actions, or a grid of another number of cells.
    """

    observation_space: Space
    action_space: Space
    height: int
    width: int

    def __post_init__(self):
        check_grid(self)
        super().__post_init__()

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        return policy_and_value(self, place_space(self), places(self, obs))
