"""ONNX stages with small generated models: what the steps compute, and which bundles and inputs are rejected."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tests.unit.pipeline.conftest import install_bundle, result, run

TEMPLATE = {"type": "Onnx", "model_file": "model.onnx"}
ONE = "name: x\nstages: [thing@1.0.0]"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "good", "##bye"]
TABLE = np.random.default_rng(7).standard_normal((len(WORDS), 5)).astype(np.float32)


def model(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], constants: dict[str, Any] | None = None) -> bytes:
    """Return an ONNX model whose last node has the output `out`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(made.SerializeToString())


def identity_model(shape: list[Any]) -> bytes:
    """Return a model that outputs its input."""
    return model([helper.make_node("Identity", ["x"], ["out"])], {"x": (TensorProto.FLOAT, shape)})


def embedding_model(name: str = "input_ids", mask: bool = True) -> bytes:
    """Return a model that outputs a row of the table for each token."""
    row = (TensorProto.INT64, [None, None])
    inputs = {name: row, **({"attention_mask": row} if mask else {})}
    return model([helper.make_node("Gather", ["table", name], ["out"])], inputs, {"table": TABLE})


def install_embedding_bundle(**step: Any) -> None:
    install_bundle(
        "thing",
        TEMPLATE,
        {"model.onnx": embedding_model(), "vocab.txt": "\n".join(WORDS).encode()},
        preprocessing=[{"type": "Tokenize", "vocab_file": "vocab.txt", "tokenizer_type": "WordPiece", **step}],
        postprocessing=[{"type": "MeanPool", "dim": 1}],
    )


