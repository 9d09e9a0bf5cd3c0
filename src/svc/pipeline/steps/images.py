"""Decodes and resizes images with Pillow, with size limits. Arrays are height × width × channels of bytes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from svc.errors import InvalidRequest
from svc.pipeline.steps.schema import Resize

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "PPM")
MAX_IMAGE_PIXELS = 1 << 26
_RESAMPLING_FILTERS = {
    "Nearest": Image.Resampling.NEAREST,
    "Bilinear": Image.Resampling.BILINEAR,
    "Bicubic": Image.Resampling.BICUBIC,
}


def decode_image(data: bytes, channels: int) -> NDArray[Any]:
    """Decode an image upright: greyscale for 1 channel, else RGB. Raises InvalidRequest if it cannot be decoded."""
    try:
        image = Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
        if image.width * image.height > MAX_IMAGE_PIXELS:
            raise InvalidRequest(f"The image has more than {MAX_IMAGE_PIXELS >> 20} million pixels.")
        upright = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidRequest(f"The image cannot be decoded ({', '.join(IMAGE_FORMATS)}): {error}.") from None
    pixels = np.asarray(upright)
    return pixels[:, :, None] if channels == 1 else pixels


def resize_image(pixels: NDArray[Any], step: Resize) -> NDArray[Any]:
    """Resize the image to the size of the step. Does not keep its proportions."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    resized = np.asarray(image.resize((step.width, step.height), _RESAMPLING_FILTERS[step.interpolation]))
    return resized[:, :, None] if resized.ndim == 2 else resized
