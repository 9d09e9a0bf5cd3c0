"""Shared parts of the commands: the state folders, the progress bar, JSON and table output."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from svc.stores.state_dir import check_is_folder

PROGRESS_BAR_WIDTH = 24


def home() -> Path:
    """Return the state folder, `SVC_HOME`, which may not exist. Raises UsageError if it is not a folder."""
    return check_is_folder(Path(os.environ.get("SVC_HOME") or "~/.svc").expanduser())


def registry_root() -> Path:
    """Return the folder of models and bundles, `SVC_REGISTRY_ROOT`."""
    return Path(os.environ.get("SVC_REGISTRY_ROOT") or home() / "registry").expanduser()


class ProgressBar:
    """A progress bar on standard error, drawn only on a terminal. A context manager that erases the bar at its end."""

    def __init__(self) -> None:
        self._shown = ""
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __call__(self, label: str, done: int, total: int) -> None:
        """Show `done` of `total` bytes with a label. A total of 0 means an unknown size."""
        if not self._is_terminal:
            return
        filled = PROGRESS_BAR_WIDTH * done // total if total else 0
        bar = (
            f" [{'█' * filled}{' ' * (PROGRESS_BAR_WIDTH - filled)}] {done / 1e6:.0f} of {total / 1e6:.0f} MB"
            if total
            else " …"
        )
        if f"{label}{bar}" != self._shown:
            self._shown = f"{label}{bar}"
            sys.stderr.write(f"\r\x1b[K{self._shown}")
            sys.stderr.flush()


def print_json(value: Any) -> None:
    """Print a value as indented JSON, for `--json`."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(rows: Sequence[Sequence[str]], *, right_aligned: Collection[int] = ()) -> None:
    """Print aligned columns. The first row is the header. `right_aligned` has the indices of numeric columns."""
    widths = [max(map(_display_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [_pad(cell, widths[column], right_aligned=column in right_aligned) for column, cell in enumerate(row)]
        print("  ".join(cells).rstrip())


def _pad(cell: str, width: int, *, right_aligned: bool) -> str:
    space = " " * (width - _display_width(cell))
    return f"{space}{cell}" if right_aligned else f"{cell}{space}"


def _display_width(cell: str) -> int:
    """Return the terminal columns of a text: wide characters take two, combining characters none."""
    if cell.isascii():
        return len(cell)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in cell
    )
