"""Folders and globs as inputs, and the output names of many inputs."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.provider import FakeProvider
from tests.unit.pipeline.conftest import install_bundle, run

from svc.errors import UsageError
from svc.pipeline.inputs import expand_inputs, output_names

ASK = "name: one\nstages:\n  - {id: ask, target: integration, provider: openai, model: gpt-4o-mini}\n"
SPEAK = "name: speak\nstages: [voice@1.0.0]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "notes"
    (made / "deep").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "c.md", ".hidden", "deep/d.txt"):
        (made / name).write_text(f"text of {name}")
    return made


def results(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_expand_inputs_folder_returns_sorted_files(folder: Path) -> None:
    found = expand_inputs(["notes"])
    assert found.are_many
    assert found.filter_by_kind("text") == ["notes/a.txt", "notes/b.txt", "notes/c.md"]


def test_expand_inputs_glob_returns_matching_files(folder: Path) -> None:
    assert expand_inputs(["notes/*.txt"]).filter_by_kind("text") == ["notes/a.txt", "notes/b.txt"]
    assert expand_inputs(["notes/**/*.txt"]).filter_by_kind("text") == [
        "notes/a.txt",
        "notes/b.txt",
        "notes/deep/d.txt",
    ]
    assert expand_inputs(["notes/[b]*"]).are_many


@pytest.mark.parametrize("text", ["What is 2*3?", "[a", "a\nb*.txt", "x" * 5000, "Is it *.txt?", "2 * 3.5"])
def test_expand_inputs_text_is_unchanged(folder: Path, text: str) -> None:
    found = expand_inputs([text])
    assert [one.text for one in found.items] == [text]
    assert not found.are_many


def test_expand_inputs_no_match_raises_usage_error(folder: Path) -> None:
    for text in ("notes/*.wav", "*.wav"):
        with pytest.raises(UsageError, match="No file matches"):
            expand_inputs([text])
    (folder / "empty").mkdir()
    with pytest.raises(UsageError, match="notes/empty has no files"):
        expand_inputs(["notes/empty"])


def test_filter_by_kind_skips_only_files_of_folders(folder: Path) -> None:
    (folder / "one.WAV").write_bytes(b"")
    assert expand_inputs(["notes"]).filter_by_kind("audio") == ["notes/one.WAV"]
    assert expand_inputs(["notes/a.txt", "notes"]).filter_by_kind("audio") == ["notes/a.txt", "notes/one.WAV"]
    with pytest.raises(UsageError, match="no image files"):
        expand_inputs(["notes"]).filter_by_kind("image")


def test_output_names_follow_inputs_and_resolve_collisions(folder: Path) -> None:
    for name in ("a.wav", "A.md", "a-2.txt", "x.wav.txt", "x.txt"):
        (folder / "deep" / name).write_text("")
    inputs = [
        "notes/a.txt",
        "notes/deep/a.wav",
        "a text",
        "notes/deep/a-2.txt",
        "notes/deep/A.md",
        "notes/deep/x.wav.txt",
    ]
    found = output_names([*inputs, "notes/deep/x.txt"], Path("kept"))
    assert found == ["a", "a-3", "00003", "a-2", "A-4", "x.wav", "x-2"]
    assert found == output_names([*inputs, "notes/deep/x.txt"], Path("kept"))


def test_output_names_never_overwrite_an_input(folder: Path) -> None:
    (folder / "talk.wav").write_bytes(b"the input")
    assert output_names(["notes/talk.wav", "notes/a.txt"], folder) == ["talk-2", "a"]
    assert output_names(["notes/talk.wav"], Path("kept")) == ["talk"]


def test_run_folder_keep_uses_file_names(
    gateway: FakeProvider, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ASK, "--input", "notes", "--keep", "kept", "-o", "out.jsonl") == 0
    assert [line["input"] for line in results(Path("out.jsonl").read_text())] == [
        "notes/a.txt",
        "notes/b.txt",
        "notes/c.md",
    ]
    kept = sorted(str(path) for path in Path("kept").rglob("*.txt"))
    assert kept == [f"kept/{name}/01-ask.txt" for name in "abc"]


def test_run_glob_writes_one_result_per_file(
    gateway: FakeProvider, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ASK, "--input", "notes/*.txt", "--input", "a text") == 0
    assert [line["input"] for line in results(capsys.readouterr().out)] == ["notes/a.txt", "notes/b.txt", "a text"]


def test_run_audio_output_is_named_after_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    voice = {"tts.json": b'{"engine": "espeak", "voice": "en-us"}'}
    install_bundle("voice", {"type": "Speech"}, voice, type="Speech", metadata={"task": "text-to-speech"})
    assert run(SPEAK, "--input", "notes/*.txt", "--input", "Hello.", "--keep", "kept") == 0
    paths = [line["output"]["path"] for line in results(capsys.readouterr().out)]
    assert paths == ["kept/a.wav", "kept/b.wav", "kept/00003.wav"]
    for path in paths:
        with wave.open(path) as made:
            assert made.getnframes() > 0
    assert Path("kept/a/01-voice.wav").read_bytes() == Path("kept/a.wav").read_bytes()
