"""`svc run --watch`: drawn in place on a real terminal, lines in a pipe."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, hold
from tests.terminal import TerminalOutput, run_on_terminal
from tests.unit.pipeline.conftest import run

TWO = "name: x\nstages: [{id: ask, target: integration, model: m}, {id: again, target: integration, model: m}]\n"


def run_watch(*arguments: str, until: str, gate: Gate) -> TerminalOutput:
    """Run a pipeline. The gate opens when `until` is on the screen. Standard output is a pipe."""

    def on_output(output: TerminalOutput) -> None:
        if until in output.text:
            gate.open()

    command = [sys.executable, "-m", "svc", "run", "p.yaml", "--watch", *arguments]
    return run_on_terminal(command, columns=60, pipe_stdout=True, on_output=on_output)


def test_watch_terminal_one_run_redraws_stages_in_place(gateway: FakeProvider) -> None:
    Path("p.yaml").write_text(TWO)
    gate = Gate()
    gateway.plays(hold(gate) + answer(400, openai_wire.error("no", "invalid_request_error")))
    output = run_watch("--input", "Hi", until="▸ ask", gate=gate)
    first, second, error = output.lines
    assert first.startswith("✗ ask")
    assert first.endswith(" s")
    assert second == "· again"
    assert error.startswith("svc: Stage 'ask' failed")
    assert output.stdout_text == ""
    output = run_watch("--input", "Hi", until="never", gate=gate)
    length = len(openai_wire.TEXT)
    assert [line[:7] for line in output.lines] == ["✓ ask  ", "✓ again"]
    assert all(line.endswith(f"{length} characters") for line in output.lines)
    assert output.stdout_text == f"{openai_wire.TEXT}\n"


def test_watch_terminal_many_inputs_shows_progress(gateway: FakeProvider) -> None:
    Path("p.yaml").write_text(TWO)
    gate = Gate()
    gateway.plays(hold(gate) + answer(400, openai_wire.error("no", "invalid_request_error")))
    inputs = ["--input", "a\n" * 400, "--input", "b", "--input", "c", "--jobs", "1", "-o", "out.jsonl"]
    output = run_watch(*inputs, until="0 of 3 done\n▸ ask: a a", gate=gate)
    assert output.lines[0] == "3 of 3 done, 1 failed"
    assert len(output.lines) == 2  # the second line is the error


def test_watch_pipe_writes_lines(gateway: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TWO, "--input", "Hi", "--watch") == 0
    assert capsys.readouterr().err.splitlines() == ["ask: started", "again: started", "ask: done", "again: done"]
    assert run(TWO, "--input", "a", "--input", "b", "--watch", "--jobs", "1") == 0
    assert capsys.readouterr().err.splitlines() == ["1 of 2: a: done", "2 of 2: b: done"]
