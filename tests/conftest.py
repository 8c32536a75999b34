"""How all tests run: quickly compiled, and with rank promotion an error."""

import os

# The suite compiles some two hundred small programs and runs each for moments, so code that compiles fast is worth more
# here than code that runs fast: without optimisation, and by XLA's older emitters, which take a third of the time.
# Read when the backend starts; a value that is set already wins.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")

# A user's compile cache is none of the suite's business; the tests of the cache turn theirs on.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")  # two shapes that meet by accident are a bug, not a broadcast
jax.config.update("jax_num_cpu_devices", 4)  # for tests/run/test_devices.py; whoever asks for none uses the first
