"""The compiled form of an algorithm: what stays where compiling fails."""

import jax
import pytest

from jaxrl.run.devices.compiled import StartAndChunk


class FailsAtFirst:
    """A traced program that cannot be compiled the first time."""

    def __init__(self, lowered):
        self.lowered, self.failures = lowered, 1

    def compile(self):
        if self.failures:
            self.failures = 0
            raise MemoryError("out of memory")
        return self.lowered.compile()


@pytest.mark.parametrize("failing", ["start_program", "chunk_program"])
def test_programs_of_which_one_failed_to_compile_can_be_compiled_again(failing):
    lowered = {
        "start_program": jax.jit(lambda x: x + 1).lower(1.0),
        "chunk_program": jax.jit(lambda x: 2 * x).lower(1.0),
    }
    lowered[failing] = FailsAtFirst(lowered[failing])
    programs = StartAndChunk({}, **lowered, capacity=1)
    with pytest.raises(MemoryError, match="out of memory"):
        programs.compile(start=True)
    assert not programs.compiled and not programs.can_start
    programs.compile(start=True)
    assert programs.start_program(3.0) == 4.0
    assert programs.chunk_program(3.0) == 6.0
