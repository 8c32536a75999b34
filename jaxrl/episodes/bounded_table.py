"""A Parquet file as a table, read in parts, so that a few kilobytes cannot fill the memory."""

from pathlib import Path
from typing import Any

from jaxrl.core.machine import GIB, host_memory, in_units

ROWS_AT_ONCE = 4096


def read_table(file: Path) -> Any:
    """The table of a file whose pages have the checksums that were written.

    Compressed or repeated values can stand for any number of bytes: those that the file announces
    are counted before it is read, and those that are there while it is read.

    Raises:
        ValueError: more than half of the machine's memory would be needed.
        pyarrow.ArrowException, OSError: it is damaged, or no Parquet file.
    """
    import pyarrow
    import pyarrow.parquet

    most = (host_memory() or 8 * GIB) // 2
    with pyarrow.parquet.ParquetFile(file, page_checksum_verification=True) as opened:
        _check(_announced(opened.metadata), most)
        batches, size = [], 0
        for batch in opened.iter_batches(ROWS_AT_ONCE):
            size += batch.nbytes
            _check(size, most)
            batches.append(batch)
        return pyarrow.Table.from_batches(batches, opened.schema_arrow).combine_chunks()


def _announced(metadata: Any) -> int:
    """The bytes that a file takes without compression, by its footer; a byte a row at least."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(max(group.num_rows, group.total_byte_size) for group in groups)


def _check(size: int, most: int) -> None:
    if size > most:
        raise ValueError(
            f"it holds {in_units(size)} or more, and {in_units(most)} are allowed: "
            "half of this machine's memory"
        )
