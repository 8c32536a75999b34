"""An update run again to find where a number stopped being finite."""

import traceback

import jax

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.core.types import PyTree


def find_nan(algorithm: Algorithm, runner: RunnerState, hypers: PyTree, env_params: PyTree) -> str:
    """Runs one update from `runner` uncompiled, operation by operation; tells where the first NaN or infinity arose.

    Slow: seconds to minutes.
    """
    try:
        with jax.disable_jit(), jax.debug_nans(True), jax.debug_infs(False):
            algorithm.update(jax.device_put(runner), hypers, env_params)
    except FloatingPointError as error:
        ours = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "site-packages" not in frame.filename
        ]
        lines = [
            f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in ours
        ]
        return "\n".join(
            [f"uncompiled, the first one arises here ({str(error).splitlines()[0]}):", *lines[-6:]]
        )
    return "uncompiled, the same update met no NaN: the number overflowed, or compiling reordered the arithmetic"
