"""Numbers of messages are read as NumPy reads them, and nothing else allocates more."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.core.spaces import Box, Discrete
from jaxrl.serving.message_values import Refused, read_array, read_mask
from jaxrl.serving.nested_numbers import array_of

NUMBERS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)


@given(st.data())
def test_nested_lists_of_a_shape_are_the_array_that_numpy_makes(data):
    shape = data.draw(st.lists(st.integers(1, 3), max_size=3).map(tuple))
    flat = data.draw(st.lists(NUMBERS, min_size=math.prod(shape), max_size=27))
    nested = np.array(flat[: math.prod(shape)], object).reshape(shape).tolist()
    expected, found = np.asarray(nested), array_of(nested, shape)
    if expected.dtype.kind == "O":  # unsigned and negative integers of 64 bits together
        assert found is None
    else:
        np.testing.assert_array_equal(found, expected, strict=True)
    assert array_of(nested, (*shape, 1)) is None and array_of([nested], shape) is None


OTHERS = {
    "texts": ["a" * 3000] + [""] * 200_000,
    "one text": "a" * 2**20,
    "texts in rows": [["a" * 3000, ""]] * 100_000,
    "bytes in a list": [b"a" * 3000] + [b""] * 200_000,
    "numbers, too many": [0.0] * 200_000,
    "empty rows": [[]] * 200_000,
    "rows of several lengths": [[1], [1, 2]] * 100_000,
    "nested deeply": eval("[" * 90 + "]" * 90),
    "a mapping": {"a": 1},
    "nothing": None,
    "large integers": [2**100] * 4,
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_values_are_refused_within_little_memory(what):
    """A text as long as 3,000 among 200,000 others made NumPy ask for 2.3 GB."""
    tracemalloc.start()
    try:
        for shape in ((), (4,), (2, 2)):
            assert array_of(OTHERS[what], shape) is None
        with pytest.raises(Refused):
            read_array(Box(-1, 1, (4,)), OTHERS[what], "an observation")
        with pytest.raises(Refused):
            read_mask(Discrete(4), OTHERS[what])
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()
