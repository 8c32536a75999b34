"""A column of an episode: one value for each step, after a lookback of earlier steps.

A column begins as a list and becomes arrays by `finalize()`. Its values are its own: it copies what
it is given, and gives copies. Index 0 is the first value after the lookback. `get` and `set` take
an integer, a list of integers or a slice; negative indices count from the end, or with
`neg_index_as_lookback` from index 0 back into the lookback.
"""

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxrl.core.errors import brief
from jaxrl.core.fields import flag
from jaxrl.core.value_copies import owned
from jaxrl.episodes.errors import EpisodeError, EpisodeIndexError
from jaxrl.episodes.values import (
    Nested,
    Space,
    check_fits,
    filled,
    leaves,
    map_nested,
    one_hot,
    stack,
    unstack,
)

Indices = int | list[int] | slice | None
# Counted from the lookback's begin; None: outside.
Positions = int | list[int | None] | range | None


def locate(
    indices: Indices,
    lookback: int,
    total: int,
    *,
    neg_index_as_lookback: bool = False,
    extend: bool = False,
) -> Positions:
    """The positions that indices stand for, in a column of `total` values with the lookback.

    A slice is clamped to the column, as Python's are. With `extend` it is not: what is outside
    becomes None.
    """
    flag("neg_index_as_lookback", neg_index_as_lookback)
    if indices is None:
        return range(lookback, total)
    if isinstance(indices, slice):
        steps = _locate_slice(indices, lookback, total, neg_index_as_lookback, extend)
        if not len(steps) or (min(steps) >= 0 and max(steps) < total):
            return steps
        return [i if 0 <= i < total else None for i in steps]
    is_list = isinstance(indices, list | tuple)
    if is_list or (isinstance(indices, np.ndarray) and indices.ndim == 1):
        return [_locate_one(i, lookback, total, neg_index_as_lookback) for i in indices]
    return _locate_one(indices, lookback, total, neg_index_as_lookback)


def _locate_one(index: int, lookback: int, total: int, neg_index_as_lookback: bool) -> int | None:
    position = _position(index, lookback, total, neg_index_as_lookback)
    return position if 0 <= position < total else None


def _position(index: int, lookback: int, total: int, neg_index_as_lookback: bool) -> int:
    """The position that an index stands for, which may be outside of the column."""
    index = _as_integer(index)
    return index + (lookback if index >= 0 or neg_index_as_lookback else total)


def _as_integer(index: Any) -> int:
    try:
        return operator.index(index)
    except TypeError:
        raise EpisodeError(
            f"an index is an integer, a list of integers or a slice, not {brief(index)}"
        ) from None


def _locate_slice(
    indices: slice, lookback: int, total: int, neg_index_as_lookback: bool, extend: bool
) -> range:
    step = 1 if indices.step is None else _as_integer(indices.step)
    if step == 0:
        raise EpisodeError("a slice's step cannot be 0")

    def bound(index: int | None, default: int) -> int:
        if index is None:
            return default
        position = _position(index, lookback, total, neg_index_as_lookback)
        low, high = (0, total) if step > 0 else (-1, total - 1)
        return position if extend else min(max(position, low), high)

    first, last = (lookback, total) if step > 0 else (total - 1, lookback - 1)
    return range(bound(indices.start, first), bound(indices.stop, last), step)