def output(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(result(capsys)["output"]["text"])


def test_onnx_text_gives_embedding(capsys: pytest.CaptureFixture[str]) -> None:
    install_embedding_bundle()
    assert run(ONE, "--input", "Hello goodbye, World", "--json") == 0
    expected = TABLE[[2, 4, 6, 7, 1, 5, 3]].mean(axis=0)  # [CLS] hello good ##bye [UNK] world [SEP]
    np.testing.assert_allclose(output(capsys), expected, rtol=1e-5)


def test_onnx_text_above_max_length_is_truncated(capsys: pytest.CaptureFixture[str]) -> None:
    install_embedding_bundle(max_length=3)
    assert run(ONE, "--input", "hello " * 5000, "--json") == 0
    np.testing.assert_allclose(output(capsys), TABLE[[2, 4, 3]].mean(axis=0), rtol=1e-5)


def test_onnx_tokenizer_json_and_custom_input_name_are_supported(capsys: pytest.CaptureFixture[str]) -> None:
    about = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    word_level = {"type": "WordLevel", "vocab": {word: index for index, word in enumerate(WORDS)}, "unk_token": "[UNK]"}
    about |= {"pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": word_level}
    install_bundle(
        "thing",
        TEMPLATE,
        {"model.onnx": embedding_model("ids", mask=False), "tokenizer.json": json.dumps(about).encode()},
        preprocessing=[{"type": "Tokenize", "vocab_file": "tokenizer.json", "tokenizer_type": "BPE"}],
        postprocessing=[{"type": "MeanPool", "dim": 1}],
    )
    assert run(ONE, "--input", "hello world", "--json") == 0
    np.testing.assert_allclose(output(capsys), TABLE[[4, 5]].mean(axis=0), rtol=1e-5)


def test_onnx_stage_accepts_numbers_of_previous_stage(capsys: pytest.CaptureFixture[str]) -> None:
    install_embedding_bundle()
    weights = np.eye(5, dtype=np.float32)[:, ::-1].copy()
    node = helper.make_node("MatMul", ["x", "w"], ["out"])
    made = model([node], {"x": (TensorProto.FLOAT, [None, 5])}, {"w": weights})
    steps = [{"type": "Softmax", "dim": 1}, {"type": "Argmax"}]
    install_bundle("second", TEMPLATE, {"model.onnx": made}, postprocessing=steps)
    text = "name: x\nstages: [thing@1.0.0, second@1.0.0]"
    assert run(text, "--input", "hello", "--json") == 0
    assert output(capsys) == int(TABLE[[2, 4, 3]].mean(axis=0)[::-1].argmax())


TONES = {"h": 400, "i": 1000, "|": 1800}


def tone_detector_model() -> bytes:
    """Return a model that outputs, for each 20 ms frame, the energy of each tone after a silence threshold."""
    at = np.arange(320) / 16000
    waves = [part(2 * np.pi * hertz * at) for hertz in TONES.values() for part in (np.cos, np.sin)]
    nodes = [
        helper.make_node("Reshape", ["x", "frames"], ["f"]),
        helper.make_node("MatMul", ["f", "waves"], ["m"]),
        helper.make_node("Mul", ["m", "m"], ["s"]),
        helper.make_node("MatMul", ["s", "pairs"], ["e"]),
        helper.make_node("Pad", ["e", "pads", "quiet"], ["out"]),
    ]
    constants = {
        "frames": np.array([1, -1, 320]),
        "waves": np.array(waves, np.float32).T,
        "pairs": np.kron(np.eye(3), np.ones((2, 1))).astype(np.float32),
        "pads": np.array([0, 0, 1, 0, 0, 0]),
        "quiet": np.float32(100),
    }
    return model(nodes, {"x": (TensorProto.FLOAT, [1, None])}, constants)


@pytest.mark.parametrize("rate", [16000, 48000, 22050])
def test_onnx_audio_at_any_rate_gives_text(capsys: pytest.CaptureFixture[str], rate: int) -> None:
    vocabulary = json.dumps({"<pad>": 0, **{letter: index for index, letter in enumerate(TONES, 1)}}).encode()
    install_bundle(
        "thing",
        TEMPLATE,
        {"model.onnx": tone_detector_model(), "vocab.json": vocabulary},
        preprocessing=[{"type": "AudioDecode", "sample_rate": 16000, "channels": 1}],
        postprocessing=[{"type": "CTCDecode", "vocab_file": "vocab.json", "blank_index": 0}],
    )
    at = np.arange(rate // 10) / rate
    samples = [0.5 * np.sin(2 * np.pi * TONES[letter] * at) if letter in TONES else 0 * at for letter in "hii ih|hi"]
    with wave.open("tones.wav", "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((np.concatenate(samples) * 32767).astype("<i2").tobytes())
    assert run(ONE, "--input", "tones.wav", "--json") == 0
    assert result(capsys)["output"]["text"] == "hiih hi"


def install_image_bundle(channels: int = 3) -> None:
    """Install a bundle whose model outputs the mean of each channel."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["p"]),
        helper.make_node("Reshape", ["p", "flat"], ["out"]),
    ]
    made = model(nodes, {"x": (TensorProto.FLOAT, [1, channels, 8, 8])}, {"flat": np.array([1, channels])})
    values = [0.5, 0.25, 0.125][:channels]
    install_bundle(
        "thing",
        TEMPLATE,
        {"model.onnx": made},
        preprocessing=[
            {"type": "Resize", "width": 12, "height": 10, "interpolation": "Nearest"},
            {"type": "CenterCrop", "width": 8, "height": 8},
            {"type": "Normalize", "mean": values, "std": [0.5] * channels},
        ],
        postprocessing=[] if channels == 1 else [{"type": "Softmax", "dim": 1}, {"type": "TopK", "k": 2, "dim": 1}],
    )


@pytest.mark.parametrize("ending", ["png", "bmp", "webp"])
def test_onnx_image_gives_class_scores(capsys: pytest.CaptureFixture[str], ending: str) -> None:
    install_image_bundle()
    Image.new("RGB", (40, 30), (51, 255, 0)).save(f"green.{ending}", **({"lossless": True} if ending == "webp" else {}))
    assert run(f"{ONE}\ninput: {{kind: Image}}", "--input", f"green.{ending}", "--json") == 0
    powers = np.exp((np.array([0.2, 1.0, 0.0]) - [0.5, 0.25, 0.125]) / 0.5)
    first, second = output(capsys)
    assert (first["index"], second["index"]) == (1, 2)
    assert first["score"] == pytest.approx(powers[1] / powers.sum(), rel=1e-4)


def test_onnx_one_channel_model_gets_grayscale_image(capsys: pytest.CaptureFixture[str]) -> None:
    install_image_bundle(1)
    Image.new("RGB", (40, 30), (51, 51, 51)).save("grey.png")
    assert run(ONE, "--input", "grey.png", "--json") == 0
    assert output(capsys) == pytest.approx((0.2 - 0.5) / 0.5, rel=1e-4)


def test_onnx_center_crop_beyond_edges_is_black(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [{"type": "CenterCrop", "width": 4, "height": 2}]
    install_bundle("thing", TEMPLATE, {"model.onnx": identity_model([None, 3, 2, 4])}, preprocessing=steps)
    Image.new("RGB", (2, 3), (255, 0, 0)).save("small.png")
    assert run(ONE, "--input", "small.png", "--json") == 0
    assert output(capsys) == [[[0, 1, 1, 0]] * 2, [[0] * 4] * 2, [[0] * 4] * 2]


def test_onnx_nan_and_infinity_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node("Log", ["x"], ["out"])
    install_bundle("thing", TEMPLATE, {"model.onnx": model([node], {"x": (TensorProto.FLOAT, [None, 3])})})
    assert run(ONE, "--input", "[1, 0, -1]", "--json") == 0
    assert output(capsys) == [0, None, None]


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"preprocessing": [{"type": "Phonemize"}]}, "`preprocessing` has the unknown step 'Phonemize'"),
        ({"postprocessing": [{"type": "WhisperDecode"}]}, "`postprocessing` has the unknown step 'WhisperDecode'"),
        ({"preprocessing": ["Resize"]}, "has the unknown step 'None'"),
        ({"preprocessing": {"type": "Resize"}}, "`preprocessing` is not valid"),
        ({"preprocessing": [{"type": "Resize", "width": 8}]}, "`preprocessing` is not valid: Object missing required"),
        ({"preprocessing": [{"type": "Resize", "width": 10**9, "height": 1}]}, "`preprocessing` is not valid"),
        ({"preprocessing": [{"type": "Reshape", "shape": [-1, -1]}]}, "more than one -1"),
        ({"preprocessing": [{"type": "Normalize", "mean": [0], "std": [0]}]}, "a `std` of Normalize is 0"),
        ({"preprocessing": [{"type": "AudioDecode", "gain": 3}]}, "unknown field `gain`"),
        (
            {"preprocessing": [{"type": "AudioDecode"}, {"type": "CenterCrop", "width": 1, "height": 1}]},
            "CenterCrop does not accept numbers",
        ),
        ({"preprocessing": [{"type": "Tokenize", "vocab_file": "nowhere.txt"}]}, "has no file 'nowhere.txt'"),
        ({"postprocessing": [{"type": "CTCDecode", "vocab_file": "../../x"}]}, "has no file '../../x'"),
        ({"postprocessing": [{"type": "Argmax"}, {"type": "Softmax"}]}, "nothing can follow Argmax"),
        ({"execution_template": {"type": "Onnx"}}, "has no `model_file`"),
        ({"execution_template": {"type": "Onnx", "model_file": "other.onnx"}}, "has no file 'other.onnx'"),
    ],
)
def test_onnx_invalid_metadata_is_rejected_by_check_and_run(
    capsys: pytest.CaptureFixture[str], about: dict[str, Any], message: str
) -> None:
    install_bundle("thing", **{"template": TEMPLATE, "files": {"model.onnx": identity_model([None, 3])}, **about})
    for arguments in (["--check"], ["--input", "x"]):
        assert run(ONE, *arguments) == 1
        error = capsys.readouterr().err
        assert ": Stage 'thing': " in error
        assert message in error


@pytest.mark.parametrize(
    ("data", "given", "message"),
    [
        (b"no model", "[1]", "The model of thing@1.0.0 cannot be loaded"),
        (identity_model([None, 3]), "[1, 2]", "The model of thing@1.0.0 failed"),
        (identity_model([None, 3]), "three numbers", "This stage takes numbers"),
        (identity_model([None, 3]), "[[1], [2, 3]]", "This stage takes numbers"),
        (identity_model([None, 3]), '["1"]', "This stage takes numbers"),
        (identity_model([None, 3]), "[" * 5000, "This stage takes numbers"),
        (identity_model([None, 3]), "[]", "no numbers"),
        (embedding_model(), "[1]", "takes input_ids, attention_mask, but gets one input"),
        (model([helper.make_node("Identity", ["x"], ["out"])], {"x": (TensorProto.BOOL, [1])}), "[1]", "tensor(bool)"),
    ],
)
def test_onnx_failing_stage_error_names_the_reason(
    capsys: pytest.CaptureFixture[str], data: bytes, given: str, message: str
) -> None:
    install_bundle("thing", TEMPLATE, {"model.onnx": data})
    assert run(ONE, "--input", given) == 1
    error = capsys.readouterr().err
    assert error.startswith("svc: Stage 'thing' failed (")
    assert message in error
    assert error.count("\n") == 1


def test_onnx_invalid_image_error_names_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    install_image_bundle()
    assert run(ONE, "--input", "a text") == 2
    assert "takes image, and the file 'a text' does not exist" in capsys.readouterr().err
    Path("broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 50)
    Image.new("1", (9_000, 9_000)).save("bomb.png")
    for name, message in (("broken.png", "image cannot be decoded"), ("bomb.png", "")):
        assert run(ONE, "--input", name) == 1
        error = capsys.readouterr().err
        assert error.startswith("svc: Stage 'thing' failed (invalid_request)")
        assert message in error
