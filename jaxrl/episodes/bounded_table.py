"""A Parquet file as a table, read in parts, so that a few kilobytes cannot fill the memory.

Python's extension types of Arrow are left out: programs register them for the whole process, as
Ray Data does, and some unpickle what a file holds. Their columns are read as they are stored.
"""

import base64
import os
from pathlib import Path
from typing import Any

from jaxrl.core.machine import GIB, host_memory, in_units

ROWS_AT_ONCE = 4096
MAGIC = b"PAR1"  # a file's first and last bytes
END = 8  # bytes: the length of the footer, and MAGIC
# Keys of the footer's schema and of a type's name in it, with others of their length in their place
SCHEMA, HIDDEN_SCHEMA = b"ARROW:schema", b"jaxrl:schema"
TYPE, HIDDEN_TYPE = b"ARROW:extension:name", b"jaxrl:extension:name"


def open_table(file: Path) -> Any:
    """The `ParquetFile` of a file, in whose schema no type is an extension.

    Raises:
        ValueError: its footer is damaged, or has two schemas.
        pyarrow.ArrowException, OSError: it is damaged, or no Parquet file.
    """
    import pyarrow.parquet

    metadata = _plain_metadata(_footer(file))
    return pyarrow.parquet.ParquetFile(file, metadata=metadata, page_checksum_verification=True)


def read_table(file: Path) -> Any:
    """The table of a file whose pages have the checksums that were written.

    Compressed or repeated values can stand for any number of bytes: those that the file announces
    are counted before it is read, and those that are there while it is read.

    Raises:
        ValueError: more than half of the machine's memory would be needed, or as `open_table`.
        pyarrow.ArrowException, OSError: it is damaged, or no Parquet file.
    """
    import pyarrow

    most = (host_memory() or 8 * GIB) // 2
    with open_table(file) as opened:
        _check(_announced(opened.metadata), most)
        batches, size = [], 0
        for batch in opened.iter_batches(ROWS_AT_ONCE):
            size += batch.nbytes
            _check(size, most)
            batches.append(batch)
        return pyarrow.Table.from_batches(batches, opened.schema_arrow).combine_chunks()


def _footer(file: Path) -> bytes:
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(size - END, 0))
        end = opened.read()
        length = int.from_bytes(end[:4], "little")
        if end[4:] != MAGIC or length + END > size:
            raise ValueError("it does not end with a footer of Parquet's")
        opened.seek(size - END - length)
        return opened.read(length)


def _plain_metadata(footer: bytes) -> Any:
    """The metadata of a footer, without the names of extension types in its schema.

    Arrow looks a type up by that name as soon as it reads a schema, and calls it with what the file
    says of it. So the schema is hidden until the names are: both are texts in one piece.
    """
    footer = footer.replace(SCHEMA, HIDDEN_SCHEMA)
    hidden = _metadata(footer)
    stored = (hidden.metadata or {}).get(HIDDEN_SCHEMA)
    if stored is None:
        return hidden
    if footer.count(HIDDEN_SCHEMA) > 1:
        raise ValueError("its schema is there twice")  # and Arrow might take the other one
    plain = base64.b64decode(stored, validate=True).replace(TYPE, HIDDEN_TYPE)
    footer = footer.replace(stored, base64.b64encode(plain))
    return _metadata(footer.replace(HIDDEN_SCHEMA, SCHEMA))


def _metadata(footer: bytes) -> Any:
    import pyarrow
    import pyarrow.parquet

    alone = MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC
    with pyarrow.parquet.ParquetFile(pyarrow.BufferReader(alone)) as opened:
        return opened.metadata


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