class Column:
    """One kind of an episode's data, such as its rewards.

    Args:
        data: a list of values, or arrays (in dicts and tuples) with the steps as first axis.
        lookback: how many of the values come before index 0.
        space: the space of one value; `fill` and `one_hot_discrete` use it.
        copy: whether the data are copied; False where nothing else keeps them.
    """

    __slots__ = ("data", "lookback", "name", "space")

    def __init__(
        self,
        data: list | Nested | None = None,
        lookback: int = 0,
        space: Space = None,
        name: str = "values",
        *,
        copy: bool = True,
    ):
        self.name = name
        self.space = space
        data = owned(data) if copy else data
        if data is None or isinstance(data, list):
            self.data = list(data or ())
        elif isinstance(data, np.ndarray) and data.ndim:
            self.data = data
        else:
            self.data = map_nested(np.asarray, data)
            lengths = {leaf.shape[:1] for leaf in leaves(self.data)}
            if len(lengths) != 1 or () in lengths:
                raise EpisodeError(f"{name}: arrays of one length are needed, not {brief(data)}")
        self.lookback = min(lookback, self.len_incl_lookback())

    @property
    def finalized(self) -> bool:
        """True if the data are arrays."""
        return not isinstance(self.data, list)

    def len_incl_lookback(self) -> int:
        data = self.data
        return len(data if isinstance(data, list | np.ndarray) else next(leaves(data)))

    def __len__(self) -> int:
        return self.len_incl_lookback() - self.lookback

    def __iter__(self) -> Iterator[Nested]:
        return iter(unstack(self.get()))

    def __getitem__(self, indices: Indices) -> Nested:
        return self.get(indices)

    def __setitem__(self, indices: Indices, new_data: Nested) -> None:
        self.set(new_data, at_indices=indices)

    def __repr__(self):
        return f"Column({self.name}: {brief(self.get())}, lookback={self.lookback})"

    def get(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Nested:
        """The value at an integer; a list of values, or arrays, for a list or a slice.

        Args:
            indices: None means all values after the lookback.
            fill: what stands for values outside of the column; without it, a slice ends at the
                column's ends and an integer outside is an error.
            one_hot_discrete: Discrete and MultiDiscrete values as one-hot rows.
        """
        positions = locate(
            indices,
            self.lookback,
            self.len_incl_lookback(),
            neg_index_as_lookback=neg_index_as_lookback,
            extend=fill is not None,
        )
        is_outside = positions is None or (isinstance(positions, list) and None in positions)
        if is_outside and fill is None:
            raise self.outside(indices)
        return self.take(positions, fill, one_hot_discrete)

    def take(self, positions: Positions, fill: Any = None, one_hot_discrete: bool = False):
        """A copy of the values at positions that `locate` gives; `fill` where those are None."""
        values = self._taken(positions, fill, one_hot_discrete)
        is_fresh = self.finalized and isinstance(positions, list)  # NumPy copies rows of a list
        return values if is_fresh else owned(values)

    def view(self, first: int = 0, stop: int | None = None) -> list | Nested:
        """The values from an index on, for those that only read: they are no copies."""
        end = self.len_incl_lookback() if stop is None else self.lookback + stop
        return self._taken(range(self.lookback + first, end))

    def arrays(self) -> Nested:
        """The values after the lookback as arrays, for those that only read."""
        return self.view() if self.finalized else self._stacked(self.view())

    def _taken(self, positions: Positions, fill: Any = None, one_hot_discrete: bool = False):
        """The values at positions; no copies where that can be avoided."""
        if one_hot_discrete and self.space is None and _has_any(positions):
            raise EpisodeError(f"one_hot_discrete needs the space of the {self.name}")
        if positions is None:
            return self._filler(fill, one_hot_discrete)
        if isinstance(positions, int):
            at = lambda values: values[positions]
            value = map_nested(at, self.data) if self.finalized else at(self.data)
            return one_hot(self.space, value) if one_hot_discrete else value
        if not self.finalized:
            if isinstance(positions, range) and not one_hot_discrete:
                return [self.data[position] for position in positions]
            return [self._taken(position, fill, one_hot_discrete) for position in positions]
        if None in positions and not self.len_incl_lookback():
            return stack([self._filler(fill, one_hot_discrete)] * len(positions))
        rows = self._rows(positions)
        if one_hot_discrete:
            rows = one_hot(self.space, rows)
        return self._fill_rows(rows, positions, fill) if None in positions else rows

    def _rows(self, positions: list[int | None] | range) -> Nested:
        """The arrays' rows, a view where they follow each other; any row for None."""
        if isinstance(positions, range) and positions.step == 1:
            chosen = slice(positions.start, max(positions.start, positions.stop))
        else:
            chosen = np.array([position or 0 for position in positions], int)
        return map_nested(lambda leaf: leaf[chosen], self.data)

    def window(self, first: int, stop: int) -> list | Nested:
        """A copy of the data of some positions."""
        if not self.finalized:
            return owned(self.data[first:stop])
        return owned(map_nested(lambda leaf: leaf[first:stop], self.data))

    def _filler(self, fill: Any, one_hot_discrete: bool) -> Nested:
        if self.space is not None:
            return filled(self.space, fill, one_hot_discrete)
        if not self.finalized or not self.len_incl_lookback():
            return fill
        return map_nested(lambda leaf: np.full(leaf.shape[1:], fill), self.data)

    def _fill_rows(self, rows: Nested, positions: list[int | None], fill: Any) -> Nested:
        """Rows with `fill` at the positions that are None.

        The numbers' type stays if a space gives it, else it is one that holds `fill` too.
        """
        outside = np.array([position is None for position in positions])

        def put(leaf: np.ndarray) -> np.ndarray:
            dtype = leaf.dtype if self.space is not None else np.result_type(leaf, fill)
            leaf = leaf.astype(dtype)
            leaf[outside] = fill
            return leaf

        return map_nested(put, rows)

    def set(
        self,
        new_data: Nested,
        *,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites the value at an integer, or as many values as a list or slice names."""
        total = self.len_incl_lookback()
        positions = locate(
            at_indices, self.lookback, total, neg_index_as_lookback=neg_index_as_lookback
        )
        if positions is None or (isinstance(positions, list) and None in positions):
            raise self.outside(at_indices)
        if isinstance(positions, int):
            positions, new_data = [positions], [new_data]
        values = unstack(new_data)
        if len(values) != len(positions):
            raise EpisodeIndexError(
                f"{len(values)} new {self.name} for {len(positions)} steps: {brief(at_indices)}"
            )
        for value in values:
            self.check(value)
        if not values:
            return
        if not self.finalized:
            for position, value in zip(positions, values, strict=True):
                self.data[position] = owned(value)
            return
        self.data = map_nested(
            lambda leaf, new: _overwritten(leaf, list(positions), new), self.data, stack(values)
        )

    def append(self, value: Nested) -> None:
        """Adds a value at the end. Arrays are copied each time: to add many, add them to lists."""
        if self.finalized:
            self.data = self.followed_by([value]).data
        else:
            self.data.append(owned(value))

    def followed_by(self, values: list | Nested) -> "Column":
        """A copy of the column with more values at its end.

        Raises:
            EpisodeError: the column has arrays, which they do not fit.
        """
        values, data = unstack(values), self.data
        if not self.finalized:
            data = [*data, *map(owned, values)]
        elif len(values):
            self.check(values[0])
            data, old = stack(values), data
            if self.len_incl_lookback():
                data = map_nested(lambda old, new: np.concatenate([old, new]), old, data)
        return type(self)(data, self.lookback, self.space, self.name, copy=False)

    def finalize(self) -> None:
        """Makes arrays of a list."""
        if not self.finalized:
            self.data = self._stacked(self.data)

    def _stacked(self, values: list) -> Nested:
        try:
            return stack(values, self.space)
        except EpisodeError as error:
            raise EpisodeError(f"{self.name}: {error}") from None

    def check(self, value: Nested, batch_axes: int = 0) -> None:
        """Raises EpisodeError where a value does not fit the space, or the arrays there are."""
        if self.space is not None:
            check_fits(self.space, value, f"a value of {self.name}", batch_axes)
        elif self.finalized and not batch_axes and self.len_incl_lookback():
            map_nested(self._check_shape, self.data, value)

    def _check_shape(self, stored: np.ndarray, value: Any) -> None:
        if np.shape(value) != stored.shape[1:]:
            raise EpisodeError(
                f"{self.name} have shape {list(stored.shape[1:])}, not {list(np.shape(value))}"
            )

    def check_all(self) -> None:
        """Raises EpisodeError where the data do not fit the space."""
        if self.finalized:
            self.check(self.data, batch_axes=1)
        elif self.space is not None:
            for value in self.data:
                self.check(value)

    def outside(self, indices: Indices) -> EpisodeIndexError:
        return EpisodeIndexError(
            f"{self.name} have no index {brief(indices)}: {len(self)} are there, and "
            f"{self.lookback} in the lookback"
        )


class Infos(Column):
    """A column of dicts, which those who read them may write to.

    An empty one is stored as None until it is read, which saves memory.
    """

    __slots__ = ()

    def take(self, positions: Positions, fill: Any = None, one_hot_discrete: bool = False):
        """The dicts at positions, which are no copies."""
        for position in [positions] if isinstance(positions, int) else positions or ():
            if position is not None and self.data[position] is None:
                self.data[position] = {}
        return self._taken(positions, fill, one_hot_discrete)


def _has_any(positions: Positions) -> bool:
    """Returns whether a position is inside of the column."""
    if isinstance(positions, int | None):
        return positions is not None
    return any(position is not None for position in positions)


def _overwritten(leaf: np.ndarray, positions: list[int], new: np.ndarray) -> np.ndarray:
    """`leaf` with new rows; it becomes another array only where its type cannot hold them."""
    if not np.can_cast(new.dtype, leaf.dtype, "same_kind"):
        leaf = leaf.astype(np.result_type(leaf, new))
    try:
        leaf[positions] = new
    except ValueError:
        raise EpisodeError(
            f"new values have shape {new.shape[1:]}, those of the episode {leaf.shape[1:]}"
        ) from None
    return leaf
