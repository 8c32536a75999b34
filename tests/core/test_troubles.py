"""Troubles: the first of each kind is said, the rest are counted."""

from jaxrl.core.troubles import MOST_KINDS, OTHERS, Troubles


def test_each_kind_is_said_once_and_then_counted():
    said = []
    troubles = Troubles(said.append)
    for number in range(3):
        troubles.tell("a client left", f"a client left: {number}")
    troubles.tell("no descriptor", "no descriptor: too many open files")
    assert said == ["a client left: 0", "no descriptor: too many open files"]
    assert troubles.summary == "a client left: 3 times"


def test_a_kind_that_was_over_is_said_again():
    said = []
    troubles = Troubles(said.append)
    for line in ("full", "full again"):
        troubles.tell("disk", line)
    assert troubles.end("disk") == 2 and troubles.end("disk") == 0
    troubles.tell("disk", "full once more")
    assert said == ["full", "full once more"]


def test_kinds_without_end_are_said_a_bounded_number_of_times():
    said = []
    troubles = Troubles(said.append)
    for number in range(10_000):
        troubles.tell(f"kind {number}", f"kind {number}")
    assert len(said) == MOST_KINDS + 1
    assert troubles.counts[OTHERS] == 10_000 - MOST_KINDS
