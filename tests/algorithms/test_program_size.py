"""Size of the compiled programs: XLA compiles each fusion to a kernel, which is what one waits for.

`python benchmarks/compiling.py` measures them, and the seconds.
"""

import re

import jax
import pytest

from jaxrl import PPOConfig, make_train

# Fusions, and exclusive ors: each kernel that draws random numbers has 20 to 23, and is slow to
# compile. A twentieth more than there were in November 2026, for other versions of XLA; they only
# fall.
LIMITS = {"cartpole": (525, 560), "arena": (960, 840)}
# XLA's kernel for the `any` of a large mask is ten times as long as that of a sum.
LARGE_ANY = re.compile(r" pred\[[^]]*\]\S* reduce-window\(")


@pytest.mark.long
@pytest.mark.parametrize("env", LIMITS)
def test_a_tuned_program_has_no_more_fusions_and_random_numbers_than_it_had(env):
    train = jax.jit(make_train(PPOConfig.tuned(env)))
    program = train.lower(jax.random.key(0)).compile().as_text()
    most_fusions, most_xors = LIMITS[env]
    assert len(re.findall(r" fusion\(", program)) <= most_fusions
    assert len(re.findall(r" xor\(", program)) <= most_xors
    assert not LARGE_ANY.search(program)
