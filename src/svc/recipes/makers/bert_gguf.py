"""Converts a BERT sentence encoder with mean pooling to GGUF with 8-bit weights, for llama.cpp.

sources: model.safetensors (https://github.com/huggingface/safetensors#format) with float32, vocab.txt, config.json
GGUF:    header, key-value pairs, tensor infos, tensors (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)

A matrix is stored as Q8_0: blocks of 32 weights, each a float16 scale and 32 signed bytes. Vectors, positions and token
types stay float32. The names of keys and tensors are those of llama.cpp's architecture `bert`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

ALIGNMENT_BYTES: Final = 32
BLOCK_WEIGHTS: Final = 32
FILE_TYPE_Q8_0: Final = 7
TENSOR_F32: Final = 0
TENSOR_Q8_0: Final = 8
POOLING_MEAN: Final = 1
TOKEN_NORMAL: Final = 1
TOKEN_CONTROL: Final = 3
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9

EMBEDDINGS: Final = {
    "word_embeddings.weight": "token_embd.weight",
    "position_embeddings.weight": "position_embd.weight",
    "token_type_embeddings.weight": "token_types.weight",
    "LayerNorm.weight": "token_embd_norm.weight",
    "LayerNorm.bias": "token_embd_norm.bias",
}
LAYERS: Final = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
FLOAT32_TENSORS: Final = frozenset({"position_embd.weight", "token_types.weight"})
SPECIAL_TOKENS: Final = {
    "bos": "[CLS]",
    "eos": "[SEP]",
    "unknown": "[UNK]",
    "seperator": "[SEP]",  # the key is misspelled in the format
    "padding": "[PAD]",
    "cls": "[CLS]",
    "mask": "[MASK]",
}


def make(weights: bytes, vocabulary: bytes, config: bytes) -> bytes:
    """Return the GGUF file. Raises KeyError and ValueError if the sources are not such a model."""
    settings = json.loads(config)
    if settings.get("model_type") != "bert" or settings.get("hidden_act") != "gelu":
        raise ValueError("config.json is not that of a BERT with GELU")
    pairs = [*_model_pairs(settings), *_tokenizer_pairs(vocabulary.decode().removesuffix("\n").split("\n"), settings)]
    infos, tensors, offset = [], [], 0
    for name, shape, raw in _read_tensors(weights, settings["num_hidden_layers"]):
        quantize = len(shape) == 2 and name not in FLOAT32_TENSORS
        data = _pad(_quantize(raw) if quantize else raw)
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos.append(_string(name) + dimensions + struct.pack("<IQ", TENSOR_Q8_0 if quantize else TENSOR_F32, offset))
        tensors.append(data)
        offset += len(data)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(pairs))
    return b"".join([_pad(b"".join([head, *pairs, *infos])), *tensors])


def _model_pairs(settings: dict[str, Any]) -> Iterator[bytes]:
    yield _pair("general.architecture", STRING, _string("bert"))
    yield _pair("general.file_type", U32, struct.pack("<I", FILE_TYPE_Q8_0))
    numbers = {
        "context_length": settings["max_position_embeddings"],
        "embedding_length": settings["hidden_size"],
        "feed_forward_length": settings["intermediate_size"],
        "block_count": settings["num_hidden_layers"],
        "attention.head_count": settings["num_attention_heads"],
        "pooling_type": POOLING_MEAN,
    }
    for key, number in numbers.items():
        yield _pair(f"bert.{key}", U32, struct.pack("<I", number))
    yield _pair("bert.attention.layer_norm_epsilon", F32, struct.pack("<f", settings["layer_norm_eps"]))
    yield _pair("bert.attention.causal", BOOL, b"\0")


def _tokenizer_pairs(tokens: list[str], settings: dict[str, Any]) -> Iterator[bytes]:
    if len(tokens) != settings["vocab_size"]:
        raise ValueError("vocab.txt and config.json have different numbers of tokens")
    special = frozenset(SPECIAL_TOKENS.values())
    types = [TOKEN_CONTROL if token in special else TOKEN_NORMAL for token in tokens]
    yield _pair("tokenizer.ggml.model", STRING, _string("bert"))
    yield _pair("tokenizer.ggml.pre", STRING, _string("default"))
    yield _pair("tokenizer.ggml.token_type_count", U32, struct.pack("<I", settings["type_vocab_size"]))
    texts = [_string(token if token in special else _mark_word_start(token)) for token in tokens]
    yield _pair("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, len(texts)) + b"".join(texts))
    yield _pair("tokenizer.ggml.token_type", ARRAY, struct.pack(f"<IQ{len(types)}i", I32, len(types), *types))
    for key, token in SPECIAL_TOKENS.items():
        yield _pair(f"tokenizer.ggml.{key}_token_id", U32, struct.pack("<I", tokens.index(token)))


def _mark_word_start(token: str) -> str:
    """WordPiece marks the tokens that continue a word, and llama.cpp those that start one."""
    return token[2:] if token.startswith("##") else f"\u2581{token}"


def _read_tensors(weights: bytes, layer_count: int) -> Iterator[tuple[str, list[int], bytes]]:
    """Return the name, shape and bytes of each tensor of the encoder."""
    (head_bytes,) = struct.unpack_from("<Q", weights)
    entries = json.loads(weights[8 : 8 + head_bytes])
    names = {f"embeddings.{name}": target for name, target in EMBEDDINGS.items()}
    for layer in range(layer_count):
        for name, target in LAYERS.items():
            for part in ("weight", "bias"):
                names[f"encoder.layer.{layer}.{name}.{part}"] = f"blk.{layer}.{target}.{part}"
    for name, target in names.items():
        entry = entries[name]
        if entry["dtype"] != "F32":
            raise ValueError(f"{name} is not float32")
        start, end = (8 + head_bytes + offset for offset in entry["data_offsets"])
        if end > len(weights):
            raise ValueError("model.safetensors is truncated")
        yield target, entry["shape"], weights[start:end]


def _quantize(raw: bytes) -> bytes:
    blocks = bytearray()
    for weights in struct.iter_unpack(f"<{BLOCK_WEIGHTS}f", raw):
        scale = max(max(weights), -min(weights)) / 127
        factor = 1 / scale if scale else 0.0
        blocks += struct.pack(f"<e{BLOCK_WEIGHTS}b", scale, *[round(weight * factor) for weight in weights])
    return bytes(blocks)


def _pair(key: str, value_type: int, value: bytes) -> bytes:
    return _string(key) + struct.pack("<I", value_type) + value


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT_BYTES)
