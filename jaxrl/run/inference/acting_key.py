"""The random key of actions outside of training, which never shares numbers with training."""

import zlib

import jax
import numpy as np

from jaxrl.core.fields import UINT32, count
from jaxrl.core.types import Key

ACTING = 0x61637469  # folded into the seed's key


def acting_key(seed: int, name: str) -> Key:
    """The random key of actions outside of training, by the name of who acts."""
    count(0, UINT32)("seed", seed)
    root = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), ACTING)
    return jax.random.fold_in(root, np.uint32(zlib.crc32(name.encode())))
