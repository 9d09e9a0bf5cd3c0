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


def with_chat_template(data: bytes, template: str) -> bytes:
    """Return a GGUF model of version 3 with another chat template."""
    offset, tensors, entries = 24, *struct.unpack_from("<QQ", data, 8)
    before = data[:offset]
    kept = []
    for _ in range(entries):
        start = offset
        (length,) = struct.unpack_from("<Q", data, offset)
        key = data[offset + 8 : offset + 8 + length]
        offset = _skip(data, offset + 12 + length, struct.unpack_from("<I", data, offset + 8 + length)[0])
        entry = data[start:offset]
        kept.append(entry if key != b"tokenizer.chat_template" else _string(key.decode()) + _value(template))
    start = offset
    for _ in range(tensors):
        offset += 8 + struct.unpack_from("<Q", data, offset)[0]
        offset += 4 + 8 * struct.unpack_from("<I", data, offset)[0] + 12
    head = before + b"".join(kept) + data[start:offset]
    return head + bytes(-len(head) % 32) + data[offset + -offset % 32 :]


def _skip(data: bytes, offset: int, kind: int) -> int:
    """Return the offset after a value."""
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    if kind in sizes:
        return offset + sizes[kind]
    if kind == STRING:
        return offset + 8 + int(struct.unpack_from("<Q", data, offset)[0])
    item, length = struct.unpack_from("<IQ", data, offset)
    offset += 12
    if item in sizes:
        return offset + sizes[item] * int(length)
    for _ in range(length):
        offset = _skip(data, offset, item)
    return offset
