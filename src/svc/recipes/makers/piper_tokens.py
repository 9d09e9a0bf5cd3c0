"""Converts the JSON of a Piper voice to a tokens.txt for sherpa-onnx: a phoneme and its number per line."""

from __future__ import annotations

import json


def make(config: bytes) -> bytes:
    """Return the tokens. Raises ValueError and KeyError if `config` is not Piper's."""
    numbers = json.loads(config)["phoneme_id_map"]
    return "".join(f"{phoneme} {ids[0]}\n" for phoneme, ids in numbers.items()).encode()
