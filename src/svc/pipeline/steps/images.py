"""Images from files, by Pillow: decoded with limits, as height × width × channels of bytes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from svc.errors import InvalidRequest
from svc.pipeline.steps.described import Resize

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "PPM")
MAX_PIXELS = 1 << 26
_WAYS = {
    "Nearest": Image.Resampling.NEAREST,
    "Bilinear": Image.Resampling.BILINEAR,
    "Bicubic": Image.Resampling.BICUBIC,
}


def decode(data: bytes, channels: int) -> NDArray[Any]:
    """With 1 channel in grey, else in red, green and blue; upright. Raises InvalidRequest for what is no image."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise InvalidRequest(f"The image has more than {MAX_PIXELS >> 20} million pixels.")
        upright = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidRequest(f"This is no image that can be read ({', '.join(FORMATS)}): {error}.") from None
    pixels = np.asarray(upright)
    return pixels[:, :, None] if channels == 1 else pixels


def resize(pixels: NDArray[Any], step: Resize) -> NDArray[Any]:
    """In the step's size, whatever its proportions."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    made = np.asarray(image.resize((step.width, step.height), _WAYS[step.interpolation]))
    return made[:, :, None] if made.ndim == 2 else made
