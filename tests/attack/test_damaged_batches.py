"""RLlib's batches from strangers: no pickle runs code, and damage is refused in one line."""

import os
import pickle
import random
import struct
import tracemalloc

import numpy as np
import pytest

from jaxrl.core.errors import UsageError
from jaxrl.episodes.packed_arrays import Unpacker, unpickle
from jaxrl.episodes.parquet import read_episodes
from tests.episodes.rllib_batch_files import batch, line, packed, written


class Runs:
    """Its pickle calls a function."""

    def __init__(self, call, *arguments):
        self.called = call, arguments

    def __reduce__(self):
        return self.called


def nested(depth):
    """A tuple in tuples, each twice in the next: a few bytes that stand for 2^depth parts."""
    part = (np.zeros(1),)
    for _ in range(depth):
        part = (part, part)
    return part


def doubled(depth):
    """`nested` of a text, as opcodes that refer to the tuple before."""
    part = b"\x8c\x01a\x94"
    for place in range(depth):
        part += b"h" + bytes([place]) + b"\x86\x94"
    return part


FORGED = {
    "a program": Runs(os.mkdir, "ran"),
    "an evaluated text": Runs(eval, "__import__('os').mkdir('ran')"),
    "a function of NumPy's": Runs(np.save, "ran", 1),
    "objects": np.array([Runs(os.mkdir, "ran")]),
    "a type with fields": np.zeros(2, [("x", "f4")]),
    "texts": np.array(["a"]),
    "one tuple twice": nested(40),
    "no array": {"x": [1.0]},
    "a shape of more than its bytes": pickle.dumps(np.zeros(77), 4).replace(b"KM", b"KN", 1),
    "a state of a stand-in's class": b"\x80\x04cnumpy\nndarray\nN\x85b.",
    "a place beyond the end": b"\x80\x04Nr" + struct.pack("<I", 2**32 - 1) + b".",
    "a length beyond the end": b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b".",
    "a name of an extension": b"\x80\x04\x82\x01.",
    "something outside": b"\x80\x04Vx\nQ.",
    "a text of a type that doubles": b"\x80\x04cnumpy\ndtype\n(K\x01" + b"2\x86" * 40 + b"tR.",
    "a type named by a tuple": b"\x80\x04cnumpy\ndtype\n(K\x01\x85tR.",
    "a key that doubles": b"\x80\x04}K\x01" + b"2\x86" * 40 + b"K\x01s.",
    "a key that doubles by its places": b"\x80\x04}" + doubled(40) + b"K\x01s.",
    "a key that is no text": pickle.dumps({1: np.zeros(1)}),
    "millions of lists": b"\x80\x04" + b"]" * 5_000_000 + b".",
    "nothing": b"",
}


@pytest.mark.parametrize("what", FORGED)
def test_a_pickle_of_anything_but_arrays_of_numbers_is_refused_and_runs_nothing(
    what, tmp_path, monkeypatch
):
    forged = FORGED[what]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="it holds no arrays of numbers: ") as error:
        unpickle(forged if isinstance(forged, bytes) else pickle.dumps(forged))
    assert "\n" not in str(error.value) and os.listdir() == []


def test_a_pickle_with_a_flipped_bit_is_refused_or_holds_arrays_of_numbers():
    rng, whole = random.Random(0), pickle.dumps({"x": np.arange(4.0), "y": np.zeros((2, 3))}, 5)
    num_refused = 0
    for _ in range(2000):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        try:
            found = unpickle(bytes(damaged))
            assert all(leaf.dtype.kind in "biuf" for leaf in found.values())
        except ValueError:
            num_refused += 1
    assert num_refused > 500


def test_a_line_with_a_flipped_bit_is_refused_in_one_line_or_holds_episodes(tmp_path):
    rng, text = random.Random(0), line(batch(0, 5)).encode()
    path, num_refused = tmp_path / "output-a.json", 0
    for _ in range(300):
        damaged = bytearray(text)
        damaged[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            assert sum(map(len, read_episodes(path))) <= 5
        except UsageError as error:
            assert "\n" not in str(error) and "output-a.json, line" in str(error)
            num_refused += 1
    assert num_refused > 100


def test_a_pickle_of_many_opcodes_is_refused_before_it_is_read():
    tracemalloc.start()
    with pytest.raises(ValueError, match="its opcode 10,001, is none of those of arrays"):
        unpickle(b"\x80\x04" + b"}" * 5_000_000 + b".")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24  # the text itself is 5 MB


def test_packed_columns_share_their_part_of_the_memory(monkeypatch):
    pytest.importorskip("lz4", reason="the extra `offline`")
    monkeypatch.setattr("jaxrl.episodes.packed_arrays.host_memory", lambda: 2**22)
    unpacker, shared = Unpacker(), np.zeros(2**16)  # half a MiB, and 1 for all
    unpacker.unpack(packed(shared))
    with pytest.raises(ValueError, match="holds more than 1 MiB with those before it"):
        unpacker.unpack(packed(shared))
    with pytest.raises(ValueError, match="holds more than 1 MiB"):
        Unpacker().unpack(packed((shared, shared, shared)))  # whose bytes are there once


def test_a_line_of_many_packed_columns_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("lz4", reason="the extra `offline`")
    monkeypatch.setattr("jaxrl.episodes.packed_arrays.host_memory", lambda: 2**22)
    parts = {str(i): packed(np.zeros((1, 2**15))) for i in range(5)}
    with pytest.raises(UsageError, match=r"line 1: column 'obs': .* more than 1 MiB"):
        list(read_episodes(written(tmp_path, line(batch(0, 1, obs=parts)))))


def test_packed_columns_that_unpack_to_more_than_the_memory_are_refused(monkeypatch):
    pytest.importorskip("lz4", reason="the extra `offline`")
    monkeypatch.setattr("jaxrl.episodes.packed_arrays.host_memory", lambda: 2**20)
    with pytest.raises(ValueError, match="it is cut, or holds more than"):
        Unpacker().unpack(packed(np.zeros(2**20)))


def test_a_line_of_more_than_its_share_of_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxrl.episodes.rllib_batches.host_memory", lambda: 2**15)
    with pytest.raises(UsageError, match=r"line 1 has .* or more, a 32nd of the memory"):
        list(read_episodes(written(tmp_path, line(batch(0, 100)))))
