"""Compact arrays for a page: quantised, compressed, and written as text.

The arrays of a page share one block of bytes; JSON refers to each by {"at", "shape", ...}. Axis 0
is time, and the bytes have time last, so that neighbours are alike and compress well:

    table   few different values: the values, and a byte for each entry
    16, 8   low + step * n: differences of n in time, modulo 2^bits, the low bytes before the high
    32      f32 as it is
"""

import base64
import hashlib
import zlib
from typing import Any

import numpy as np

TABLE_SIZE = 256
REPEATS = 8  # a table pays only where each of its numbers appears about this often


class Packer:
    """Collects the arrays of a page; equal ones are stored once."""

    def __init__(self):
        self._bytes = bytearray()
        self._places: dict[bytes, int] = {}

    def add(self, values: Any, bits: int = 16) -> dict[str, Any]:
        """The reference to an array [T, ...] of finite numbers.

        Args:
            bits: of floating numbers. 32 keeps every float32; 16 and 8 divide the array's range
                into 2^bits - 1 steps. Integers up to 2^24 and bools are kept.
        """
        is_whole = np.asarray(values).dtype.kind in "biu"
        values = np.asarray(values, np.float64)
        if len(values) > 1 and np.all(values == values[:1]):
            values = values[:1]  # constant in time
        reference = {"shape": list(values.shape)}
        table, index = np.unique(values, return_inverse=True)
        series = lambda array: np.moveaxis(array.reshape(values.shape), 0, -1).reshape(-1)
        repeats = is_whole or len(table) == 1 or REPEATS * len(table) <= values.size
        if len(table) <= TABLE_SIZE and repeats:
            reference["table"] = [float(np.float32(value)) for value in table]
            if len(table) > 1:
                reference["at"] = self._place(series(index).astype(np.uint8).tobytes())
        elif bits == 32 or is_whole:
            reference |= {"bits": 32, "at": self._place(series(values).astype("<f4").tobytes())}
        else:
            low, step = table[0], (table[-1] - table[0]) / (2**bits - 1)
            levels = np.rint((values - low) / step).astype(np.int64)
            changes = np.diff(levels, axis=0, prepend=0) % 2**bits
            planes = b""
            for shift in range(0, bits, 8):
                planes += series(changes >> shift & 255).astype(np.uint8).tobytes()
            reference |= {"bits": bits, "low": float(low), "step": float(step)}
            reference["at"] = self._place(planes)
        return reference

    def text(self) -> str:
        """The block of bytes: zlib, then base64."""
        return base64.b64encode(zlib.compress(bytes(self._bytes), 9)).decode("ascii")

    def _place(self, content: bytes) -> int:
        """The place where these bytes begin; a multiple of four, as arrays of floats need."""
        digest = hashlib.sha256(content).digest()
        if digest not in self._places:
            self._bytes += b"\0" * (-len(self._bytes) % 4)
            self._places[digest] = len(self._bytes)
            self._bytes += content
        return self._places[digest]
