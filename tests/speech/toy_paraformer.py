"""A streaming paraformer without weights, in the shapes of sherpa-onnx. It outputs the note of the loudest band.

The library stacks seven frames of 80 features, pads each chunk, and emits a note when the sum of alphas reaches 1.
"""

import json
from pathlib import Path

from onnx import TensorProto, helper

from tests.speech.toy_transducer import BANDS, NOTES, REAL, WHOLE, save, value

STACK, FEATURES = 7, 80
WHOLE32 = TensorProto.INT32
LOUD = 28.0
"""A band has sound if its mean times the square root of 8 is above this. Features are those of 16-bit samples."""
ALPHA = 0.5
"""Two stacked frames (120 ms) per note."""


def make(folder: Path) -> Path:
    """Write the model's folder."""
    folder.mkdir(parents=True)
    _encoder(folder / "encoder.onnx")
    _decoder(folder / "decoder.onnx")
    lines = (f"{token} {number}\n" for number, token in enumerate(("<blank>", *NOTES)))
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
    files = {"tokens": "tokens.txt", "encoder": "encoder.onnx", "decoder": "decoder.onnx"}
    metadata = {"engine": "sherpa-online", "family": "paraformer", "languages": ["zh"], "files": files}
    (folder / "stt.json").write_text(json.dumps(metadata))
    return folder


def _encoder(path: Path) -> None:
    """Stacked frames (1, T, 560) -> loudness of each band (1, T, BANDS) and alphas (1, T)."""
    nodes = [
        helper.make_node("Reshape", ["speech", "stacked"], ["frames"]),
        helper.make_node("ReduceMean", ["frames"], ["means"], axes=[2, 4], keepdims=0),
        helper.make_node("Sub", ["means", "loud"], ["enc"]),
        helper.make_node("Identity", ["speech_lengths"], ["enc_len"]),
        helper.make_node("ReduceMax", ["enc"], ["most"], axes=[2], keepdims=0),
        helper.make_node("Greater", ["most", "nothing"], ["heard"]),
        helper.make_node("Where", ["heard", "alpha", "nothing"], ["alphas"]),
    ]
    constants = [
        helper.make_tensor("stacked", WHOLE, [5], [1, -1, STACK, BANDS, FEATURES // BANDS]),
        helper.make_tensor("loud", REAL, [], [LOUD]),
        helper.make_tensor("nothing", REAL, [], [0.0]),
        helper.make_tensor("alpha", REAL, [], [ALPHA]),
    ]
    zeros, ones = (",".join([number] * STACK * FEATURES) for number in "01")
    save(
        path,
        nodes,
        [value("speech", REAL, 1, "T", STACK * FEATURES), value("speech_lengths", WHOLE32, 1)],
        [value("enc", REAL, 1, "T", BANDS), value("enc_len", WHOLE32, 1), value("alphas", REAL, 1, "T")],
        constants,
        vocab_size=BANDS + 1,
        lfr_window_size=STACK,
        lfr_window_shift=STACK - 1,
        encoder_output_size=BANDS,
        decoder_num_blocks=1,
        decoder_kernel_size=2,
        neg_mean=zeros,
        inv_stddev=ones,
    )


def _decoder(path: Path) -> None:
    """Embeddings (1, L, BANDS) -> logits (1, L, BANDS + 1) and tokens (1, L). The cache passes through unchanged."""
    nodes = [
        helper.make_node("ReduceMin", ["embeds"], ["blank"], axes=[2], keepdims=1),
        helper.make_node("Concat", ["blank", "embeds"], ["logits"], axis=2),
        helper.make_node("ArgMax", ["logits"], ["sample_ids"], axis=2, keepdims=0),
        helper.make_node("Identity", ["in_cache"], ["out_cache"]),
    ]
    inputs = [value("enc", REAL, 1, "T", BANDS), value("enc_len", WHOLE32, 1), value("embeds", REAL, 1, "L", BANDS)]
    inputs += [value("embeds_len", WHOLE32, 1), value("in_cache", REAL, 1, BANDS, 1)]
    outputs = [value("logits", REAL, 1, "L", BANDS + 1), value("sample_ids", WHOLE, 1, "L")]
    save(path, nodes, inputs, [*outputs, value("out_cache", REAL, 1, BANDS, 1)], [])
