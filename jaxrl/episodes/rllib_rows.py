"""Columns of steps in the Parquet files that RLlib writes and reads by Ray Data."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.json_text import read_json
from jaxrl.episodes.bounded_table import open_table, read_table
from jaxrl.episodes.packed_arrays import DAMAGE, Unpacker

EPISODES = "item"  # the column of whole episodes, which RLlib writes by default
TENSOR = b"ARROW:extension:metadata"  # of a column of arrays: the shape of each, as JSON
PACKED = ("obs", "new_obs", "actions")  # columns that may be packed, each row alone
POLICY, AGENT = "module_id", "agent_id"


def is_of_rllib(file: Path) -> bool:
    """Returns whether a Parquet file has columns of RLlib's; that of a damaged one is False."""
    import pyarrow

    try:
        with open_table(file) as opened:
            names = opened.schema_arrow.names
    except (pyarrow.ArrowException, OSError, ValueError):
        return False
    return EPISODES in names or ("obs" in names and "eps_id" in names and "env_t" not in names)


def table_of(file: Path) -> Any:
    """The table of a file.

    Raises:
        UsageError: it is damaged, or has two columns of one name.
    """
    import pyarrow

    try:
        table = read_table(file)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"{file} is damaged, or no Parquet file: {one_line(error)}") from None
    for name, times in Counter(table.column_names).items():
        if times > 1:
            raise UsageError(f"{file} has two columns called {brief(name)}")
    return table


def columns_of_rows(table: Any, names: tuple[str, ...]) -> Iterator[tuple[str | None, dict]]:
    """(policy, {column: an array [n, ...]}) of the steps in a table; None of a single policy.

    Args:
        names: the columns that are read; others are left out.

    Raises:
        ValueError: a column cannot be read.
    """
    unpacker, columns = Unpacker(), {}
    for name in (*names, POLICY, AGENT):
        if name in table.column_names and str(table[name].type) != "null":
            try:
                columns[name] = _array(table, name, unpacker)
            except DAMAGE as error:
                raise ValueError(f"column {name!r}: {one_line(error)}") from None
    if AGENT in columns:
        _, numbers = np.unique(columns.pop(AGENT).astype(str), return_inverse=True)
        columns.setdefault("agent_index", numbers)
    policies = columns.pop(POLICY, np.array(["None"])).astype(str)
    in_file = list(dict.fromkeys(policies.tolist()))
    if len(in_file) == 1:
        yield None, columns
        return
    for policy in in_file:
        rows = {name: column[policies == policy] for name, column in columns.items()}
        yield policy, rows


def _array(table: Any, name: str, unpacker: Unpacker) -> np.ndarray:
    """A column as one array, [n, ...].

    Raises:
        ValueError, or another of DAMAGE: its rows are of several shapes, or cannot be unpacked.
    """
    column = table[name].combine_chunks()
    if hasattr(column, "chunk"):
        column = column.chunk(0)
    metadata = table.schema.field(name).metadata or {}
    if TENSOR in metadata and hasattr(column, "offsets"):
        shape = read_json(metadata[TENSOR])
        if not isinstance(shape, list) or not all(map(_is_size, shape)):
            raise ValueError(f"the shape of its rows is {brief(shape)}, which is no list of sizes")
        return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), *shape)
    if hasattr(column, "offsets"):
        return np.array(column.to_pylist())
    values = column.to_numpy(zero_copy_only=False)
    if name in PACKED and values.dtype == object:
        return np.stack([unpacker.unpack(text) for text in values])
    return np.array(values.tolist())


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0
