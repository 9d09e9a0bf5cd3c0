"""Draw tables, progress bars and changing lines on a terminal, with rich. A pipe gets none of this.

rich takes 45 ms and 7 MB to import, so that `svc.cli._output` imports this module only to draw something. Console reads
NO_COLOR, FORCE_COLOR and TERM (https://rich.readthedocs.io/en/stable/console.html).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Self, TextIO

from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, JustifyMethod
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, DownloadColumn, Progress, Task, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Column, Table
from rich.text import Text

REDRAWS_PER_SECOND = 10
UNLIMITED_WIDTH = 1_000_000
"""The width of a pipe with FORCE_COLOR, in which nothing is wrapped."""
MIN_SPEED_WIDTH = 70
"""Columns of a terminal that has space for the speed of a transfer."""
STATE_STYLES = {
    "ok": "green",
    "valid": "green",
    "yes": "green",
    "off": "yellow",
    "yanked": "yellow",
    "bad": "bold red",
    "error": "bold red",
    "missing": "bold red",
    "revoked": "dim",
    "expired": "dim",
    "✓": "green",
    "✗": "bold red",
    "▸": "cyan",
}
"""First word of a state -> style."""


def print_table(
    rows: Sequence[Sequence[str]], *, right_aligned: Collection[int], state_column: int | None, has_header: bool
) -> None:
    """Print a table that fits the terminal: long texts wrap at words. If the words do not fit, print one row per
    paragraph. Names and ids are never shortened."""
    console = _create_console(sys.stdout)
    table = Table(box=None, pad_edge=False, show_header=has_header, header_style="bold")
    for index, column in enumerate(zip(*rows, strict=True)):
        is_words = any(" " in cell for cell in column)
        justify: JustifyMethod = "right" if index in right_aligned else "left"
        table.add_column(column[0], justify=justify, overflow="fold", no_wrap=not is_words)
    cells = [[_style_cell(cell, index == state_column) for index, cell in enumerate(row)] for row in rows]
    for row in cells[has_header:]:
        table.add_row(*row)
    min_width = console.measure(table, options=console.options.update(width=UNLIMITED_WIDTH)).minimum
    if not has_header or min_width <= console.width:
        console.print(table)
        return
    for row in cells[1:]:
        console.print(row[0], style="bold")
        pairs = [Text.assemble((f"{title} ", "dim"), cell) for title, cell in zip(rows[0][1:], row[1:], strict=True)]
        console.print(Padding(Columns(pairs, padding=(0, 2)), (0, 0, 0, 2)))


def print_highlighted(text: str, patterns: dict[str, str]) -> None:
    """Print a text in which regular expressions select the styled parts. Lines are not wrapped, so that they can be
    copied."""
    highlighted = Text(text)
    for pattern, style in patterns.items():
        highlighted.highlight_regex(pattern, style)
    _create_console(sys.stdout).print(highlighted, soft_wrap=True)


class _Terminal(Console):
    """A console that never hides the cursor. SIGTERM during the start of `svc up` would leave it hidden."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class _KnownSizeColumn(DownloadColumn):
    """Bytes so far and in total, or nothing while the total is unknown."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text()


class _KnownSpeedColumn(TransferSpeedColumn):
    """The speed, or nothing while it is unknown."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.speed else Text()


def crop_start(text: str, width: int) -> str:
    """Return the end of a text that fits `width` columns, after an ellipsis. Wide characters take two columns."""
    if cell_len(text) <= width:
        return text
    while cell_len(text) > width - 1:
        text = text[1:]
    return f"…{text}"


class TransferBar:
    """A progress bar for bytes on standard error. A context manager that erases the bar at its end."""

    def __init__(self) -> None:
        console = _create_console(sys.stderr)
        label = TextColumn(
            "{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
        )
        bar = BarColumn(bar_width=max(8, min(32, console.width // 4)))
        speed = (_KnownSpeedColumn(),) if console.width >= MIN_SPEED_WIDTH else ()
        # Standard output may be a pipe while standard error is a terminal. rich would write both to the terminal.
        self._progress = Progress(
            label,
            bar,
            _KnownSizeColumn(table_column=Column(no_wrap=True)),
            *speed,
            console=console,
            transient=True,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task: TaskID | None = None
        self._label = ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, label: str, done: int, total: int) -> None:
        """Show `done` of `total` bytes with a label. A total of 0 means an unknown size."""
        if self._task is None or label != self._label:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._label, self._task = label, self._progress.add_task(_printable(label), total=None)
        self._progress.update(self._task, completed=done, total=total or None)


class LiveDisplay:
    """Redraws lines on standard error in a thread. A context manager. The last lines remain."""

    def __init__(self, get_lines: Callable[[], Sequence[str]]) -> None:
        def render() -> Text:
            text = Text("\n", no_wrap=True, overflow="ellipsis")
            return text.join(_style_cell(line, True) for line in get_lines())

        self._live = Live(
            get_renderable=render,
            console=_create_console(sys.stderr),
            refresh_per_second=REDRAWS_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def _create_console(stream: TextIO) -> Console:
    return _Terminal(file=stream, highlight=False, markup=False, width=None if stream.isatty() else UNLIMITED_WIDTH)


def _style_cell(text: str, is_state: bool) -> Text:
    cell = Text(_printable(text))
    if is_state:
        word = text.partition(" ")[0]
        cell.stylize(STATE_STYLES.get(word, ""), 0, len(word))
    return cell


def _printable(text: str) -> str:
    """Replace control characters: a name must not move the cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
