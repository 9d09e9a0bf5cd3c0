"""A third-party ONNX model in a pipeline: it reads a line of text in an image, and a chat model answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnxruntime
import pytest
from PIL import Image, ImageDraw, ImageFont

from svc.recipes import make
from svc.recipes.recipe import parse_recipe
from tests.e2e.pipeline.conftest import Machine
from tests.speech import material

pytestmark = pytest.mark.slow

STAGES = """
name: reader
registry: {local_path: reader-registry}
input: {kind: Image}
stages:
  - {id: read, name: reader@1.0.0}
  - {id: answer, target: integration, provider: local, model: smollm2-135m, options: {max_tokens: 20, temperature: 0}}
"""


def bundle(folder: Path) -> None:
    """Create a bundle of the model and its alphabet, which is part of the model's metadata."""
    recipe = parse_recipe((Path(__file__).parent / "reader.toml").read_bytes(), "reader")
    make.make_model(recipe, material.HOME / "reader", material.ignore_progress)
    model = make.content_folder(recipe, material.HOME / "reader") / "reader.onnx"
    letters = onnxruntime.InferenceSession(str(model)).get_modelmeta().custom_metadata_map["character"]
    folder.mkdir(parents=True)
    shutil.copy(model, folder)
    (folder / "letters.txt").write_text(f"<blank>\n{letters}\n \n", encoding="utf-8")
    about = {
        "model_id": "reader",
        "version": "1.0.0",
        "execution_template": {"type": "Onnx", "model_file": "reader.onnx"},
        "files": ["reader.onnx", "letters.txt"],
        "preprocessing": [
            {"type": "Resize", "width": 320, "height": 48},
            {"type": "Normalize", "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
        ],
        "postprocessing": [{"type": "CTCDecode", "vocab_file": "letters.txt", "blank_index": 0}],
    }
    (folder / "model_metadata.json").write_text(json.dumps(about))


def test_pipeline_ocr_image_text_is_answered(machine: Machine) -> None:
    bundle(machine.home / "reader-registry" / "reader" / "1.0.0" / "any" / "content")
    line = Image.new("RGB", (640, 96), "white")
    ImageDraw.Draw(line).text((16, 12), "Capital of France?", fill="black", font=ImageFont.load_default(64))
    line.save(machine.home / "line.jpg")
    (machine.home / "reader.yaml").write_text(STAGES)
    assert "local" in machine.run("reader", "run", "reader.yaml", "--check")
    got = json.loads(machine.run("reader", "run", "reader.yaml", "--input", "line.jpg", "--json"))
    read, answer = got["stages"]
    assert read["output"]["text"] == "Capital of France?"
    assert answer["route"] == "gateway"
    assert answer["output"]["text"]
