"""TensorBoard's records: data between its length and checksums.

A checksum byte by byte costs Python half a millisecond per event, most of what logging an iteration
costs; it is linear in the bytes, so NumPy takes 64 times 64 of them at once.
"""

import functools
import struct

import numpy as np

LANE = 64  # bytes; and lanes of a block
BLOCK = LANE * LANE
POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


def record(data: bytes) -> bytes:
    """One piece of an event file: u64 length, its masked checksum, the data, their masked checksum."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        (
            length,
            struct.pack("<I", _masked(crc32c(length))),
            data,
            struct.pack("<I", _masked(crc32c(data))),
        )
    )


def crc32c(data: bytes) -> int:
    """The CRC-32C checksum (RFC 3309) of some bytes."""
    single, within, across = _tables()
    state = 0xFFFFFFFF
    for begin in range(0, len(data), BLOCK):
        block = data[begin : begin + BLOCK]
        if len(block) < LANE:
            for byte in block:
                state = int(single[(state ^ byte) & 0xFF]) ^ (state >> 8)
            continue
        # Zeros in front leave a zero state as it is, and a state acts as if it were added to the
        # first four bytes.
        values = np.zeros(BLOCK, np.uint8)
        own = values[BLOCK - len(block) :]
        own[:] = np.frombuffer(block, np.uint8)
        own[:4] ^= np.frombuffer(struct.pack("<I", state), np.uint8)
        lanes = np.bitwise_xor.reduce(within[np.arange(LANE), values.reshape(LANE, LANE)], axis=1)
        parts = across[np.arange(LANE)[:, None], np.arange(4), _bytes_of(lanes)]
        state = int(np.bitwise_xor.reduce(parts, axis=None))
    return state ^ 0xFFFFFFFF


def _masked(checksum: int) -> int:
    """As the format wants it, so that a checksum of a checksum is nothing special."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@functools.lru_cache(maxsize=1)
def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a byte adds to the state at the end of what it stands in.

    Returns:
        single: u32[256], of a byte by itself.
        within: u32[64, 256], of a byte by its place in a lane.
        across: u32[64, 4, 256], of each byte of a lane's state by the lane's place in a block.
    """
    single = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        single = (single >> 1) ^ np.where(single & 1, np.uint32(POLYNOMIAL), np.uint32(0))

    within = [single]
    for _ in range(LANE - 1):
        within.append(_past_a_byte(single, within[-1]))

    states = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])
    past_a_lane = states
    for _ in range(LANE):
        past_a_lane = _past_a_byte(single, past_a_lane)
    across = [states]
    for _ in range(LANE - 1):
        across.append(
            np.bitwise_xor.reduce(past_a_lane[np.arange(4), _bytes_of(across[-1])], axis=-1)
        )
    return single, np.stack(within[::-1]), np.stack(across[::-1])


def _past_a_byte(single: np.ndarray, states: np.ndarray) -> np.ndarray:
    """The states one zero byte later."""
    return single[states & 0xFF] ^ (states >> 8)


def _bytes_of(states: np.ndarray) -> np.ndarray:
    """u32[...] as their bytes, lowest first: u8[..., 4]."""
    return states.astype("<u4")[..., None].view(np.uint8)
