"""`svc run --watch`: drawn in place on a real terminal, lines in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, hold
from tests.unit.pipeline.conftest import run

TWO = "name: x\nstages: [{id: ask, target: integration, model: m}, {id: again, target: integration, model: m}]\n"


def run_on_terminal(*arguments: str, until: bytes, gate: Gate) -> tuple[str, str]:
    """Return the terminal output and standard output. The gate opens when `until` is in the terminal output."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    command = [sys.executable, "-m", "svc", "run", "p.yaml", "--watch", *arguments]
    drawn = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, text=True) as process:
        os.close(terminal)
        try:
            while data := os.read(controller, 4096):
                drawn += data
                if until in drawn:
                    gate.open()
        except OSError:  # the process closed its terminal
            pass
        os.close(controller)
        stdout_text = process.communicate(timeout=20)[0]
    return drawn.decode(), stdout_text


def screen(drawn: str) -> list[str]:
    """Return the lines that a terminal shows after this output."""
    lines: list[str] = [""]
    at = 0
    for row in drawn.replace("\r\n", "\n").split("\n"):
        while row:
            if row.startswith("\x1b["):
                count = row[2:].split("A")[0] if "A" in row[2:6] else ""
                if count.isdigit():
                    at, row = at - int(count), row[len(count) + 3 :]
                    continue
                assert row.startswith("\x1b[J"), row
                del lines[at + 1 :]
                lines[at], row = "", row[3:]
                continue
            cut = row.find("\x1b")
            text, row = (row, "") if cut < 0 else (row[:cut], row[cut:])
            lines[at] += text.removeprefix("\r")
        at += 1
        if at == len(lines):
            lines.append("")
    return [line for line in lines if line]


def test_watch_terminal_one_run_redraws_stages_in_place(gateway: FakeProvider) -> None:
    Path("p.yaml").write_text(TWO)
    gate = Gate()
    gateway.plays(hold(gate) + answer(400, openai_wire.error("no", "invalid_request_error")))
    drawn, stdout_text = run_on_terminal("--input", "Hi", until="▸ ask".encode(), gate=gate)
    assert "▸ ask" in drawn
    first, second, error = screen(drawn)
    assert first.startswith("✗ ask")
    assert first.endswith(" s")
    assert second == "· again"
    assert error.startswith("svc: Stage 'ask' failed")
    assert stdout_text == ""
    drawn, stdout_text = run_on_terminal("--input", "Hi", until=b"never", gate=gate)
    length = len(openai_wire.TEXT)
    assert [line[:7] for line in screen(drawn)] == ["✓ ask  ", "✓ again"]
    assert all(line.endswith(f"{length} characters") for line in screen(drawn))
    assert stdout_text == f"{openai_wire.TEXT}\n"


def test_watch_terminal_many_inputs_shows_progress(gateway: FakeProvider) -> None:
    Path("p.yaml").write_text(TWO)
    gate = Gate()
    gateway.plays(hold(gate) + answer(400, openai_wire.error("no", "invalid_request_error")))
    inputs = ["--input", "a\n" * 400, "--input", "b", "--input", "c", "--jobs", "1", "-o", "out.jsonl"]
    drawn, _ = run_on_terminal(*inputs, until="▸ ask: a a".encode(), gate=gate)
    assert "0 of 3 done" in drawn
    assert screen(drawn)[0] == "3 of 3 done, 1 failed"
    assert len(screen(drawn)) == 2  # the second line is the error


def test_watch_pipe_writes_lines(gateway: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TWO, "--input", "Hi", "--watch") == 0
    assert capsys.readouterr().err.splitlines() == ["ask: started", "again: started", "ask: done", "again: done"]
    assert run(TWO, "--input", "a", "--input", "b", "--watch", "--jobs", "1") == 0
    assert capsys.readouterr().err.splitlines() == ["1 of 2: a: done", "2 of 2: b: done"]
