"""What commands print: tables and progress bars on terminals of several widths, and in a pipe."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from tests.terminal import TerminalOutput, run_on_terminal

from svc.cli import _terminal

TABLE = """
from svc.cli._output import print_table
print_table(
    [("ID", "NAME", "NOTE", "N", "STATE"),
     ("key_0123456789abcdef", "東京 [red]", "a note with several words", "7", "ok"),
     ("key_fedcba9876543210", "e\\u0301t\\x1b[2J", "short", "70", "bad")],
    right_aligned=(3,), state_column=4)
"""
PROGRESS = """
import sys
from svc.cli._progress_bar import ProgressBar
with ProgressBar() as progress:
    progress("fetching [a] \\\\[/]", 0, 0)
    progress("fetching [a] \\\\[/]", 50_000_000, 100_000_000)
    progress("checking a very long name of a bundle that is wider than the terminal", 7_000_000, 100_000_000)
    input()
print("done")
print("rich" in sys.modules, file=sys.stderr)
"""
PLAIN_ROWS = [
    "ID                    NAME        NOTE                        N  STATE",
    "key_0123456789abcdef  東京 [red]  a note with several words   7  ok",
]


def run_piped(script: str, **environ: str) -> str:
    unset = ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    variables = {name: value for name, value in os.environ.items() if name not in unset} | environ
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout


def draw_table(columns: int, **environ: str) -> TerminalOutput:
    return run_on_terminal([sys.executable, "-c", TABLE], columns=columns, environ=environ)


def test_print_table_pipe_is_plain_at_any_width() -> None:
    text = run_piped(TABLE, COLUMNS="40")
    assert text.splitlines()[:2] == PLAIN_ROWS
    assert "\x1b[3" not in text


def test_print_table_pipe_does_not_import_rich() -> None:
    assert run_piped(TABLE + "import sys; print('rich' in sys.modules)").endswith("\nFalse\n")


def test_print_table_wide_terminal_has_columns_and_colors() -> None:
    output = draw_table(200)
    assert output.lines[:2] == PLAIN_ROWS
    assert b"\x1b[32mok" in output.raw
    assert b"\x1b[2J" not in output.raw  # a name does not clear the screen


def test_print_table_terminal_wraps_texts_at_words() -> None:
    lines = draw_table(60).lines
    assert [line[:20] for line in lines if line.startswith("key_")] == ["key_0123456789abcdef", "key_fedcba9876543210"]
    assert max(map(len, lines)) <= 60
    assert "several" in "".join(lines)


def test_print_table_narrow_terminal_prints_paragraphs() -> None:
    lines = draw_table(40).lines
    assert lines[:3] == ["key_0123456789abcdef", "  NAME 東京 [red]", "  NOTE a note with several words"]
    assert "  N 7" in " ".join(lines)
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_print_table_no_color_terminal_has_no_colors(columns: int) -> None:
    raw = draw_table(columns, NO_COLOR="1").raw.decode()
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", raw)


def test_print_table_force_color_in_pipe_has_colors_and_whole_lines() -> None:
    text = run_piped(TABLE, FORCE_COLOR="1", COLUMNS="40")
    assert "\x1b[32mok" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert [line.rstrip() for line in plain.splitlines()][:2] == PLAIN_ROWS
    assert "\x1b[3" not in run_piped(TABLE, FORCE_COLOR="1", NO_COLOR="1")


@pytest.mark.parametrize(("columns", "label"), [(40, "check"), (80, "checking a very"), (200, "than the terminal")])
def test_progress_bar_terminal_is_one_line_and_erased(columns: int, label: str) -> None:
    screens: list[list[str]] = []
    script = PROGRESS.replace("input()", "__import__('time').sleep(0.4)")
    output = run_on_terminal(
        [sys.executable, "-c", script], columns=columns, on_output=lambda so_far: screens.append(so_far.lines)
    )
    drawn = [screen for screen in screens if "7.0/100.0 MB" in " ".join(screen)]
    assert drawn
    assert all(len(screen) == 1 and label in screen[0] and "━" in screen[0] for screen in drawn)
    assert output.lines == ["done", "True"]


def test_progress_bar_killed_leaves_cursor_visible() -> None:
    script = PROGRESS.replace("input()", "__import__('time').sleep(0.3); __import__('os').kill(0, 9)")
    output = run_on_terminal([sys.executable, "-c", script])
    assert "checking" in output.text
    assert not output.is_cursor_hidden


def test_progress_bar_terminal_without_standard_output_leaves_pipe_alone() -> None:
    output = run_on_terminal([sys.executable, "-c", PROGRESS.replace("input()", "print('x')")], pipe_stdout=True)
    assert output.stdout_text == "x\ndone\n"


def test_progress_bar_pipe_prints_nothing_and_does_not_import_rich() -> None:
    command = [sys.executable, "-c", PROGRESS.replace("input()", "")]
    done = subprocess.run(command, env={**os.environ, "FORCE_COLOR": "1"}, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("done\n", "False\n")


@pytest.mark.parametrize(
    ("text", "cropped"), [("hello", "hello"), ("hello!", "…llo!"), ("東京都", "…京都"), ("a東京", "a東京"), ("", "")]
)
def test_crop_start_counts_columns_of_terminal(text: str, cropped: str) -> None:
    assert _terminal.crop_start(text, 5) == cropped


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["gateway", "--help"], ["up", "--help"]])
def test_svc_start_does_not_import_rich(arguments: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "svc", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert not re.search(r"\| +(rich|pygments|markdown_it)\b", done.stderr)
