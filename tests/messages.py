"""The runner of the tables of (call, message): each call is refused in one line that says why."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxrl import UsageError


@contextlib.contextmanager
def refusal(message: str) -> Iterator[None]:
    """A block that raises a `UsageError` of one line, a part of which the message matches."""
    with pytest.raises(UsageError, match=message) as error:
        yield
    assert "\n" not in str(error.value)


def refused(
    rows: list[tuple] | dict[str, tuple], *, literal: bool = False, fixture: str | None = None
) -> Callable[..., None]:
    """A test for each (call, message) of `rows`; see `refused_by`."""
    return refused_by(
        lambda *values: values[-1](*values[:-1]), rows, literal=literal, fixture=fixture
    )


def refused_by(
    call: Callable[..., Any],
    rows: list[tuple] | dict[str, tuple],
    *,
    literal: bool = False,
    fixture: str | None = None,
) -> Callable[..., None]:
    """A test for each (*arguments, message): `call(*arguments)` is refused in that one line.

    Args:
        rows: in a list, or by label.
        literal: a message is a part of the line, and not a regular expression that matches one.
        fixture: the name of one whose value is the first argument of each call.
    """

    labels = list(rows) if isinstance(rows, dict) else None
    rows = list(rows.values()) if isinstance(rows, dict) else rows
    values = [(row[:-1], row[-1]) for row in rows]

    @pytest.mark.parametrize(("arguments", "message"), values, ids=labels)
    def test(arguments, message, request):
        if fixture is not None:
            arguments = request.getfixturevalue(fixture), *arguments
        with refusal(re.escape(message) if literal else message):
            call(*arguments)

    return test
