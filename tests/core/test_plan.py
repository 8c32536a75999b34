"""The lines of plans: a column of labels, and what has none."""

from hypothesis import given
from hypothesis import strategies as st

from jaxrl.core.plan import COLUMN, LABEL, WIDE, laid_out


def test_texts_stand_in_a_column_beside_their_labels():
    lines = [(None, "3 episodes"), ("policy", "plays a"), ("", "20 parameters"), ("keep", 3)]
    assert laid_out(lines) == (
        "3 episodes\n"
        "policy       plays a\n"
        "             20 parameters\n"
        "keep         3"
    )  # fmt: skip
    assert laid_out([("a_policy", 1.5)], WIDE) == f"a_policy{' ' * 17}1.5"


def test_a_label_that_is_longer_than_the_column_stays_apart_from_its_text():
    assert laid_out([("a_long_name_of_a_policy", "plays a")]) == "a_long_name_of_a_policy plays a"


@given(st.from_regex(r"[a-z][a-z ]{0,11}", fullmatch=True), st.text("ab ", min_size=1))
def test_a_narrow_terminal_knows_each_line_by_its_label(label, text):
    line = laid_out([(label, text)])
    assert LABEL.match(line) and line[COLUMN + 1 :] == text
