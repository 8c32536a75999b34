"""gymnax's spaces as ours, and its observations in the types that they declare."""

import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from jaxrl.adapters.from_gymnax import convert_space, typed
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Dict, Discrete, Tuple

THEIRS = spaces.Dict(
    {"map": spaces.Box(0.0, 1.0, (2, 2)), "bag": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 9, (1,), jnp.int32)))}
)


def test_dicts_and_tuples_of_gymnax_are_ours_part_by_part():
    ours = Dict({"map": Box(0.0, 1.0, (2, 2)), "bag": Tuple((Discrete(3), Box(0, 9, (1,), "int32")))})
    assert convert_space(THEIRS, "observation") == ours


def test_every_part_of_an_observation_gets_the_type_that_its_space_declares():
    obs = typed(THEIRS, {"bag": (jnp.int32(2), jnp.array([4.0])), "map": jnp.eye(2, dtype=bool)})
    assert convert_space(THEIRS, "observation").contains(obs)
    assert (obs["map"].dtype, obs["bag"][1].dtype) == (np.float32, np.int32)


def test_a_part_that_is_no_known_space_is_named():
    class Graph(spaces.Space):
        pass

    with pytest.raises(UsageError, match=r"observation\['net'\]: gymnax's Graph space is not supported"):
        convert_space(spaces.Dict({"net": Graph()}), "observation")
