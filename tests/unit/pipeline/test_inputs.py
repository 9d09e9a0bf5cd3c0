"""Folders and globs as inputs, and the output names of many inputs."""

from __future__ import annotations

import io
import json
import resource
import warnings
import wave
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.provider import FakeProvider
from tests.unit.pipeline.conftest import install_bundle, run

from svc.errors import UsageError
from svc.pipeline.files import read_input, write_chunks
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


# outputs that would overwrite inputs


@pytest.mark.parametrize("output", ["in.txt", "p.yaml", "list.txt", "linked.txt", "hard.txt"])
def test_run_output_that_is_an_input_is_rejected(
    gateway: FakeProvider, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    Path("in.txt").write_text("Hi")
    Path("list.txt").write_text("in.txt\n")
    Path("linked.txt").symlink_to("in.txt")
    Path("hard.txt").hardlink_to("in.txt")
    arguments = ("--input-list", "list.txt") if output == "list.txt" else ("--input", "in.txt")
    assert run(ASK, *arguments, "-o", output) == 2
    assert f"{output} is an input of this run" in capsys.readouterr().err
    assert [Path(name).read_text() for name in ("in.txt", "list.txt", "p.yaml")] == ["Hi", "in.txt\n", ASK]
    assert gateway.requests == []


def test_run_kept_stage_that_is_the_input_is_rejected(
    gateway: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("01-ask.txt").write_text("Hi")
    assert run(ASK, "--input", "01-ask.txt", "--keep", ".") == 2
    assert Path("01-ask.txt").read_text() == "Hi"
    assert run(ASK, "--input", "01-ask.txt", "--keep", "kept") == 0


# standard input


def set_standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_run_dash_reads_standard_input(gateway: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    set_standard_input(monkeypatch, "Grüße\n".encode())
    assert run(ASK, "--input", "-") == 0
    assert gateway.wait(1).json["messages"] == [{"role": "user", "content": "Grüße\n"}]


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (b"\xff", ["--input", "-"], "Standard input is not UTF-8 text"),
        (b" \n", ["--input", "-"], "The input is empty"),
        (b"Hi", ["--input", "-", "--input", "a"], "must be the only input"),
        (b"Hi", ["--input", "a", "-o", "-"], "-o needs a file"),
        (b"Hi", ["--input", "empty.txt"], "empty.txt is empty"),
    ],
)
def test_run_unusable_input_or_output_is_wrong_use(
    gateway: FakeProvider,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    data: bytes,
    arguments: list[str],
    message: str,
) -> None:
    Path("empty.txt").touch()
    set_standard_input(monkeypatch, data)
    assert run(ASK, *arguments) == 2
    assert message in capsys.readouterr().err
    assert gateway.requests == []
    assert not Path("-").exists()


def test_read_input_truncated_audio_warns_with_its_name() -> None:
    with wave.open("talk.wav", "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(64000))
    whole = Path("talk.wav").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_input("talk.wav", "audio")
    Path("talk.wav").write_bytes(whole[:-32000])
    with pytest.warns(UserWarning, match=r"talk.wav: The WAV file is truncated: it has 1\.0 of 2\.0 seconds"):
        read_input("talk.wav", "audio")


def test_write_chunks_full_disk_error_names_the_file() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_chunks(["text"], Path("/dev/full"))
    assert Path("/dev/full").exists()


def test_write_chunks_failed_write_leaves_no_incomplete_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_chunks(["x" * 100], tmp_path / "output.txt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
