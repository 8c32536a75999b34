"""How all tests run: quickly compiled, and with rank promotion an error."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

# The suite compiles some two hundred small programs and runs each for moments, so code that
# compiles fast is worth more here than code that runs fast: without optimisation, and by XLA's
# older emitters, which take a third of the time. Read when the backend starts; a value that is set
# already wins. jaxlib 0.11 no longer has the older emitters, and ends the process at their flag.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
    else "--xla_backend_optimization_level=0",
)

# A user's compile cache is none of the suite's business; the tests of the cache turn theirs on.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

import jax

OLDER_EMITTERS = "--xla_cpu_use_fusion_emitters=false"

jax.config.update(
    "jax_numpy_rank_promotion", "raise"
)  # two shapes that meet by accident are a bug, not a broadcast
jax.config.update(
    "jax_num_cpu_devices", 4
)  # for tests/run/devices/test_mesh.py; whoever asks for none uses the first


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test marked `bits` runs in a process of its own, with the emitters that users have."""
    if (
        pyfuncitem.get_closest_marker("bits") is None
        or OLDER_EMITTERS not in os.environ["XLA_FLAGS"]
    ):
        return None
    command = [
        sys.executable,
        "-m",
        "pytest",
        pyfuncitem.nodeid,
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "XLA_FLAGS": os.environ["XLA_FLAGS"].replace(OLDER_EMITTERS, "")}
    done = subprocess.run(
        command,
        env=environment,
        cwd=pyfuncitem.config.rootpath,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return True
