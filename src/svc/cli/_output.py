"""What commands print: JSON, tables and warnings. Only a terminal gets colors."""

from __future__ import annotations

import importlib
import json
import os
import sys
import unicodedata
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any


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


def print_warning(message: str) -> None:
    """Print one line on standard error."""
    print(f"svc: {message}", file=sys.stderr)


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
