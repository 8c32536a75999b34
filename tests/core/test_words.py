"""Words of the command line: each form by hand, and texts that come back as they were written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.algorithms.validators import schedule
from jaxrl.core import words
from jaxrl.core.fields import count, file_path
from tests.messages import refused_by


@pytest.mark.parametrize(
    ("read", "texts", "value"),
    [
        (words.one_value, ["1e6"], 1_000_000),
        (words.one_value, ["[1,[2]]"], [1, [2]]),
        (words.one_value, ["None"], None),
        (words.as_text, ["1e6"], "1e6"),
        (words.as_text, ["None"], None),
        (words.several, ["64"], (64,)),
        (words.several, ["[64,32]"], [64, 32]),
        (words.several, ["None"], None),
        (words.or_none(words.several, tuple), ["None"], ()),
        (words.pairs, ["a=1", "b=x=y"], {"a": 1, "b": "x=y"}),
        (words.pairs, ['{"a": 1, "b": [2]}'], {"a": 1, "b": [2]}),
        (words.pairs_of_texts, ["a=1"], {"a": "1"}),
        (words.or_none(words.pairs), ["None"], {}),
        (words.schedule, ["3e-4"], 3e-4),
        (words.schedule, ["0:1e-3", "100:0"], ((0, 1e-3), (100, 0))),
    ],
)
def test_words_are_read_as_their_form_says(read, texts, value):
    assert read("name", texts) == value


test_words_of_another_form_are_refused = refused_by(
    lambda read, texts: read("args", texts),
    [
        (words.pairs, ["a=1", "a=2"], "args names 'a' twice"),
        (words.pairs, ["a="], "args takes NAME=VALUE, not 'a'"),
        (words.pairs, ["{'a': 1}"], 'is not JSON such as {"height": 6}'),
        (words.schedule, ["0:1", "x"], "args takes one number, or a schedule STEP:NUMBER"),
        (words.one_value, ["[1,2"], "is not a list such as"),
    ],
)


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_a_value_is_read_as_what_it_was_written_from(value):
    assert words.value_of(str(value)) == value


def test_the_check_of_a_setting_brings_the_form_of_its_flag():
    assert schedule().form == words.Form(words.schedule, "NUMBER|STEP:NUMBER")
    assert file_path("a path").form.read is words.as_text
    assert not hasattr(count(), "form")  # one value
