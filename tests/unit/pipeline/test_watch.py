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


def on_a_terminal(*arguments: str, until: bytes, then: Gate) -> tuple[str, str]:
    """What was drawn, and what came on standard output. The gate is opened when `until` has been drawn."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    command = [sys.executable, "-m", "svc", "run", "p.yaml", "--watch", *arguments]
    drawn = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        try:
            while piece := os.read(ours, 4096):
                drawn += piece
                if until in drawn:
                    then.open()
        except OSError:  # the other side is closed
            pass
        os.close(ours)
        said = process.communicate(timeout=20)[0]
    return drawn.decode(), said


def screen(drawn: str) -> list[str]:
    """What a terminal shows after all that."""
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


def test_one_run_on_a_terminal(gateway: FakeProvider) -> None:
    Path("p.yaml").write_text(TWO)
    gate = Gate()
    gateway.plays(hold(gate) + answer(400, openai_wire.error("no", "invalid_request_error")))
    drawn, said = on_a_terminal("--input", "Hi", until="▸ ask".encode(), then=gate)
    assert "▸ ask" in drawn
    first, second, error = screen(drawn)
    assert first.startswith("✗ ask")
    assert first.endswith(" s")
    assert second == "· again"
    assert error.startswith("svc: Stage 'ask' failed")
    assert said == ""
    drawn, said = on_a_terminal("--input", "Hi", until=b"never", then=gate)
    length = len(openai_wire.TEXT)
    assert [line[:7] for line in screen(drawn)] == ["✓ ask  ", "✓ again"]
    assert all(line.endswith(f"{length} characters") for line in screen(drawn))
    assert said == f"{openai_wire.TEXT}\n"


def test_many_on_a_terminal(gateway: FakeProvider) -> None:
    Path("p.yaml").write_text(TWO)
    gate = Gate()
    gateway.plays(hold(gate) + answer(400, openai_wire.error("no", "invalid_request_error")))
    inputs = ["--input", "a\n" * 400, "--input", "b", "--input", "c", "--jobs", "1", "-o", "out.jsonl"]
    drawn, _ = on_a_terminal(*inputs, until="▸ ask: a a".encode(), then=gate)
    assert "0 of 3 done" in drawn
    assert screen(drawn)[0] == "3 of 3 done, 1 failed"
    assert len(screen(drawn)) == 2  # and the error


def test_lines_in_a_pipe(gateway: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TWO, "--input", "Hi", "--watch") == 0
    assert capsys.readouterr().err.splitlines() == ["ask: started", "again: started", "ask: done", "again: done"]
    assert run(TWO, "--input", "a", "--input", "b", "--watch", "--jobs", "1") == 0
    assert capsys.readouterr().err.splitlines() == ["1 of 2: a: done", "2 of 2: b: done"]
