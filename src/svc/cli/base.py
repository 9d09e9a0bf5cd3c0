"""Shared parts of the commands: the state folders, the progress bar, JSON and table output."""

from __future__ import annotations

import importlib
import json
import os
import sys
import unicodedata
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from svc.stores.state_dir import check_is_folder


def home() -> Path:
    """Return the state folder, `SVC_HOME`, which may not exist. Raises UsageError if it is not a folder."""
    return check_is_folder(Path(os.environ.get("SVC_HOME") or "~/.svc").expanduser())


def registry_root() -> Path:
    """Return the folder of models and bundles, `SVC_REGISTRY_ROOT`."""
    return Path(os.environ.get("SVC_REGISTRY_ROOT") or home() / "registry").expanduser()


class ProgressBar:
    """A progress bar on standard error, drawn only on a terminal. A context manager that erases the bar at its end."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._exit_stack = ExitStack()
        self._bar: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit_stack.close()

    def __call__(self, label: str, done: int, total: int) -> None:
        """Show `done` of `total` bytes with a label. A total of 0 means an unknown size."""
        if not self._is_terminal:
            return
        if self._bar is None:
            self._bar = self._exit_stack.enter_context(load_terminal().TransferBar())
        self._bar.update(label, done, total)


def print_json(value: Any) -> None:
    """Print a value as indented JSON, for `--json`."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(
    rows: Sequence[Sequence[str]],
    *,
    right_aligned: Collection[int] = (),
    state_column: int | None = None,
    has_header: bool = True,
) -> None:
    """Print aligned columns. Only a terminal gets colors and wrapped texts.

    `right_aligned` has the indices of numeric columns. `state_column` is the index of the column with colors.
    """
    if is_styled():
        load_terminal().print_table(rows, right_aligned=right_aligned, state_column=state_column, has_header=has_header)
        return
    widths = [max(map(_display_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [_pad(cell, widths[column], right_aligned=column in right_aligned) for column, cell in enumerate(row)]
        print("  ".join(cells).rstrip())


def is_styled() -> bool:
    """Return whether standard output gets colors: it is a terminal, or FORCE_COLOR is set."""
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


def load_terminal() -> ModuleType:
    """Import the module that draws on terminals. It is slow to import."""
    return importlib.import_module("svc.cli._terminal")


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
