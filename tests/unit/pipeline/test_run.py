"""`svc run` with a fake provider on a real socket: routes, results, failures, many inputs, sentence splitting."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes import openai_wire
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, fin, reset, sse, stall
from tests.unit.pipeline.conftest import install_bundle, result, run

from svc.cli import main
from svc.client import retry
from svc.pipeline import batch
from svc.resilience import Backoff
from svc.speech.synthesis.sentences import split_sentences

ONE = "name: one\nstages:\n  - {id: ask, target: integration, provider: openai, model: gpt-4o-mini}\n"
TWO = ONE + "  - {id: again, target: integration, provider: openai, model: gpt-4o, options: {system_prompt: S}}\n"


def test_run_without_provider_key_uses_gateway(gateway: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TWO, "--input", "Hi", "--json") == 0
    run_result = result(capsys)
    assert {name: run_result[name] for name in ("pipeline", "input", "output", "error")} == {
        "pipeline": "one",
        "input": "Hi",
        "output": {"kind": "text", "text": openai_wire.TEXT},
        "error": None,
    }
    first, second = run_result["stages"]
    assert (first["id"], first["route"], first["model"], first["provider"]) == (
        "ask",
        "gateway",
        "gpt-4o-mini",
        "openai",
    )
    assert first["usage"] == openai_wire.USAGE
    assert second["output"]["text"] == openai_wire.TEXT
    assert all(stage["ms"] >= 0 for stage in run_result["stages"])
    sent_messages = gateway.wait(2).json["messages"]
    assert sent_messages == [{"role": "system", "content": "S"}, {"role": "user", "content": openai_wire.TEXT}]


@pytest.mark.parametrize("name", ["PROVIDER_A_API_KEY", "OPENAI_API_KEY"])
def test_run_with_provider_key_calls_provider_directly(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv(name, "sk-a")
    monkeypatch.setenv("PROVIDER_A_BASE_URL", f"{provider.address}/v1")
    assert run(ONE, "--input", "Hi", "--json") == 0
    assert result(capsys)["stages"][0]["route"] == "direct"


def test_run_with_anthropic_key_uses_its_dialect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "name: b\nstages: [{target: integration, provider: anthropic, model: claude-3-haiku-20240307}]"
    with FakeProvider(AnthropicWire(), key="sk-b") as fake:
        monkeypatch.setenv("PROVIDER_B_API_KEY", "sk-b")
        monkeypatch.setenv("PROVIDER_B_BASE_URL", fake.address)
        assert run(text, "--input", "Hi", "--json") == 0
        assert fake.wait().json["max_tokens"] == 4096
        assert fake.complaints == []
    (stage,) = result(capsys)["stages"]
    assert (stage["route"], stage["provider"]) == ("direct", "anthropic")
    assert stage["output"]["text"]


def test_run_gateway_url_option_overrides_provider_key(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-never")
    monkeypatch.setenv("SVC_API_KEY", "sk-a")
    monkeypatch.setenv("SVC_GATEWAY_URL", "http://127.0.0.1:1/v1")
    text = f"{ONE.rstrip()[:-1]}, options: {{gateway_url: '{provider.address}'}}}}\n"
    assert run(text, "--input", "Hi", "--json") == 0
    assert result(capsys)["stages"][0]["route"] == "gateway"


def test_run_text_output_is_plain_text(gateway: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ONE, "--input", "Hi") == 0
    assert capsys.readouterr().out == f"{openai_wire.TEXT}\n"
    Path("question.txt").write_text("From a file?")
    assert run(ONE, "--input", "question.txt", "-o", "out/answer.txt", "--watch") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.split() == ["ask:", "started", "ask:", "done"]
    assert Path("out/answer.txt").read_text() == f"{openai_wire.TEXT}\n"
    assert gateway.wait(2).json["messages"][0]["content"] == "From a file?"


@pytest.mark.parametrize(
    ("reason", "cut"),
    [("length", "at the maximum tokens"), ("content_filter", "by the content filter"), ("stop", None)],
)
def test_run_output_that_is_cut_off_is_reported(
    gateway: FakeProvider, capsys: pytest.CaptureFixture[str], reason: str, cut: str | None
) -> None:
    gateway.always_plays(sse(openai_wire.stream("One two", finish=reason)))
    assert run(ONE, "--input", "Hi") == 0
    captured = capsys.readouterr()
    assert captured.out == "One two\n"
    assert captured.err == (f"svc: the output of stage 'ask' was cut off {cut}\n" if cut else "")
    assert run(ONE, "--input", "Hi", "--json") == 0
    assert result(capsys)["stages"][0]["finish_reason"] == reason
    assert run(ONE, "--input", "Hi", "--input", "Ho") == 0
    assert capsys.readouterr().err.startswith("svc: 2 of 2 inputs have an output that was cut off") is (cut is not None)


@pytest.mark.parametrize(("responded", "warns"), [("openai", False), ("azure", True)])
def test_run_provider_that_the_gateway_chose_is_reported(
    gateway: FakeProvider, capsys: pytest.CaptureFixture[str], responded: str, warns: bool
) -> None:
    gateway.always_plays(sse(openai_wire.stream("One two"), headers={"x-svc-provider": responded}))
    warning = "svc: the gateway sent stage 'ask' to the provider azure, not to openai\n" if warns else ""
    assert run(ONE, "--input", "Hi") == 0
    assert capsys.readouterr() == ("One two\n", warning)
    assert run(ONE, "--input", "Hi", "--json") == 0
    assert result(capsys)["stages"][0]["provider"] == responded


def test_run_provider_that_is_called_directly_keeps_its_name(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a")
    monkeypatch.setenv("PROVIDER_A_BASE_URL", f"{provider.address}/v1")
    provider.always_plays(sse(openai_wire.stream("One two"), headers={"x-svc-provider": "azure"}))
    assert run(ONE, "--input", "Hi", "--json") == 0
    assert result(capsys)["stages"][0]["provider"] == "openai"


def test_run_response_that_is_a_web_page_is_named(gateway: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.always_plays(answer(200, b"<html>Welcome</html>", content_type="text/html; charset=utf-8"))
    assert run(ONE, "--input", "Hi") == 1
    assert "has the content type 'text/html' instead of events. Check the address." in capsys.readouterr().err


def test_run_failed_stage_is_reported_and_earlier_outputs_are_kept(
    gateway: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    bad_request = answer(400, openai_wire.error("too long", "invalid_request_error"))
    complete = sse(openai_wire.stream())
    gateway.plays(complete, bad_request, complete, sse(openai_wire.stream()[:4], end=fin()))
    assert run(TWO, "--input", "Hi", "--json", "--keep", "kept") == 1
    run_result = result(capsys)
    assert run_result["error"] == {"stage": "again", "code": "invalid_request", "message": "too long"}
    assert run_result["output"] is None
    assert [stage["output"] is None for stage in run_result["stages"]] == [False, True]
    assert [path.name for path in Path("kept").iterdir()] == ["01-ask.txt"]
    assert run(TWO, "--input", "Hi", "--keep", "cut") == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("svc: Stage 'again' failed (gateway_error): The gateway")
    assert sorted(path.name for path in Path("cut").iterdir()) == ["01-ask.txt", "02-again.txt"]


def test_run_failed_stage_result_omits_later_stages(gateway: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.plays(answer(400, openai_wire.error("no", "invalid_request_error")))
    assert run(TWO, "--input", "Hi", "--json") == 1
    run_result = result(capsys)
    assert [stage["id"] for stage in run_result["stages"]] == ["ask"]
    assert run_result["error"]["stage"] == "ask"


def test_run_invalid_arguments_exit_without_request(gateway: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("name: x\nstages: [", "--check") == 2
    assert main(["run", "nowhere.yaml", "--check"]) == 2
    assert run(ONE) == 2
    assert run(ONE, "--input", " ") == 2
    assert run(ONE, "--input", "a", "--jobs", "0") == 2
    assert run(ONE, "--input", "a", "--input", "b", "--resume") == 2
    assert run(ONE, "--input-list", "nowhere.txt") == 2
    assert run(ONE.replace("name: one", "name: one\ninput: {kind: AudioRaw}"), "--input", "a") == 1
    assert "Stage 'ask': it takes text, but gets audio" in capsys.readouterr().err
    assert gateway.requests == []


def test_check_lists_stages_without_key_or_request(provider: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ONE, "--check", "--json") == 0
    assert result(capsys)["stages"] == [
        {
            "id": "ask",
            "route": "gateway",
            "model": "gpt-4o-mini",
            "provider": "openai",
            "where": "https://api.svc.example/v1",
        }
    ]
    assert run(ONE + "  - missing@1\n", "--check") == 1
    assert ":5: Stage 'missing': There is no bundle missing@1 on this machine" in capsys.readouterr().err


def bundle(template: str, **files: str) -> None:
    install_bundle("thing", {"type": template}, {name.replace("_", "."): text.encode() for name, text in files.items()})


@pytest.mark.parametrize(
    ("template", "files", "message"),
    [
        ("CoreMl", {}, "the type 'CoreMl', which is not supported"),
        ("Gguf", {}, "no file for its `model_file`"),
        ("Speech", {}, "is not a known speech model"),
        ("Speech", {"tts_json": '{"engine": "robot"}'}, "unknown voice engine 'robot'"),
        ("Speech", {"tts_json": '{"engine": "espeak", "pitch": 1}'}, "pitch"),
        ("Speech", {"tts_json": '{"engine": "sherpa", "files": {"model": "../../x"}}'}, "has no file '../../x'"),
    ],
)
def test_check_invalid_bundle_is_rejected(
    capsys: pytest.CaptureFixture[str], template: str, files: dict[str, str], message: str
) -> None:
    bundle(template, **files)
    for arguments in (["--check"], ["--input", "x"]):
        assert run("name: x\nstages: [thing@1.0.0]", *arguments) == 1
        captured = capsys.readouterr().err
        assert captured.startswith("svc: p.yaml:2:10: Stage 'thing': ")
        assert message in captured


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (b"", "is missing or empty"),
        (b"\x08\x09", "lacks the properties sample_rate, n_speakers, language"),
        (b"".join(bytes([10, len(name)]) + name for name in (b"sample_rate", b"n_speakers", b"language")), "be loaded"),
    ],
)
def test_run_invalid_voice_model_is_an_error_and_process_survives(
    capsys: pytest.CaptureFixture[str], model: bytes, message: str
) -> None:
    """The library itself would end the whole process."""
    about = {"engine": "sherpa", "family": "vits", "files": {"model": "voice.onnx", "tokens": "tokens.txt"}}
    files = {"voice.onnx": model, "tokens.txt": b"a 1\n", "tts.json": json.dumps(about).encode()}
    install_bundle("thing", {"type": "Speech"}, files, metadata={"task": "text-to-speech"})
    assert run("name: x\nstages: [thing@1.0.0]", "--input", "Hi", "-o", "out.wav") == 1
    captured = capsys.readouterr().err
    assert captured.startswith("svc: Stage 'thing' failed (")
    assert message in captured


def test_check_stage_kind_mismatch_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    bundle("Speech", tts_json='{"engine": "espeak"}')
    text = "name: x\nstages: [thing@1.0.0, {id: ask, target: integration, model: gpt-4o-mini}]"
    assert run(text, "--check") == 1
    assert "Stage 'ask': it takes text, but gets audio" in capsys.readouterr().err


# many inputs


def test_run_many_inputs_keep_order_and_failure_stops_no_other(
    gateway: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("list.txt").write_text("a\n\nb\n  c  \nd\n")
    gateway.plays(answer(400, openai_wire.error("no", "invalid_request_error")))
    assert run(ONE, "--input-list", "list.txt", "-o", "out.jsonl", "--jobs", "1") == 1
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [line["input"] for line in lines] == ["a", "b", "c", "d"]
    assert [line["error"] is not None for line in lines] == [True, False, False, False]
    assert "1 of 4 inputs failed" in capsys.readouterr().err
    before = len(gateway.requests)
    assert run(ONE, "--input-list", "list.txt", "-o", "out.jsonl", "--resume") == 0
    assert len(gateway.requests) == before + 1
    assert all(json.loads(line)["error"] is None for line in Path("out.jsonl").read_text().splitlines())


def test_resume_truncated_output_continues_and_other_inputs_are_rejected(
    gateway: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ONE, "--input", "a", "--input", "b", "--jobs", "4") == 0
    lines = capsys.readouterr().out.splitlines()
    Path("out.jsonl").write_text(f"{lines[0]}\n{lines[1][:30]}")
    assert run(ONE, "--input", "a", "--input", "b", "-o", "out.jsonl", "--resume") == 0
    assert len(gateway.requests) == 3
    assert run(ONE, "--input", "x", "--input", "b", "-o", "out.jsonl", "--resume") == 2
    assert len(Path("out.jsonl").read_text().splitlines()) == 2


def test_resume_after_sigkill_repeats_no_completed_input(gateway: FakeProvider) -> None:
    """The process is killed twice while an input is running. Completed inputs are not run again."""
    Path("p.yaml").write_text(ONE)
    Path("list.txt").write_text("".join(f"{number}\n" for number in range(8)))
    command = [sys.executable, "-m", "svc", "run", "p.yaml", "--input-list", "list.txt", "-o", "out.jsonl", "--resume"]

    def kill_after_requests(requests: int, *scripts: Script, written: int = 0) -> None:
        gateway.forget()
        gateway.plays(*scripts)
        with subprocess.Popen([*command, "--jobs", "1"], stderr=subprocess.DEVNULL) as process:
            gateway.wait(requests, 20)
            deadline = time.monotonic() + 10
            while written and done() < written and time.monotonic() < deadline:
                time.sleep(0.02)
            process.kill()

    def done() -> int:
        return sum(json.loads(line)["error"] is None for line in Path("out.jsonl.part").read_text().splitlines())

    bad = answer(400, openai_wire.error("no", "invalid_request_error"))
    good = sse(openai_wire.stream())
    kill_after_requests(5, bad, good, good, good, stall(), written=3)
    assert done() == 3
    kill_after_requests(1, stall())
    assert not Path("out.jsonl").exists()
    gateway.forget()
    gateway.plays(stall())
    with subprocess.Popen([*command, "--jobs", "1"], stderr=subprocess.PIPE, text=True) as process:
        gateway.wait(1, 20)
        process.terminate()  # the running input never ends
        assert process.communicate(timeout=20)[1] == "svc: interrupted; to continue, add --resume with -o out.jsonl\n"
    assert process.returncode == 143
    assert not Path("out.jsonl").exists()
    gateway.forget()
    assert run(ONE, "--input-list", "list.txt", "-o", "out.jsonl", "--resume") == 0
    assert len(gateway.requests) == 8 - 3
    assert [json.loads(line)["input"] for line in Path("out.jsonl").read_text().splitlines()] == [*"01234567"]
    assert sorted(path.name for path in Path().glob("out*")) == ["out.jsonl"]


def test_run_many_inputs_wait_for_gateway_that_was_reached(
    gateway: FakeProvider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batch, "OUTAGE_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(retry, "SDK_BACKOFF", Backoff(0.001, 0.001))
    attempts = 3  # the SDK makes them for one call
    gateway.plays(sse(openai_wire.stream()), *[reset()] * (attempts + 1), sse(openai_wire.stream()))
    assert run(ONE, "--input", "a", "--input", "b", "--input", "c", "--jobs", "1") == 0
    output = capsys.readouterr()
    assert [json.loads(line)["error"] for line in output.out.splitlines()] == [None] * 3
    assert output.err == "svc: The gateway cannot be reached. Inputs wait for it, up to 60 s.\n"
    gateway.forget()
    gateway.plays(*[reset()] * 9)
    assert run(ONE, "--input", "a", "--input", "b", "--jobs", "1") == 1
    assert len(gateway.requests) == 5, "a gateway that was never reached is not waited for"


def test_input_list_has_byte_order_mark_and_line_separators(
    gateway: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("list.txt").write_bytes("\ufefffirst\r\none\u2028text\n".encode())
    assert run(ONE, "--input-list", "list.txt") == 0
    assert [json.loads(line)["input"] for line in capsys.readouterr().out.split("\n")[:-1]] == [
        "first",
        "one\u2028text",
    ]


def test_run_without_resume_discards_earlier_results(gateway: FakeProvider) -> None:
    assert run(ONE, "--input", "a", "--input", "b", "-o", "out.jsonl") == 0
    Path("out.jsonl.kept").write_bytes(Path("out.jsonl").read_bytes())
    assert run(ONE, "--input", "a", "--input", "b", "-o", "out.jsonl") == 0
    assert len(gateway.requests) == 4
    assert not Path("out.jsonl.kept").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_run_full_disk_names_result_file_and_starts_no_further_input(
    gateway: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("list.txt").write_text("".join(f"{number}\n" for number in range(40)))
    Path("out.jsonl.part").symlink_to("/dev/full")
    assert run(ONE, "--input-list", "list.txt", "-o", "out.jsonl", "--jobs", "1") == 1
    advice = "Free space on the disk, or write to another one."
    assert capsys.readouterr().err == f"svc: No space left on device: out.jsonl.part. {advice}\n"
    assert len(gateway.requests) < 5


def test_run_many_inputs_keep_writes_a_folder_per_input(
    gateway: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").write_text("a file")
    for keep, status in (("kept", 0), ("taken/here", 1)):
        assert run(TWO, "--input", "a", "--input", "b", "--keep", keep, "--jobs", "2") == status
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["error"] is None for line in lines] == [True, True, False, False]
    assert "taken" in lines[2]["error"]["message"]
    kept = sorted(str(path) for path in Path("kept").rglob("*.txt"))
    assert kept == [f"kept/0000{number}/{name}.txt" for number in (1, 2) for name in ("01-ask", "02-again")]
    assert Path(kept[0]).read_text() == f"{openai_wire.TEXT}\n"


# speech


def test_split_sentences_yields_each_sentence_when_complete() -> None:
    consumed: list[str] = []

    def chunks() -> Iterator[str]:
        for chunk in ("Hel", "lo there. How", " are you? 3.5 is", " a number", ".\n\n- \n\nBye"):
            consumed.append(chunk)
            yield chunk

    found = split_sentences(chunks())
    assert next(found) == "Hello there."
    assert len(consumed) == 2
    assert list(found) == ["How are you?", "3.5 is a number.", "Bye"]


def test_split_sentences_long_text_is_split_at_space() -> None:
    parts = list(split_sentences(iter(["word " * 500])))
    assert max(map(len, parts)) <= 600
    assert " ".join(parts).split() == ["word"] * 500
    assert "".join(split_sentences(iter(["x" * 2000]))) == "x" * 2000
    assert list(split_sentences(iter(["", " … ", "\n"]))) == []
