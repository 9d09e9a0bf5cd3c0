"""Runs a program on a real terminal of a chosen size, and returns the screen that an emulator (pyte) shows."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence

import pyte


class TerminalOutput:
    """What a program wrote to its terminal: the bytes, and the lines of the screen and of its history."""

    def __init__(self, columns: int, rows: int) -> None:
        self.raw = b""
        self.stdout_text = ""
        self.status = -1
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=1)
        self._stream = pyte.ByteStream(self._screen)

    def feed(self, data: bytes) -> None:
        self.raw += data
        self._stream.feed(data)

    @property
    def lines(self) -> list[str]:
        """The lines that are not empty, without trailing spaces."""
        history = [
            "".join(row[column].data for column in range(self._screen.columns)) for row in self._screen.history.top
        ]
        return [line for line in (text.rstrip() for text in (*history, *self._screen.display)) if line]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def is_cursor_hidden(self) -> bool:
        return bool(self._screen.cursor.hidden)


def run_on_terminal(
    command: Sequence[str],
    *,
    columns: int = 80,
    rows: int = 24,
    environ: Mapping[str, str] | None = None,
    pipe_stdout: bool = False,
    on_output: Callable[[TerminalOutput], object] = lambda _: None,
) -> TerminalOutput:
    """Run a command to its end. With `pipe_stdout`, only standard error is the terminal. `on_output` is called after
    each read."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    unset = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "CI")
    variables = {name: value for name, value in os.environ.items() if name not in unset}
    output = TerminalOutput(columns, rows)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if pipe_stdout else terminal,
        stderr=terminal,
        env={**variables, "TERM": "xterm-256color", **(environ or {})},
        start_new_session=True,
    ) as process:
        os.close(terminal)
        try:
            while data := os.read(controller, 4096):
                output.feed(data)
                on_output(output)
        except OSError:  # the process closed its terminal
            pass
        os.close(controller)
        output.stdout_text = (process.communicate(timeout=20)[0] or b"").decode()
        output.status = process.returncode
    return output
