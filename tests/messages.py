"""The runner of the tables of (call, message): each call is refused in one line that says why."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from jaxrl import UsageError


def refused(rows: list[tuple], *, literal: bool = False) -> Callable[..., None]:
    """A test for each (call, message) of `rows`; see `refused_by`."""
    return refused_by(lambda call: call(), rows, literal=literal)


def refused_by(
    call: Callable[..., Any], rows: list[tuple], *, literal: bool = False
) -> Callable[..., None]:
    """A test for each (*arguments, message): `call(*arguments)` is refused in that one line.

    A message is a regular expression that a part of the line matches, or that part itself if it is
    `literal`.
    """

    @pytest.mark.parametrize(("arguments", "message"), [(row[:-1], row[-1]) for row in rows])
    def test(arguments, message):
        pattern = re.escape(message) if literal else message
        with pytest.raises(UsageError, match=pattern) as error:
            call(*arguments)
        assert "\n" not in str(error.value)

    return test
