"""The progress bar of downloads and uploads."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from svc.cli._output import load_terminal


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
