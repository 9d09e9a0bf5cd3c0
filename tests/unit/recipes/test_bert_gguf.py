"""svc.recipes.makers.bert_gguf. tests/e2e/test_local_embeddings.py compares llama.cpp's vectors with a reference."""

import json
import struct

import numpy as np
import pytest
from tests.fakes import bert

from svc.recipes.makers import bert_gguf


def test_bert_gguf_weights_are_within_quantization_error() -> None:
    made = bert_gguf.make(*bert.sources())
    magic, version, tensor_count, pair_count = struct.unpack_from("<4sIQQ", made)
    assert (magic, version, tensor_count, pair_count) == (b"GGUF", 3, 5 + 16 * bert.LAYERS, 22)
    assert len(made) % bert_gguf.ALIGNMENT_BYTES == 0
    words = bert.tensors()["embeddings.word_embeddings.weight"]
    at = made.index(b"token_embd.weight") + len(b"token_embd.weight")
    dimensions, columns, rows, kind, offset = struct.unpack_from("<IQQIQ", made, at)
    assert (dimensions, columns, rows, kind, offset) == (2, bert.HIDDEN, len(bert.TOKENS), bert_gguf.TENSOR_Q8_0, 0)
    blocks = np.frombuffer(
        made, np.dtype([("scale", "<f2"), ("weights", "i1", 32)]), words.size // 32, _data_start(made)
    )
    restored = (blocks["scale"].astype("f4")[:, None] * blocks["weights"]).reshape(words.shape)
    assert np.abs(restored - words).max() < np.abs(words).max() / 127


def _data_start(made: bytes) -> int:
    """The last tensor info is the one of the last layer's normalization. The data follow at a multiple of 32."""
    name = f"blk.{bert.LAYERS - 1}.layer_output_norm.bias".encode()
    end = made.index(name) + len(name) + struct.calcsize("<IQIQ")
    return end + -end % bert_gguf.ALIGNMENT_BYTES


def test_bert_gguf_zero_weights_stay_zero() -> None:
    assert bert_gguf._quantize(bytes(4 * 32)) == bytes(34)


@pytest.mark.parametrize(
    "config", [{"model_type": "roberta"}, {"hidden_act": "relu"}, {"vocab_size": 3}], ids=["type", "act", "vocab"]
)
def test_bert_gguf_other_model_raises_value_error(config: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"config\.json"):
        bert_gguf.make(*bert.sources(**config))


def test_bert_gguf_missing_or_truncated_tensors_raise() -> None:
    weights, vocabulary, config = bert.sources()
    with pytest.raises(KeyError):
        bert_gguf.make(weights, vocabulary, json.dumps({**bert.CONFIG, "num_hidden_layers": 3}).encode())
    with pytest.raises(ValueError, match="truncated"):
        bert_gguf.make(weights[:-4], vocabulary, config)
    with pytest.raises(ValueError, match="float32"):
        bert_gguf.make(weights.replace(b'"F32"', b'"F16"'), vocabulary, config)
