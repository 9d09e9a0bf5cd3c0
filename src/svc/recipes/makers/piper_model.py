"""Adds the properties that sherpa-onnx requires to the ONNX model of a Piper voice, from its JSON.

A model is one protobuf message (https://protobuf.dev/programming-guides/encoding/), so fields can be appended. Field 14
of a model is a property, with its name in field 1 and its value in field 2.
"""

from __future__ import annotations

import json


def make(model: bytes, config: bytes) -> bytes:
    """Return the model with the properties. Raises ValueError and KeyError if `config` is not Piper's."""
    config_json = json.loads(config)
    properties = {
        "model_type": "vits",
        "comment": "piper",
        "language": config_json.get("language", {}).get("name_english", "English"),
        "voice": config_json["espeak"]["voice"],
        "has_espeak": "1",
        "n_speakers": str(config_json["num_speakers"]),
        "sample_rate": str(config_json["audio"]["sample_rate"]),
    }
    encoded_properties = (
        _encode_field(1, name.encode()) + _encode_field(2, value.encode()) for name, value in properties.items()
    )
    return model + b"".join(_encode_field(14, pair) for pair in encoded_properties)


def _encode_field(number: int, data: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(data)) + data


def _encode_varint(value: int) -> bytes:
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + _encode_varint(high) if high else bytes([low])
