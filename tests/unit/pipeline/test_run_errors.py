"""The errors of `svc run`, before the run where possible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.provider import FakeProvider
from tests.fakes.script import stall
from tests.unit.pipeline.conftest import result, run

from svc.errors import UsageError
from svc.pipeline.files import check_output_paths

ONE = "name: one\nstages:\n  - {id: ask, target: integration, provider: openai, model: gpt-4o-mini}\n"


def test_run_unreachable_provider_error_names_provider(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-a")
    monkeypatch.setenv("PROVIDER_A_BASE_URL", "http://127.0.0.1:9/v1")
    assert run(ONE, "--input", "Hi", "--json") == 1
    error = result(capsys)["error"]
    assert (error["stage"], error["code"]) == ("ask", "provider_error")
    assert error["message"].startswith("The provider at http://127.0.0.1:9/v1 cannot be reached")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "home"], "home is a folder. -o needs a file."),
        (["-o", "out.wav"], "out.wav would contain text, not audio. Use another suffix."),
        (["--keep", "p.yaml"], "p.yaml is a file. --keep needs a folder."),
        (["--input", "b", "-o", "out.WAV"], "out.WAV would contain text, not audio. Use another suffix."),
        (["--input", "b", "--keep", "p.yaml", "--json"], "p.yaml is a file. --keep needs a folder."),
    ],
)
def test_run_invalid_output_path_is_rejected_before_any_request(
    gateway: FakeProvider, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("home").mkdir()
    assert run(ONE, "--input", "Hi", *arguments) == 2
    assert capsys.readouterr() == ("", f"svc: {message}\n")
    assert gateway.requests == []


def test_check_output_paths_audio_needs_wav_suffix(tmp_path: Path) -> None:
    for name in ("a.wav", "a.WAV", "a"):
        check_output_paths("audio", output_path=tmp_path / name, keep_folder=tmp_path / "new")
    with pytest.raises(UsageError, match=r"written as WAV: -o .*/a\.wav"):
        check_output_paths("audio", output_path=tmp_path / "a.txt", keep_folder=None)


def test_run_missing_bundle_error_names_registry_setting(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--check"], ["--input", "Hi"]):
        assert run("name: x\nstages: [moonshine-tiny-en@1.0.0]", *arguments) == 1
        assert capsys.readouterr().err.endswith(
            " on this machine, and no registry is configured: set SVC_REGISTRY_URL, or see svc models ls.\n"
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nstages: ['../x@1']\n", "p.yaml:2:10: '../x@1' is not a reference ID@VERSION: "),
        ("name: a\nstages: [x@1]\n---\nname: b\n", "p.yaml:3:1: expected a single document"),
    ],
)
def test_check_error_is_one_sentence_with_one_full_stop(
    capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    assert run(text, "--check") == 2
    err = capsys.readouterr().err
    assert err.startswith(f"svc: {message}")
    assert not err.endswith("..\n")


def test_check_warning_is_one_line(gateway: FakeProvider) -> None:
    Path("p.yaml").write_text(ONE)
    command = [sys.executable, "-m", "svc", "run", "p.yaml", "--check"]
    environ = {**os.environ, "SVC_GATEWAY_URL": f"{gateway.address}/api"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == "svc: SVC_GATEWAY_URL does not end in /v1. It is used unchanged.\n"


def test_run_output_file_in_use_is_rejected(gateway: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.yaml").write_text(ONE)
    many = ["--input", "a", "--input", "b", "-o", "out.jsonl", "--jobs", "1"]
    gateway.plays(stall())
    first = subprocess.Popen([sys.executable, "-m", "svc", "run", "p.yaml", *many])
    try:
        gateway.wait(1, timeout=30)
        assert run(ONE, *many, "--resume") == 2
        assert "Another run is writing to out.jsonl" in capsys.readouterr().err
    finally:
        first.kill()
        first.wait(10)
    gateway.forget()
    assert run(ONE, *many, "--resume") == 0
    assert len(Path("out.jsonl").read_text().splitlines()) == 2
    assert not Path("out.jsonl.part").exists()


def test_resume_rejected_leaves_no_partial_file(gateway: FakeProvider) -> None:
    assert run(ONE, "--input", "a", "--input", "b", "-o", "out.jsonl") == 0
    assert run(ONE, "--input", "x", "--input", "b", "-o", "out.jsonl", "--resume") == 2
    assert sorted(path.name for path in Path().glob("out*")) == ["out.jsonl"]
