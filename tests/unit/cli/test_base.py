"""svc.cli.base: the progress bar on a terminal and in a pipe."""

import io

import pytest

from svc.cli import base


class Screen(io.StringIO):
    """A standard error stream with a chosen `isatty`."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def progress_output(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stderr", screen)
    with base.ProgressBar() as progress:
        progress("fetching", 0, 100_000_000)
        progress("fetching", 50_000_000, 100_000_000)
        progress("waiting", 0, 0)
    return screen.getvalue()


def test_progress_bar_on_terminal_is_shown_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    text = progress_output(monkeypatch, terminal=True)
    assert f"fetching [{'█' * 12}{' ' * 12}] 50 of 100 MB" in text
    assert "waiting …" in text
    assert text.endswith("\r\x1b[K")
    assert "\n" not in text


def test_progress_bar_in_pipe_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress_output(monkeypatch, terminal=False) == ""
