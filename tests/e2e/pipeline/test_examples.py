"""Runs the pipelines of `examples/` with real models. An empty home downloads the bundles over HTTP."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import pytest

from tests.e2e.pipeline.conftest import Machine
from tests.speech import material
from tests.speech.material import TEXTS, count_word_errors, words

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_example_ask_returns_text_and_usage(machine: Machine) -> None:
    given = ("--input", "What is the capital of France?")
    got = json.loads(machine.run("ask", "run", str(EXAMPLES / "ask.yaml"), *given, "--json"))
    assert "Paris" in got["output"]["text"]
    (stage,) = got["stages"]
    assert (stage["route"], stage["model"]) == ("gateway", "smollm2-135m")
    assert stage["usage"]["completion_tokens"] > 0
    assert stage["ms"] > 0


def test_example_transcribe_returns_transcript_of_wav(machine: Machine, clips: dict[str, Path]) -> None:
    pipeline = str(EXAMPLES / "transcribe.yaml")
    checked = machine.run("transcribe", "run", pipeline, "--check")
    assert "MB to download" in checked
    assert not list((machine.home / "transcribe").rglob("*.ort"))
    output = machine.run("transcribe", "run", pipeline, "--input", str(clips["beckett"]))
    assert count_word_errors(TEXTS["beckett"], output) <= 1
    assert "content" in machine.run("transcribe", "run", pipeline, "--check")


def test_example_transcribe_several_inputs_reports_each(machine: Machine, clips: dict[str, Path]) -> None:
    names = ["en-counting", "en-hello-world", "en-quick-brown-fox"]
    inputs = [part for name in names for part in ("--input", str(clips[name]))]
    out = machine.run("transcribe", "run", str(EXAMPLES / "transcribe.yaml"), *inputs, "--input", "no.wav", status=1)
    lines = [json.loads(line) for line in out.splitlines()]
    for name, line in zip(names, lines, strict=False):
        assert count_word_errors(TEXTS[name], line["output"]["text"]) <= 1
    assert lines[3]["error"]["code"] == "invalid_request"


def test_example_voice_assistant_audio_matches_answer_text(machine: Machine) -> None:
    question = "What is the capital of France?"
    (machine.home / "ask.yaml").write_text("name: say\nstages: [espeak-en-us@1.0.0]\n")
    machine.run("assistant", "run", "ask.yaml", "--input", question, "-o", "question.wav")
    out = machine.home / "answer.wav"
    arguments = ("--input", "question.wav", "-o", str(out), "--json", "--keep", "kept")
    got = json.loads(machine.run("assistant", "run", str(EXAMPLES / "voice-assistant.yaml"), *arguments))
    hear, answer, speak = got["stages"]
    assert count_word_errors(question, hear["output"]["text"]) <= 1
    assert "Paris" in answer["output"]["text"]
    assert [stage["route"] for stage in got["stages"]] == ["device", "gateway", "device"]
    assert got["output"]["path"] == str(out)
    assert speak["output"]["kind"] == "audio"
    with wave.open(str(out)) as file:
        assert file.getnchannels() == 1
        assert file.getnframes() / file.getframerate() == pytest.approx(got["output"]["seconds"], abs=0.01)
    text = answer["output"]["text"]
    transcript = machine.run("assistant", "run", str(EXAMPLES / "transcribe.yaml"), "--input", str(out))
    # Synthetic voice and small model: most of the words are recognized.
    assert count_word_errors(text, transcript) <= 0.25 * len(words(text)), (text, transcript)
    assert len(list((machine.home / "kept").iterdir())) == 3


def test_pipeline_espeak_audio_transcribes_to_same_text(machine: Machine) -> None:
    text = "The quick brown fox jumps over the lazy dog. It was the best of times."
    (machine.home / "say.yaml").write_text("name: say\nstages: [espeak-en-us@1.0.0]\n")
    machine.run("say", "run", "say.yaml", "--input", text, "-o", "said.wav")
    transcript = machine.run("say", "run", str(EXAMPLES / "transcribe.yaml"), "--input", "said.wav")
    # Synthetic voice and small model: rounding in the model changes up to three words.
    assert count_word_errors(text, transcript) <= 0.25 * len(words(text)), transcript
    assert "set a file" in run_invalid(machine, "say", "run", "say.yaml", "--input", text)


def test_pipeline_gguf_bundle_runs_on_device(machine: Machine, model_home: Path) -> None:
    (machine.home / "device.yaml").write_text(
        f"name: device\nregistry: {{local_path: '{model_home / 'registry'}'}}\n"
        "stages:\n  - name: smollm2-135m@1.0.0\n"
        "    options: {max_tokens: 24, temperature: 0, system_prompt: Answer in one short sentence.}\n"
    )
    given = ("--input", "What is the capital of France?", "--json")
    got = json.loads(machine.run("device", "run", "device.yaml", *given))
    assert "Paris" in got["output"]["text"]
    (stage,) = got["stages"]
    assert (stage["route"], stage["provider"]) == ("device", None)
    assert stage["usage"]["completion_tokens"] <= 24


def run_invalid(machine: Machine, *arguments: str) -> str:
    import subprocess

    from tests.e2e.harness import SVC

    name, *rest = arguments
    done = subprocess.run(
        [SVC, *rest], env=machine.environ(name), cwd=machine.home, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    return done.stderr


def test_pipeline_piper_audio_transcribes_to_same_text(machine: Machine) -> None:
    """Moonshine transcribes a Piper voice (sherpa-onnx, espeak-ng). Recipes built both models."""
    root = material.make_model("piper-joe-en-us").parents[3]
    material.make_model()
    stages = "stages: [piper-joe-en-us@1.0.0, moonshine-tiny-en@1.0.0]"
    (machine.home / "natural.yaml").write_text(f"name: natural\nregistry: {{local_path: {root}}}\n{stages}\n")
    text = "The quick brown fox jumps over the lazy dog."
    output = machine.run("natural", "run", "natural.yaml", "--input", text)
    assert count_word_errors(text, output) <= 3  # of 9 words: Piper adds random noise, so that each audio differs
