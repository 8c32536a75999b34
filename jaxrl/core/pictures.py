"""Pictures among logged values: which arrays are pictures, and their PNG."""

import io
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.frozen import is_array

CHANNELS = (1, 3, 4)  # grey, colours, colours with opacity


def is_picture(value: Any) -> bool:
    """Returns whether a value is u8[H, W, C] or f[H, W, C] with 1, 3 or 4 channels.

    As in RLlib, the channels may be first as well.
    """
    if not is_array(value) or np.ndim(value) != 3:
        return False
    kind = np.dtype(value.dtype)
    return bool({value.shape[0], value.shape[2]} & {*CHANNELS}) and (
        kind == np.uint8 or kind.kind == "f"
    )


def picture(what: str, value: Any) -> np.ndarray:
    """An array as a picture u8[H, W, C], its channels last.

    Args:
        what: the name of the value, for the error.
        value: u8, or floats in [0, 1].

    Raises:
        UsageError: it is no picture.
    """
    if not is_picture(value):
        raise UsageError(
            f"{what} must be a picture u8[height, width, 3], or floats in [0, 1], not "
            f"{value.dtype}{list(value.shape)}"
        )
    pixels = np.asarray(value)
    if pixels.shape[2] not in CHANNELS:
        pixels = np.moveaxis(pixels, 0, 2)
    if pixels.dtype != np.uint8:
        pixels = np.clip(np.nan_to_num(pixels) * 255, 0, 255).round()
    return np.array(pixels, np.uint8)  # a copy: simulators paint over their frames


def png(pixels: np.ndarray) -> bytes:
    """The PNG file of a picture u8[H, W, C]."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()
