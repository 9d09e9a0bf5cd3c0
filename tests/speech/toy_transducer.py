"""A streaming zipformer without weights. It outputs the note of the loudest band and never repeats a note.

Encoder, decoder and joiner have the shapes and states of sherpa-onnx's causal zipformers (zipformer2).
"""

import json
from pathlib import Path
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

FRAMES, BANDS, LOUD = 8, 8, -10.0
"""Frames of 10 ms per chunk, frequency bands, and the mean log-mel feature above which a band has sound."""
NOTES = "宮商角徵羽上下中"
REAL, WHOLE = TensorProto.FLOAT, TensorProto.INT64
STATES = {
    "key": (REAL, (1, 1, 1)),
    "nonlin": (REAL, (1, 1, 1, 3)),
    "value1": (REAL, (1, 1, 1)),
    "value2": (REAL, (1, 1, 1)),
    "conv1": (REAL, (1, 4, 1)),
    "conv2": (REAL, (1, 4, 1)),
    "embed": (REAL, (1, 128, 3, 19)),
    "processed": (WHOLE, (1,)),
}
"""States of a one-layer encoder with four channels, one head and a kernel of two. They are never changed."""


def make(folder: Path, **options: Any) -> Path:
    """Write the model's folder. `options` are passed to the recogniser."""
    folder.mkdir(parents=True)
    _encoder(folder / "encoder.onnx")
    _decoder(folder / "decoder.onnx")
    _joiner(folder / "joiner.onnx")
    lines = (f"{token} {number}\n" for number, token in enumerate(("<blk>", *NOTES)))
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
    files = {"tokens": "tokens.txt", **{role: f"{role}.onnx" for role in ("encoder", "decoder", "joiner")}}
    metadata = {
        "engine": "sherpa-online",
        "family": "transducer",
        "languages": ["zh"],
        "files": files,
        "options": options,
    }
    (folder / "stt.json").write_text(json.dumps(metadata))
    return folder


def value(name: str, kind: int, *shape: int | str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def save(
    path: Path,
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    constants: list[TensorProto],
    **metadata: str | int,
) -> None:
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, {name: str(value) for name, value in metadata.items()})
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _encoder(path: Path) -> None:
    """Features (1, FRAMES, 80) -> one frame with the loudness of each band."""
    states = {name: value(name, kind, *shape) for name, (kind, shape) in STATES.items()}
    nexts = [value(f"next_{name}", kind, *shape) for name, (kind, shape) in STATES.items()]
    nodes = [
        helper.make_node("Reshape", ["x", "bands"], ["banded"]),
        helper.make_node("ReduceMean", ["banded"], ["means"], axes=[1, 3], keepdims=0),
        helper.make_node("Sub", ["means", "loud"], ["above"]),
        helper.make_node("Reshape", ["above", "frame"], ["encoder_out"]),
        *(helper.make_node("Identity", [name], [f"next_{name}"]) for name in STATES),
    ]
    constants = [
        helper.make_tensor("bands", WHOLE, [4], [1, FRAMES, BANDS, 80 // BANDS]),
        helper.make_tensor("frame", WHOLE, [3], [1, 1, BANDS]),
        helper.make_tensor("loud", REAL, [], [LOUD]),
    ]
    metadata = {"model_type": "zipformer2", "T": FRAMES, "decode_chunk_len": FRAMES, "encoder_dims": 4}
    metadata |= {"query_head_dims": 1, "value_head_dims": 1, "num_heads": 1, "num_encoder_layers": 1}
    metadata |= {"cnn_module_kernels": 2, "left_context_len": 1}
    inputs = [value("x", REAL, 1, FRAMES, 80), *states.values()]
    save(path, nodes, inputs, [value("encoder_out", REAL, 1, 1, BANDS), *nexts], constants, **metadata)


def _decoder(path: Path) -> None:
    """The last two tokens (N, 2) -> one-hot last token (N, BANDS), or zeros for a blank."""
    nodes = [
        helper.make_node("Gather", ["y", "last"], ["token"], axis=1),
        helper.make_node("OneHot", ["token", "depth", "off_on"], ["hot"], axis=1),
        helper.make_node("Slice", ["hot", "one", "end", "one"], ["decoder_out"]),
    ]
    constants = [
        helper.make_tensor("last", WHOLE, [], [1]),
        helper.make_tensor("depth", WHOLE, [], [BANDS + 1]),
        helper.make_tensor("off_on", REAL, [2], [0.0, 100.0]),
        helper.make_tensor("one", WHOLE, [1], [1]),
        helper.make_tensor("end", WHOLE, [1], [BANDS + 1]),
    ]
    save(
        path,
        nodes,
        [value("y", WHOLE, "N", 2)],
        [value("decoder_out", REAL, "N", BANDS)],
        constants,
        vocab_size=BANDS + 1,
        context_size=2,
    )


def _joiner(path: Path) -> None:
    """A frame and the last token -> logits (N, BANDS + 1), blank first."""
    nodes = [
        helper.make_node("Sub", ["encoder_out", "decoder_out"], ["notes"]),
        helper.make_node("ReduceSum", ["notes", "axis"], ["sum"], keepdims=1),
        helper.make_node("Mul", ["sum", "nothing"], ["blank"]),
        helper.make_node("Concat", ["blank", "notes"], ["logit"], axis=1),
    ]
    constants = [helper.make_tensor("axis", WHOLE, [1], [1]), helper.make_tensor("nothing", REAL, [], [0.0])]
    inputs = [value("encoder_out", REAL, "N", BANDS), value("decoder_out", REAL, "N", BANDS)]
    save(path, nodes, inputs, [value("logit", REAL, "N", BANDS + 1)], constants, joiner_dim=BANDS)
