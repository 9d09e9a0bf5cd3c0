"""A voice's ONNX model with the properties that sherpa-onnx reads, out of Piper's own model and its JSON.

A model is one protobuf message, and a message with more fields behind it is the same message with these fields:
field 14 of the model is a property, with its name in field 1 and its value in field 2.
"""

from __future__ import annotations

import json


def make(model: bytes, config: bytes) -> bytes:
    """Raises ValueError, KeyError for a configuration that is not Piper's."""
    about = json.loads(config)
    properties = {
        "model_type": "vits",
        "comment": "piper",
        "language": about.get("language", {}).get("name_english", "English"),
        "voice": about["espeak"]["voice"],
        "has_espeak": "1",
        "n_speakers": str(about["num_speakers"]),
        "sample_rate": str(about["audio"]["sample_rate"]),
    }
    pairs = (_field(1, name.encode()) + _field(2, value.encode()) for name, value in properties.items())
    return model + b"".join(_field(14, pair) for pair in pairs)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + _varint(high) if high else bytes([low])
