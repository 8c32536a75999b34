"""Arrays packed for a page are the arrays that were given, as finely as their bits allow."""

import base64
import zlib

import numpy as np
import pytest

from jaxrl.replay.packing import Packer


def unpacked(reference, text):
    """What player.js makes of a reference: [T, ...], written from the description of the format."""
    block, (times, *rest) = zlib.decompress(base64.b64decode(text)), reference["shape"]
    size = times * int(np.prod(rest))
    at = reference.get("at")
    if "table" in reference:
        index = np.frombuffer(block, np.uint8, size, at) if at is not None else np.zeros(size, int)
        series = np.array(reference["table"])[index]
    elif reference["bits"] == 32:
        series = np.frombuffer(block, "<f4", size, at)
    else:
        planes = np.frombuffer(block, np.uint8, size * reference["bits"] // 8, at)
        changes = sum(
            plane.astype(int) << 8 * i for i, plane in enumerate(planes.reshape(-1, size))
        )
        levels = np.cumsum(changes.reshape(*rest, times), axis=-1) % 2 ** reference["bits"]
        series = reference["low"] + reference["step"] * levels
    return np.moveaxis(np.reshape(series, (*rest, times)), -1, 0)


def repacked(values, bits=16):
    packer = Packer()
    reference = packer.add(values, bits)
    return unpacked(reference, packer.text()), reference


@pytest.mark.parametrize("bits", [8, 16])
def test_numbers_come_back_within_half_a_quantum(bits):
    values = np.random.default_rng(0).normal(size=(300, 5, 2)).cumsum(axis=0)
    found, reference = repacked(values, bits)
    quantum = np.ptp(values) / (2**bits - 1)
    assert reference["step"] == pytest.approx(quantum)
    assert np.abs(found - values).max() <= 0.5 * quantum * (1 + 1e-6)


def test_few_different_values_and_all_integers_come_back_exactly():
    cells = np.random.default_rng(0).integers(0, 10, (100, 3, 2)) + 0.5
    np.testing.assert_array_equal(repacked(cells)[0], cells)
    numbers = np.arange(1000).reshape(500, 2) ** 2
    np.testing.assert_array_equal(repacked(numbers)[0], numbers)
    flags = cells[..., 0] > 5
    np.testing.assert_array_equal(repacked(flags)[0], flags)


def test_floats_come_back_exactly_with_32_bits():
    rewards = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)
    np.testing.assert_array_equal(repacked(rewards, 32)[0], rewards)


def test_what_never_changes_is_stored_for_one_time_and_one_value_without_a_byte():
    found, reference = repacked(np.full((50, 3), 7.5))
    assert reference == {"shape": [1, 3], "table": [7.5]}
    np.testing.assert_array_equal(found, np.full((1, 3), 7.5))


@pytest.mark.parametrize("shape", [(10, 0, 2), (1, 1), (1,)])
def test_arrays_without_shapes_and_of_one_state_can_be_stored(shape):
    assert repacked(np.ones(shape))[0].shape in (shape, (1, *shape[1:]))


def test_equal_arrays_share_their_bytes():
    packer, values = Packer(), np.random.default_rng(0).normal(size=(1000, 2))
    first, second = packer.add(values), packer.add(values.copy())
    assert first == second
    assert len(base64.b64decode(packer.text())) < 4200  # of one array; two would be 8,000
