"""What the loop sums up while it writes is what reading the lines would come to, and gets in once."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.gateway.accounting import journal as journals
from svc.gateway.accounting.bill import EMPTY_BILL, Bill
from svc.gateway.accounting.ingest import JournalIngester, ingest_orphans, wait_for_journal_writers
from svc.gateway.accounting.journal import Journal
from svc.gateway.accounting.record import RecordEncoder, RequestRecord
from svc.gateway.proxy.clock import TICK_SECONDS
from svc.stores.database import journal_lines
from svc.stores.database.base import LedgerEntry, StoreUnavailable
from svc.stores.database.segment import EntryBatch, JournalSegment
from svc.stores.database.sqlite import SqliteDatabase
from svc.wire.key import ApiKey
from svc.wire.usage import TokenUsage

KEYS = (ApiKey("k1", "one"), ApiKey("k2", "two", tags={"team": "search", "app": "ß"}), ApiKey("k3", ""))
PROCESS = "req_c37a0b2ee7673eb9"
MIDNIGHT = datetime(2026, 3, 4, 9, tzinfo=UTC).timestamp()

USAGE = st.builds(TokenUsage, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 9), st.integers(0, 9))
BILL = st.builds(Bill, USAGE, st.integers(0, 10**12).map(lambda nanos: nanos / 10**9), st.booleans())


def record(
    number: int, second: float, key: ApiKey = KEYS[0], model: str | None = "m", bill: Bill = EMPTY_BILL
) -> RequestRecord:
    stamp = datetime.fromtimestamp(MIDNIGHT + second, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    return RequestRecord(
        key,
        "/v1/messages",
        model,
        "ok",
        200,
        time=stamp,
        request_id=f"{PROCESS}{number:08x}",
        client_request_id=None,
        model=model,
        provider=model and "openai",
        attempt_count=1,
        duration_seconds=0.25,
        first_byte_seconds=0.1,
        code=None,
        bill=bill,
    )


def write(journal: Journal, one: RequestRecord) -> None:
    journal.append(RecordEncoder().encode(one) + b"}\n", one)


def entries_in(batch: EntryBatch) -> list[LedgerEntry]:
    return journal_lines.decode_batch(batch.packed_entry, None if batch.lines is None else batch.lines.text)


def shown(found: JournalSegment) -> tuple[Any, ...]:
    """All of it but the batches' own ids."""
    batches = [
        (b.key_id, b.first_ms, b.last_ms, b.count, b.id_prefix, b.min_number, b.max_number, entries_in(b))
        for b in found.batches
    ]
    return sorted(map(repr, batches)), dict(found.hourly_sums), found.entry_count, found.broken_lines


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Journal]:
    journal = Journal(folder, max_waiting_bytes=10**9)
    journal.start_new_file()
    try:
        yield journal
    finally:
        journal.close()


