"""Arrays as RLlib packs them into JSON: base64 of lz4 of a pickle, read without running any of it.

A pickle may name any function, to be called when it is read. Here four of NumPy's names have
stand-ins, which NumPy's own code never sees, and all others are refused. An array is made of its
bytes alone, and holds numbers or flags.
"""

import base64
import io
import pickle
import pickletools
import re
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from jaxrl.core.errors import one_line, require
from jaxrl.core.machine import GIB, host_memory, in_units
from jaxrl.episodes.values import Nested, leaves

NUMBERS = re.compile("b1|[iu][1248]|f[248]")
# What damaged text, blocks and pickles raise.
DAMAGE = (
    *(ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError, EOFError),
    *(MemoryError, pickle.UnpicklingError),
)
MOST_OPCODES = 10_000  # of a pickle; an array takes about 30
OBJECT_BYTES = 500  # of an array without its numbers
# Those of arrays in dicts and tuples.
OPCODES = {
    *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT"),
    *("BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS"),
    *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BININT", "BININT1", "BININT2", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINBYTES", "SHORT_BINBYTES", "BYTEARRAY8"),
}
# Those of what is referred to again. Containers are not: a few bytes of tuples, each of them twice
# in the next, stand for billions of parts, and as a key in a dict they are hashed when it is read.
SHARED = {
    *("GLOBAL", "STACK_GLOBAL", "REDUCE"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
}


class Unpacker:
    """Reads packed columns, which take a quarter of the machine's memory together."""

    def __init__(self):
        self._most = self._left = (host_memory() or 8 * GIB) // 4

    def unpack(self, text: str) -> Nested:
        """The arrays of a packed column, in dicts and tuples.

        Raises:
            UsageError: lz4 is not installed.
            ValueError: damaged, too large, or a pickle of something else.
        """
        require("lz4", "reading RLlib's packed columns", "lz4")
        import lz4.frame

        try:
            block = lz4.frame.LZ4FrameDecompressor()
            data = base64.b64decode(text, validate=True)
            data = block.decompress(data, max_length=max(self._left, 1))
        except DAMAGE as error:
            raise ValueError(f"it cannot be unpacked: {one_line(error)}") from None
        if block.eof:
            arrays = unpickle(data)
            size = sum(leaf.nbytes + OBJECT_BYTES for leaf in leaves(arrays))
            self._left -= max(len(data), size)
        if not block.eof or self._left < 0:
            most = in_units(self._most)
            raise ValueError(f"it is cut, or holds more than {most} with those before it")
        return arrays


def unpickle(data: bytes) -> Nested:
    """The arrays of a pickle, in dicts and tuples; nothing that it names is imported or called.

    Raises:
        ValueError: it is damaged, or holds something else.
    """
    try:
        _check_opcodes(data)
        return _arrays_of(_Unpickler(io.BytesIO(data)).load())
    except DAMAGE as error:
        raise ValueError(f"it holds no arrays of numbers: {one_line(error)}") from None


def _check_opcodes(data: bytes) -> None:
    """Raises ValueError where a reader in C might take memory or time that no arrays need."""
    memo, last = {}, ""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        name = opcode.name
        if name not in OPCODES or count == MOST_OPCODES:
            raise ValueError(f"{name}, its opcode {count + 1:,}, is none of those of arrays")
        if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            place = len(memo) if argument is None else argument
            if place > MOST_OPCODES:
                raise ValueError("a place beyond its end")
            memo[place] = last
        if name in ("BINGET", "LONG_BINGET") and memo.get(argument) not in SHARED:
            raise ValueError("a part of it is there twice")
        last = name


class _Type:
    """Stands for `numpy.dtype`: the text of a type and its order of bytes."""

    __slots__ = ("order", "text")

    def __init__(self, text: str, *_: Any):
        self.text, self.order = _short(text), "<"

    def __setstate__(self, state: Sequence) -> None:
        self.order = _short(state[1])


def _short(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError(f"a type is named by a {type(text).__name__}")
    return text[:20]


class _Array:
    """Stands for an array, of which NumPy's function `_reconstruct` makes an empty one."""

    __slots__ = ("values",)

    def __init__(self, *_: Any):
        self.values = None

    def __setstate__(self, state: Sequence) -> None:
        _, shape, dtype, is_fortran, data = state
        self.values = _array(data, dtype, shape, "F" if is_fortran else "C")


class _Buffer(_Array):
    """Stands for NumPy's function `_frombuffer`, of protocol 5."""

    __slots__ = ()

    def __init__(self, *state: Any):
        self.values = _array(*state)


def _array(data: bytes, dtype: _Type, shape: tuple, order: str) -> np.ndarray:
    if not NUMBERS.fullmatch(dtype.text) or dtype.order not in ("<", "|"):
        raise ValueError(f"its type is {dtype.order}{dtype.text}")
    return np.frombuffer(data, f"<{dtype.text}").reshape(shape, order=order)


STAND_INS = {"ndarray": _Array, "dtype": _Type, "_reconstruct": _Array, "_frombuffer": _Buffer}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if module.partition(".")[0] != "numpy" or name not in STAND_INS:
            raise pickle.UnpicklingError(f"{module}.{name} is named, which may run any code")
        return STAND_INS[name]

    def persistent_load(self, _: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside")


def _arrays_of(part: Any) -> Nested:
    """The arrays in dicts and tuples."""
    if isinstance(part, _Array) and part.values is not None:
        return part.values
    if not isinstance(part, dict | tuple) or not part:
        raise ValueError(f"a part of it is a {type(part).__name__}")
    if isinstance(part, tuple):
        return tuple(map(_arrays_of, part))
    for name in part:
        if not isinstance(name, str):
            raise ValueError(f"a name in it is a {type(name).__name__}")
    return {name: _arrays_of(inner) for name, inner in part.items()}
