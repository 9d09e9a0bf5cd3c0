"""tokens.txt out of a Piper voice's JSON: what sherpa-onnx reads, a phoneme and its number in each line."""

from __future__ import annotations

import json


def make(config: bytes) -> bytes:
    """Raises ValueError, KeyError for a configuration that is not Piper's."""
    numbers = json.loads(config)["phoneme_id_map"]
    return "".join(f"{phoneme} {places[0]}\n" for phoneme, places in numbers.items()).encode()