RECORDS = st.lists(
    st.builds(
        record,
        st.integers(0, 2**32 - 1),
        st.floats(0, 7200),
        st.sampled_from(KEYS),
        st.sampled_from(["m", "größe", None]),
        BILL | st.just(EMPTY_BILL),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda one: one.request_id,
)


@settings(max_examples=200)
@given(records=RECORDS)
def test_it_is_what_reading_the_lines_comes_to(
    tmp_path_factory: pytest.TempPathFactory, records: list[RequestRecord]
) -> None:
    with opened(tmp_path_factory.mktemp("j")) as journal:
        for one in records:
            write(journal, one)
        journal.seal_segment()
        (tally,) = journal.summaries
        data = journal.path.read_bytes()
        assert (tally.start, tally.end, tally.line_count) == (0, len(data), len(records))
        assert shown(journal_lines.parse_summarized_segment(data, tally)) == shown(journal_lines.parse_segment(data))


@pytest.mark.parametrize("data", [b"", b"{}\n", b"{}\n{}\n{}\n"])
def test_lines_that_are_not_those_are_not_taken_for_them(tmp_path: Path, data: bytes) -> None:
    with opened(tmp_path) as journal:
        for number in range(2):
            write(journal, record(number, 0))
        journal.seal_segment()
        with pytest.raises(ValueError, match="looked at"):
            journal_lines.parse_summarized_segment(data, journal.summaries[0])


def test_a_price_that_was_not_known_is_looked_for(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, record(1, 0, bill=Bill(TokenUsage(3, 4), None)))
        journal.seal_segment()
        with pytest.raises(ValueError, match="looked at"):
            journal_lines.parse_summarized_segment(journal.path.read_bytes(), journal.summaries[0])


def test_what_comes_while_some_waits_is_taken_together(tmp_path: Path) -> None:
    with opened(tmp_path) as journal, contextlib.closing(SqliteDatabase(tmp_path / "db")) as database:
        intake = JournalIngester(tmp_path, database, journal=journal)
        for number in range(4):
            write(journal, record(number, 0))
            journal.seal_segment_if_idle()
        assert [tally.line_count for tally in journal.summaries] == [1]
        intake.ingest_all()
        journal.seal_segment_if_idle()
        assert [tally.line_count for tally in journal.summaries] == [3]
        intake.ingest_all()
        journal.seal_segment_if_idle()
        assert (intake.ingested_count, list(journal.summaries)) == (4, [])


@pytest.mark.parametrize("took", [0.0, 0.09, 0.1, 0.3])
@pytest.mark.parametrize("phase", [0.01, 0.11, 0.21])
def test_an_entry_can_be_queried_within_two_seconds(tmp_path: Path, took: float, phase: float) -> None:
    """By a clock of the test's: 20 requests a second, a tick every TICK, and looks that take so long."""
    tick, look, new = 0.0, phase, 0.0
    waiting: list[float] = []
    longest = 0.0
    with opened(tmp_path) as journal, contextlib.closing(SqliteDatabase(tmp_path / "db")) as database:
        intake = JournalIngester(tmp_path, database, journal=journal)
        while (now := min(tick, look, new)) < 20:
            if now == new:
                write(journal, record(round(now * 20), 0))
                waiting.append(now)
                new += 0.05
            elif now == tick:
                journal.seal_segment_if_idle()
                tick += TICK_SECONDS
            else:
                before = intake.ingested_count
                intake.ingest_all()
                found = intake.ingested_count - before
                look += took + intake.next_pause_seconds(found, took)
                longest = max([longest, *(now + took - at for at in waiting[:found])])
                del waiting[:found]
    assert 0.4 < longest < 1.8
    assert len(waiting) < 40


class Moody(SqliteDatabase):
    """Takes nothing now and then, and hears of it or not."""

    dice = random.Random(7)

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        if self.dice.random() < 0.2:
            raise StoreUnavailable("not now")
        took = super().ingest(journal, start, end, segment)
        if self.dice.random() < 0.2:
            raise StoreUnavailable("taken, and not said")
        return took


@pytest.mark.parametrize("seed", range(20))
def test_each_gets_in_once_whatever_comes_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Files that are let go of, sums that are forgotten or never made, another process that takes what it finds."""
    dice = random.Random(seed)
    made: list[RequestRecord] = []
    with contextlib.closing(Moody(tmp_path / "svc.db")) as database, opened(tmp_path / "journal") as journal:
        database.migrate()
        intake = JournalIngester(tmp_path / "journal", database, journal=journal)
        for number in range(600):
            usage = TokenUsage(dice.randrange(100), dice.randrange(100))
            bill = Bill(usage, dice.randrange(10**9) / 10**9)
            made.append(one := record(number, number * 9.0, dice.choice(KEYS[: 1 + seed % 3]), bill=bill))
            line = RecordEncoder().encode(one) + b"}\n"
            journal.append(line, one if dice.random() < 0.95 else None)
            match dice.randrange(60):
                case 0 | 1 | 2 | 3:
                    journal.seal_segment()
                case 4:
                    journal.start_new_file()
                case 5 if journal.summaries:
                    journal.summaries.popleft()
                case 6 | 7 | 8 | 9:
                    with contextlib.suppress(StoreUnavailable):
                        intake.ingest_all()
                case 10:
                    with contextlib.suppress(StoreUnavailable):
                        ingest_orphans(tmp_path / "journal", database)
        journal.close()
        database.dice = random.Random(0)
        monkeypatch.setattr(Moody, "ingest", SqliteDatabase.ingest)
        intake.ingest_all()
        ingest_orphans(tmp_path / "journal", database)
        assert list((tmp_path / "journal").iterdir()) == []
        assert {each.request_id for each in database.list_entries(limit=10_000)} == {each.request_id for each in made}
        sums = database.aggregate_usage("key")
        assert sum(each.requests for each in sums) == len(made)
        usages = [each.bill.usage or TokenUsage() for each in made]
        assert sum(each.prompt_tokens for each in sums) == sum(each.prompt_tokens for each in usages)
        assert sum(each.completion_tokens for each in sums) == sum(each.completion_tokens for each in usages)
        assert sum(each.cost_usd or 0 for each in sums) == pytest.approx(sum(each.bill.cost_usd or 0 for each in made))


def test_what_is_summed_up_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be for nothing."""
    with contextlib.closing(SqliteDatabase(tmp_path / "svc.db")) as database, opened(tmp_path / "journal") as journal:
        database.migrate()
        intake = JournalIngester(tmp_path / "journal", database, journal=journal)
        monkeypatch.setattr(journal_lines, "parse_segment", None)
        for number in range(journals.SEGMENT_BYTES // 100):  # several stretches, and several files
            write(journal, record(number, 0, bill=Bill(TokenUsage(1, 1), 0.5)))
            if number % 1000 == 0:
                journal.start_new_file()
            if number % 700 == 0:
                intake.ingest_all()
        journal.seal_segment()
        intake.ingest_all()
        assert intake.ingested_count == number + 1
        assert database.get_spent_usd({"k1": 0.0}) == {"k1": (number + 1) / 2}


class Busy(SqliteDatabase):
    """While it takes something, more is written, and summed up."""

    journal: Journal
    written = 0

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        if self.written < 60:
            for _ in range(3):
                self.written += 1
                write(self.journal, record(self.written, 0))
            self.journal.start_new_file() if self.written % 5 else self.journal.seal_segment()
        return super().ingest(journal, start, end, segment)


def test_nor_is_what_was_written_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Busy(tmp_path / "svc.db")) as database, opened(tmp_path / "journal") as journal:
        database.migrate()
        database.journal = journal
        intake = JournalIngester(tmp_path / "journal", database, journal=journal)
        monkeypatch.setattr(journal_lines, "parse_segment", None)
        write(journal, record(0, 0))
        journal.seal_segment()
        while journal.summaries:
            intake.ingest_all()
        assert intake.ingested_count == database.written + 1 == 61
        intake.ingest_all()
        assert list((tmp_path / "journal").iterdir()) == [journal.path]


def test_the_dead_do_not_wait_until_nothing_is_written(tmp_path: Path) -> None:
    with contextlib.closing(Busy(tmp_path / "svc.db")) as database:
        database.migrate()
        with opened(tmp_path / "journal") as dead:
            dead.append(RecordEncoder().encode(record(1000, 0)) + b"}\n")
        with opened(tmp_path / "journal") as journal:
            database.journal = journal
            write(journal, record(0, 0))
            journal.seal_segment()
            JournalIngester(tmp_path / "journal", database, journal=journal).ingest_all()
            assert journal.summaries
            assert database.written < 30
            assert not dead.path.exists() or not dead.path.stat().st_size


def test_nobody_else_takes_what_is_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker would have to decode it. The file is begun before one with an earlier name: the clock is set."""
    folder, database = tmp_path / "journal", SqliteDatabase(tmp_path / "svc.db")
    with contextlib.closing(database), opened(folder) as journal:
        database.migrate()
        intake = JournalIngester(folder, database, journal=journal)
        monkeypatch.setattr(journal_lines, "parse_segment", None)
        first = journal.path
        write(journal, record(0, 0))
        with monkeypatch.context() as clock:
            clock.setattr(journals.time, "time_ns", lambda: 1)
            journal.start_new_file()
        write(journal, record(1, 0))
        journal.seal_segment()
        ingest_orphans(folder, database)
        assert first.exists()
        assert database.list_entries(limit=10) == []
        intake.ingest_all()
        assert intake.ingested_count == 2
        assert list(folder.iterdir()) == [journal.path]
        ingest_orphans(folder, database)
        assert journal.path.exists()


class Down(SqliteDatabase):
    """Takes nothing, for a while."""

    refusals = 5

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        self.refusals -= 1
        if self.refusals >= 0:
            raise StoreUnavailable("not now")
        return super().ingest(journal, start, end, segment)


def test_what_is_summed_up_waits_for_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Down(tmp_path / "svc.db")) as database, opened(tmp_path / "journal") as journal:
        database.migrate()
        intake = JournalIngester(tmp_path / "journal", database, journal=journal)
        monkeypatch.setattr(journal_lines, "parse_segment", None)
        for number in range(5):
            write(journal, record(number, 0))
            journal.seal_segment()
            with pytest.raises(StoreUnavailable):
                intake.ingest_all()
        intake.ingest_all()
        assert intake.ingested_count == 5


def test_a_start_waits_for_those_who_still_write(tmp_path: Path) -> None:
    began = time.monotonic()
    wait_for_journal_writers(tmp_path / "journal", 5)
    assert time.monotonic() - began < 1
    with opened(tmp_path / "journal") as journal:
        wait_for_journal_writers(tmp_path / "journal", 0.2)
        assert time.monotonic() - began >= 0.2
        leaves = threading.Timer(0.3, journal.close)
        leaves.start()
        wait_for_journal_writers(tmp_path / "journal", 60)
        assert 0.5 <= time.monotonic() - began < 30
        leaves.join()
