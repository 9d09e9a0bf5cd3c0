"""When the ledger accepts requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.errors import InsufficientStorage, ShuttingDown
from svc.gateway.accounting.ledger import Ledger
from svc.settings import LedgerSettings
from svc.stores.database.sqlite import SqliteDatabase


def make(home: Path, **settings: str) -> Ledger:
    return Ledger(home, LedgerSettings(**settings), SqliteDatabase(home / "svc.db"), [])  # type: ignore[arg-type]


async def test_ledger_closed_raises_shutting_down(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    ledger.start()
    ledger.ensure_accepting()
    await ledger.close()
    with pytest.raises(ShuttingDown) as caught:
        ledger.ensure_accepting()
    assert (caught.value.status, caught.value.headers) == (503, {"retry-after": "1"})


def test_ledger_stop_accepting_raises_before_journal_is_closed(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    ledger.journal.start_new_file()
    ledger.stop_accepting()
    with pytest.raises(ShuttingDown):
        ledger.ensure_accepting()
    ledger.journal.close()


@pytest.mark.parametrize("reason", ["its disk is full", "Input/output error"])
def test_ledger_full_journal_error_names_the_reason(tmp_path: Path, reason: str) -> None:
    ledger = make(tmp_path, when_full="refuse")
    ledger.journal.is_full, ledger.journal.full_reason = True, reason
    with pytest.raises(InsufficientStorage, match=reason):
        ledger.ensure_accepting()
