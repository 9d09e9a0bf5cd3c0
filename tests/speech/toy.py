"""A streaming model of a thousand bytes. It outputs the note of the loudest frequency band."""

import json
from pathlib import Path

import onnx
from onnx import TensorProto, helper

CHUNK = 8
"""Frames of 10 ms per chunk."""
LOUD = -8.0
"""A band has sound if the mean of its log-mel features is above this."""
NOTES = ("do", "re", "mi", "fa", "sol", "la", "ti", "ut")


def make(folder: Path) -> Path:
    """Write the model's folder in the form of NeMo streaming CTC models for sherpa-onnx."""
    folder.mkdir(parents=True)
    onnx.save(_model(), folder / "model.onnx")
    tokens = [*(f"\u2581{note}" for note in NOTES), "<blk>"]
    lines = (f"{token} {number}\n" for number, token in enumerate(tokens))
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
    metadata = {
        "name": "singer",
        "engine": "sherpa-online",
        "family": "nemo-ctc",
        "languages": ["en"],
        "files": {"model": "model.onnx", "tokens": "tokens.txt"},
    }
    (folder / "stt.json").write_text(json.dumps(metadata))
    return folder


def _model() -> onnx.ModelProto:
    """Features (1, 80, CHUNK) -> logits (1, 1, 9) of each note and of blank. Caches pass through unchanged."""

    def value(name: str, kind: int, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, list(shape))

    real, whole = TensorProto.FLOAT, TensorProto.INT64
    caches = [("channel", real, (1, 1, 1, 1)), ("time", real, (1, 1, 1, 1)), ("channel_len", whole, (1,))]
    initializers = [("loud", real, [], [LOUD]), ("nothing", real, [1, 1, 1], [0.0])]
    nodes = [
        helper.make_node("Reshape", ["features", "bands"], ["banded"]),
        helper.make_node("ReduceMean", ["banded"], ["means"], axes=[3], keepdims=0),
        helper.make_node("Sub", ["means", "loud"], ["notes"]),
        helper.make_node("Concat", ["notes", "nothing"], ["raw"], axis=2),
        helper.make_node("LogSoftmax", ["raw"], ["logits"], axis=2),
        helper.make_node("Div", ["length", "chunk"], ["logits_length"]),
        *(helper.make_node("Identity", [name], [f"{name}_next"]) for name, _, _ in caches),
    ]
    graph = helper.make_graph(
        nodes,
        "la",
        [
            value("features", real, 1, 80, CHUNK),
            value("length", whole, 1),
            *(value(name, kind, *shape) for name, kind, shape in caches),
        ],
        [
            value("logits", real, 1, 1, len(NOTES) + 1),
            value("logits_length", whole, 1),
            *(value(f"{name}_next", kind, *shape) for name, kind, shape in caches),
        ],
        [
            *(helper.make_tensor(name, kind, shape, numbers) for name, kind, shape, numbers in initializers),
            helper.make_tensor("chunk", whole, [1], [CHUNK]),
            helper.make_tensor("bands", whole, [4], [1, 1, len(NOTES), 10 * CHUNK]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    metadata = {"model_type": "EncDecCTCModelBPE", "vocab_size": len(NOTES), "subsampling_factor": CHUNK}
    metadata |= {"window_size": CHUNK, "chunk_shift": CHUNK, "normalize_type": ""}
    metadata |= {f"cache_last_{name}_dim{place}": 1 for name in ("channel", "time") for place in (1, 2, 3)}
    helper.set_model_props(model, {name: str(number) for name, number in metadata.items()})
    onnx.checker.check_model(model)
    return model
