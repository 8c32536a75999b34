"""JSON of strangers is read with bounded depth."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.core.json_text import MOST_DEEP, read_json

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@pytest.mark.long
@given(VALUES, st.booleans())
def test_what_json_writes_is_read_as_it_was(value, as_bytes):
    text = json.dumps(value)
    assert read_json(text.encode() if as_bytes else text) == value


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_depth_is_bounded_and_breadth_is_not(begin, end):
    nested = lambda depth: begin * depth + "1" + end * depth
    assert json.dumps(read_json(nested(MOST_DEEP))).count(begin[0]) == MOST_DEEP
    for depth in (MOST_DEEP + 1, 900, 1_000_000):
        for text in (nested(depth), nested(depth).encode(), begin * depth):
            with pytest.raises(ValueError):
                read_json(text)
    assert len(read_json(f"[{','.join(['[1]'] * 100_000)}]")) == 100_000


def test_an_integer_has_300_digits_at_most_beside_its_sign():
    assert read_json("-" + "9" * 300) == -int("9" * 300)
    for text in ("9" * 301, "-" + "9" * 301):
        with pytest.raises(ValueError, match="301 digits"):
            read_json(text)


@pytest.mark.parametrize("text", ["", "[1", "\ufeff1", "1 2", "1" * 10_000, b"\xff\xff"])
def test_other_texts_are_value_errors(text):
    with pytest.raises(ValueError):
        read_json(text)
