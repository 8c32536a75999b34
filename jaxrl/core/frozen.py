"""Settings in forms that can be hashed, and arguments as they were written."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def is_array(value: Any) -> bool:
    """Returns whether this is an array or a number of NumPy, JAX or PyTorch."""
    has_all = all(hasattr(value, name) for name in ("__array__", "dtype", "shape"))
    return has_all and not isinstance(value, type)


def is_mapping(value: Any) -> bool:
    """Returns whether a value is a mapping alone: chex's dataclasses and Dict spaces are more."""
    is_more = any(hasattr(type(value), name) for name in ("__dataclass_fields__", "sample"))
    return isinstance(value, Mapping) and not is_more


def freeze(value: Any) -> Any:
    """A hashable form: nested lists become tuples, mappings tuples of pairs."""
    if is_mapping(value):
        return tuple((key, freeze(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(freeze(part) for part in value)
    return freeze(np.asarray(value).tolist()) if is_array(value) else value


def is_frozen(value: Any) -> bool:
    """Returns whether a value is its own hashable form: no list, mapping or array is in it."""
    if isinstance(value, tuple):
        return all(map(is_frozen, value))
    return not (isinstance(value, list) or is_mapping(value) or is_array(value))


class _Formed(tuple):
    """A tuple that remembers what it was, and equals no other tuple with the same parts."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((type(self).__name__, tuple(self)))


class FrozenMapping(_Formed):
    """The pairs of a mapping."""


class FrozenList(_Formed):
    """The parts of a list."""


class FrozenObject:
    """An argument without a hash, such as a space or an array: equal where it is the same."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenObject) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def freeze_arguments(value: Any) -> Any:
    """Pairs of names and values in a hashable form, from which `thawed` gives what was written."""
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list | tuple) or not all(map(_is_pair, pairs)):
        return freeze(value)
    return tuple((name, _frozen(part)) for name, part in pairs)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _frozen(value: Any) -> Any:
    if is_mapping(value):
        return FrozenMapping((key, _frozen(part)) for key, part in value.items())
    if isinstance(value, _Formed | list):
        kind = FrozenList if isinstance(value, list) else type(value)
        return kind(map(_frozen, value))
    if isinstance(value, tuple):
        return tuple(map(_frozen, value))
    if is_array(value):
        return FrozenObject(value) if np.shape(value) else freeze(value)
    try:
        hash(value)
    except TypeError:
        return FrozenObject(value)
    return value


def thaw(value: Any) -> Any:
    """The value that an argument was frozen from, with its lists and mappings."""
    if isinstance(value, FrozenObject):
        return value.value
    if isinstance(value, FrozenMapping):
        return {key: thaw(part) for key, part in value}
    if isinstance(value, tuple):
        return (list if isinstance(value, FrozenList) else tuple)(map(thaw, value))
    return value


def thawed(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The arguments that a setting such as `env_args` holds, as they were written."""
    return {name: thaw(value) for name, value in pairs}
