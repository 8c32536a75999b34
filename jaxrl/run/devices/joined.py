"""The processes that train together, once `jaxrl.join` has brought them together."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Hosts:
    """The processes of this run, of which this is one."""

    index: int  # of this process; 0 decides, logs and saves
    number: int
    cores: int  # that each of them may use, at least
    channel: Any  # a `Channel` of jaxrl.cluster.hosts


_joined: list[Hosts] = []  # one entry at most


def enter(joined: Hosts) -> None:
    """Marks this process as one of several from now on."""
    _joined.append(joined)


def hosts() -> Hosts | None:
    """The processes that `join` brought together; None where this one is alone."""
    return _joined[0] if _joined else None


def num_processes() -> int:
    return _joined[0].number if _joined else 1
