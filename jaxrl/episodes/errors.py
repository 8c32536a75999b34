"""The errors of episodes, which code written for RLlib's catches too."""

from collections.abc import Iterable
from typing import Any

from jaxrl.core.errors import UsageError, unknown_name


class EpisodeError(UsageError, AssertionError):
    """A call that makes no sense for an episode; RLlib's episodes assert that."""


class EpisodeIndexError(EpisodeError, IndexError):
    """An index outside of an episode."""


class UnknownNameError(EpisodeError, KeyError):
    """An agent, or a model output, that an episode does not have."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


def unknown(kind: str, name: Any, allowed: Iterable[Any]) -> UnknownNameError:
    """The error for a name that an episode does not have, with the nearest that it has."""
    return UnknownNameError(str(unknown_name(kind, name, allowed)))
