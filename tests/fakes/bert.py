"""A tiny BERT sentence encoder with random weights, and what it computes."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np

HIDDEN, LAYERS, HEADS, INNER, CONTEXT = 64, 2, 2, 128, 128
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "gate", "##way", "count", "##s", "tok", "##en", "a", "."]
CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": CONTEXT,
    "type_vocab_size": 2,
    "vocab_size": len(TOKENS),
    "layer_norm_eps": 1e-12,
}
Array = np.ndarray[Any, Any]


def tensors() -> dict[str, Array]:
    random = np.random.default_rng(5)
    shapes = {
        "embeddings.word_embeddings.weight": (len(TOKENS), HIDDEN),
        "embeddings.position_embeddings.weight": (CONTEXT, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        "embeddings.LayerNorm.weight": (HIDDEN,),
        "embeddings.LayerNorm.bias": (HIDDEN,),
    }
    for layer in range(LAYERS):
        for name, shape in {
            "attention.self.query": (HIDDEN, HIDDEN),
            "attention.self.key": (HIDDEN, HIDDEN),
            "attention.self.value": (HIDDEN, HIDDEN),
            "attention.output.dense": (HIDDEN, HIDDEN),
            "attention.output.LayerNorm": (HIDDEN,),
            "intermediate.dense": (INNER, HIDDEN),
            "output.dense": (HIDDEN, INNER),
            "output.LayerNorm": (HIDDEN,),
        }.items():
            shapes[f"encoder.layer.{layer}.{name}.weight"] = shape
            shapes[f"encoder.layer.{layer}.{name}.bias"] = shape[:1]
    return {name: random.normal(0, 0.3, shape).astype("<f4") for name, shape in shapes.items()}


def sources(**config: Any) -> tuple[bytes, bytes, bytes]:
    """Return model.safetensors, vocab.txt and config.json."""
    entries, data = {}, b""
    for name, values in tensors().items():
        entries[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + values.nbytes],
        }
        data += values.tobytes()
    head = json.dumps(entries).encode()
    vocabulary = "".join(f"{token}\n" for token in TOKENS).encode()
    return struct.pack("<Q", len(head)) + head + data, vocabulary, json.dumps({**CONFIG, **config}).encode()


def embed(tokens: list[str]) -> Array:
    """Return the normalized vector of these tokens, in float32 weights."""
    weights = tensors()
    numbers = [TOKENS.index(token) for token in ["[CLS]", *tokens, "[SEP]"]]
    hidden = (
        weights["embeddings.word_embeddings.weight"][numbers]
        + weights["embeddings.position_embeddings.weight"][: len(numbers)]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    hidden = _normalize(hidden, weights, "embeddings.LayerNorm")
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        attended = _attend(hidden, weights, prefix)
        hidden = _normalize(
            hidden + _apply(attended, weights, prefix + "attention.output.dense"),
            weights,
            prefix + "attention.output.LayerNorm",
        )
        inner = _apply(hidden, weights, prefix + "intermediate.dense")
        inner = 0.5 * inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        hidden = _normalize(
            hidden + _apply(inner, weights, prefix + "output.dense"), weights, prefix + "output.LayerNorm"
        )
    mean: Array = hidden.mean(axis=0)
    return mean / np.linalg.norm(mean)


def _attend(hidden: Array, weights: dict[str, Array], prefix: str) -> Array:
    query, key, value = (
        _apply(hidden, weights, f"{prefix}attention.self.{name}").reshape(len(hidden), HEADS, -1).swapaxes(0, 1)
        for name in ("query", "key", "value")
    )
    scores = query @ key.swapaxes(1, 2) / math.sqrt(HIDDEN / HEADS)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return (shares @ value).swapaxes(0, 1).reshape(len(hidden), HIDDEN)


def _apply(hidden: Array, weights: dict[str, Array], name: str) -> Array:
    return hidden @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _normalize(hidden: Array, weights: dict[str, Array], name: str) -> Array:
    centred = hidden - hidden.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
