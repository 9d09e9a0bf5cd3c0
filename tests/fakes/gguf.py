"""Writes small GGUF files for tests, after the description of the format, and not with the code under test."""

from __future__ import annotations

import struct
from collections.abc import Mapping

STRING, UINT32, ARRAY, FLOAT32 = 8, 4, 9, 0
LLAMA: Mapping[str, object] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "general.license": "mit",
    "llama.context_length": 4096,
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": [2, 1],
    "tokenizer.ggml.tokens": ["a", "b"],
    "tokenizer.chat_template": "{{ messages }}",
}
BERT: Mapping[str, object] = {"general.architecture": "bert", "bert.context_length": 512, "bert.pooling_type": 1}


def gguf(values: Mapping[str, object] = LLAMA, weights: int = 256, version: int = 3) -> bytes:
    """Return a file with one tensor of `weights` numbers."""
    entries = b"".join(_string(key) + _value(value) for key, value in values.items())
    tensor = _string("w") + struct.pack("<IQIQ", 1, weights, FLOAT32, 0)
    head = b"GGUF" + struct.pack("<IQQ", version, 1, len(values)) + entries + tensor
    return head + bytes(-len(head) % 32) + bytes(4 * weights)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value)
    assert isinstance(value, list)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
    return struct.pack("<IIQ", ARRAY, UINT32, len(value)) + b"".join(struct.pack("<I", each) for each in value)
