"""Segment summaries made while writing equal those of parsed lines, and are ingested once."""

from __future__ import annotations

import contextlib
import random
import resource
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
from svc.gateway.accounting.record import RequestRecord, encode_record
from svc.gateway.proxy.clock import TICK_SECONDS
from svc.stores.database import journal_lines
from svc.stores.database.base import LedgerEntry, StoreUnavailable
from svc.stores.database.segment import EntryBatch, JournalSegment
from svc.stores.database.sqlite import SqliteDatabase
from svc.wire.key import ApiKey
from svc.wire.usage import TokenUsage

KEYS = (
    ApiKey("k1", "one"),
    ApiKey("k2", "two", tags={"team": "search", "app": "ß"}),
    ApiKey("k3", "", tags={"status": "ok"}),
)
PROCESS = "req_c37a0b2ee7673eb9"
MIDNIGHT = datetime(2026, 3, 4, 9, tzinfo=UTC).timestamp()

USAGE = st.builds(TokenUsage, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 9), st.integers(0, 9))
BILL = st.builds(Bill, USAGE, st.integers(0, 10**12).map(lambda nanos: nanos / 10**9), st.booleans())


def record(
    number: int,
    second: float,
    key: ApiKey = KEYS[0],
    model: str | None = "m",
    bill: Bill = EMPTY_BILL,
    status: str = "ok",
) -> RequestRecord:
    stamp = datetime.fromtimestamp(MIDNIGHT + second, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    return RequestRecord(
        key,
        "/v1/messages",
        model,
        status,
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
    one.line = encode_record(one)
    journal.append_records([one])


def entries_in(batch: EntryBatch) -> list[LedgerEntry]:
    return journal_lines.decode_batch(batch.packed_entry, None if batch.lines is None else batch.lines.text)


def comparable(found: JournalSegment) -> tuple[Any, ...]:
    """Return the segment without the batches' ids."""
    batches = [
        (b.key_id, b.first_ms, b.last_ms, b.count, b.id_prefix, b.min_number, b.max_number, entries_in(b))
        for b in found.batches
    ]
    return (
        sorted(map(repr, batches)),
        dict(found.hourly_sums),
        dict(found.status_sums),
        found.entry_count,
        found.broken_lines,
    )


@contextlib.contextmanager
def open_journal(folder: Path) -> Iterator[Journal]:
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
        st.sampled_from(["ok", "ok", "error", "cut", "client_closed"]),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda one: one.request_id,
)


@settings(max_examples=200)
@given(records=RECORDS)
def test_segment_summary_equals_summary_of_parsed_lines(
    tmp_path_factory: pytest.TempPathFactory, records: list[RequestRecord]
) -> None:
    with open_journal(tmp_path_factory.mktemp("j")) as journal:
        for one in records:
            write(journal, one)
        journal.seal_segment()
        (summary,) = journal.summaries
        data = journal.path.read_bytes()
        assert (summary.start, summary.end, summary.line_count) == (0, len(data), len(records))
        assert comparable(journal_lines.parse_summarized_segment(data, summary)) == comparable(
            journal_lines.parse_segment(data)
        )


def test_segment_has_sums_by_status_of_requests_that_are_not_ok(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        for number, status in enumerate(("ok", "error", "ok", "error", "cut")):
            write(journal, record(number, 1800 * number, KEYS[2], status=status))
        journal.seal_segment()
        found = journal_lines.parse_summarized_segment(journal.path.read_bytes(), journal.summaries[0])
    nine, tags = round(MIDNIGHT), '{"status":"ok"}'
    assert {sum_key: totals.requests for sum_key, totals in found.status_sums.items()} == {
        (nine, "k3", "m", "openai", tags, "error"): 1,
        (nine + 3600, "k3", "m", "openai", tags, "error"): 1,
        (nine + 7200, "k3", "m", "openai", tags, "cut"): 1,
    }


@pytest.mark.parametrize("data", [b"", b"{}\n", b"{}\n{}\n{}\n"])
def test_parse_summarized_segment_other_lines_raises_value_error(tmp_path: Path, data: bytes) -> None:
    with open_journal(tmp_path) as journal:
        for number in range(2):
            write(journal, record(number, 0))
        journal.seal_segment()
        with pytest.raises(ValueError, match="does not match the lines"):
            journal_lines.parse_summarized_segment(data, journal.summaries[0])


def test_parse_summarized_segment_unknown_price_raises_value_error(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        write(journal, record(1, 0, bill=Bill(TokenUsage(3, 4), None)))
        journal.seal_segment()
        with pytest.raises(ValueError, match="does not match the lines"):
            journal_lines.parse_summarized_segment(journal.path.read_bytes(), journal.summaries[0])


def test_segment_lines_written_while_one_waits_are_sealed_together(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal, contextlib.closing(SqliteDatabase(tmp_path / "db")) as database:
        ingester = JournalIngester(tmp_path, database, journal=journal)
        for number in range(4):
            write(journal, record(number, 0))
            journal.seal_segment_if_idle()
        assert [summary.line_count for summary in journal.summaries] == [1]
        ingester.ingest_all()
        journal.seal_segment_if_idle()
        assert [summary.line_count for summary in journal.summaries] == [3]
        ingester.ingest_all()
        journal.seal_segment_if_idle()
        assert (ingester.ingested_count, list(journal.summaries)) == (4, [])


@pytest.mark.parametrize("duration", [0.0, 0.09, 0.1, 0.3])
@pytest.mark.parametrize("phase", [0.01, 0.11, 0.21])
def test_ingest_delay_until_entry_is_queryable_is_below_two_seconds(
    tmp_path: Path, duration: float, phase: float
) -> None:
    """Simulated clock: 20 requests a second, a tick every TICK_SECONDS, and ingests of `duration` seconds."""
    tick, look, new = 0.0, phase, 0.0
    waiting: list[float] = []
    longest = 0.0
    with open_journal(tmp_path) as journal, contextlib.closing(SqliteDatabase(tmp_path / "db")) as database:
        ingester = JournalIngester(tmp_path, database, journal=journal)
        while (now := min(tick, look, new)) < 20:
            if now == new:
                write(journal, record(round(now * 20), 0))
                waiting.append(now)
                new += 0.05
            elif now == tick:
                journal.seal_segment_if_idle()
                tick += TICK_SECONDS
            else:
                before = ingester.ingested_count
                ingester.ingest_all()
                found = ingester.ingested_count - before
                look += duration + ingester.next_pause_seconds(found, duration)
                longest = max([longest, *(now + duration - at for at in waiting[:found])])
                del waiting[:found]
    assert 0.4 < longest < 1.8
    assert len(waiting) < 40


class FlakyDatabase(SqliteDatabase):
    """Fails sometimes, before or after the commit."""

    dice = random.Random(7)

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        if self.dice.random() < 0.2:
            raise StoreUnavailable("not now")
        is_new = super().ingest(journal, start, end, segment)
        if self.dice.random() < 0.2:
            raise StoreUnavailable("committed, but the reply was lost")
        return is_new


SLOW_SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20)]


@pytest.mark.parametrize("seed", [*range(4), *SLOW_SEEDS])
def test_ingest_random_failures_and_rotations_adds_each_entry_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Rotated files, missing summaries, and another process that ingests orphans."""
    dice = random.Random(seed)
    made: list[RequestRecord] = []
    with (
        contextlib.closing(FlakyDatabase(tmp_path / "svc.db")) as database,
        open_journal(tmp_path / "journal") as journal,
    ):
        database.migrate()
        ingester = JournalIngester(tmp_path / "journal", database, journal=journal)
        for number in range(600):
            usage = TokenUsage(dice.randrange(100), dice.randrange(100))
            bill = Bill(usage, dice.randrange(10**9) / 10**9)
            made.append(one := record(number, number * 9.0, dice.choice(KEYS[: 1 + seed % 3]), bill=bill))
            if dice.random() < 0.95:
                write(journal, one)
            else:
                journal.append(encode_record(one) + b"}\n")
            match dice.randrange(60):
                case 0 | 1 | 2 | 3:
                    journal.seal_segment()
                case 4:
                    journal.start_new_file()
                case 5 if journal.summaries:
                    journal.summaries.popleft()
                case 6 | 7 | 8 | 9:
                    with contextlib.suppress(StoreUnavailable):
                        ingester.ingest_all()
                case 10:
                    with contextlib.suppress(StoreUnavailable):
                        ingest_orphans(tmp_path / "journal", database)
        journal.close()
        database.dice = random.Random(0)
        monkeypatch.setattr(FlakyDatabase, "ingest", SqliteDatabase.ingest)
        ingester.ingest_all()
        ingest_orphans(tmp_path / "journal", database)
        assert list((tmp_path / "journal").iterdir()) == []
        assert {each.request_id for each in database.list_entries(limit=10_000)} == {each.request_id for each in made}
        sums = database.aggregate_usage("key")
        assert sum(each.requests for each in sums) == len(made)
        usages = [each.bill.usage or TokenUsage() for each in made]
        assert sum(each.prompt_tokens for each in sums) == sum(each.prompt_tokens for each in usages)
        assert sum(each.completion_tokens for each in sums) == sum(each.completion_tokens for each in usages)
        assert sum(each.cost_usd or 0 for each in sums) == pytest.approx(sum(each.bill.cost_usd or 0 for each in made))


def test_ingest_summarized_segment_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding would make the summary useless."""
    with (
        contextlib.closing(SqliteDatabase(tmp_path / "svc.db")) as database,
        open_journal(tmp_path / "journal") as journal,
    ):
        database.migrate()
        ingester = JournalIngester(tmp_path / "journal", database, journal=journal)
        monkeypatch.setattr(journal_lines, "parse_segment", None)
        for number in range(journals.SEGMENT_BYTES // 100):  # several segments and several files
            write(journal, record(number, 0, bill=Bill(TokenUsage(1, 1), 0.5)))
            if number % 1000 == 0:
                journal.start_new_file()
            if number % 700 == 0:
                ingester.ingest_all()
        journal.seal_segment()
        ingester.ingest_all()
        assert ingester.ingested_count == number + 1
        assert database.get_spent_usd({"k1": 0.0}) == {"k1": (number + 1) / 2}


class WritingDatabase(SqliteDatabase):
    """While this database ingests, more lines are written and summarized."""

    journal: Journal
    written = 0

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        if self.written < 60:
            for _ in range(3):
                self.written += 1
                write(self.journal, record(self.written, 0))
            self.journal.start_new_file() if self.written % 5 else self.journal.seal_segment()
        return super().ingest(journal, start, end, segment)


def test_ingest_lines_written_during_ingest_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        contextlib.closing(WritingDatabase(tmp_path / "svc.db")) as database,
        open_journal(tmp_path / "journal") as journal,
    ):
        database.migrate()
        database.journal = journal
        ingester = JournalIngester(tmp_path / "journal", database, journal=journal)
        monkeypatch.setattr(journal_lines, "parse_segment", None)
        write(journal, record(0, 0))
        journal.seal_segment()
        while journal.summaries:
            ingester.ingest_all()
        assert ingester.ingested_count == database.written + 1 == 61
        ingester.ingest_all()
        assert list((tmp_path / "journal").iterdir()) == [journal.path]


def test_ingest_orphan_journal_is_ingested_while_new_lines_arrive(tmp_path: Path) -> None:
    with contextlib.closing(WritingDatabase(tmp_path / "svc.db")) as database:
        database.migrate()
        with open_journal(tmp_path / "journal") as orphan:
            orphan.append(encode_record(record(1000, 0)) + b"}\n")
        with open_journal(tmp_path / "journal") as journal:
            database.journal = journal
            write(journal, record(0, 0))
            journal.seal_segment()
            JournalIngester(tmp_path / "journal", database, journal=journal).ingest_all()
            assert journal.summaries
            assert database.written < 30
            assert not orphan.path.exists() or not orphan.path.stat().st_size


def test_ingest_orphans_summarized_journal_is_left_to_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker would have to decode the lines. The clock is set back, so the second file sorts first."""
    folder, database = tmp_path / "journal", SqliteDatabase(tmp_path / "svc.db")
    with contextlib.closing(database), open_journal(folder) as journal:
        database.migrate()
        ingester = JournalIngester(folder, database, journal=journal)
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
        ingester.ingest_all()
        assert ingester.ingested_count == 2
        assert list(folder.iterdir()) == [journal.path]
        ingest_orphans(folder, database)
        assert journal.path.exists()


class UnavailableDatabase(SqliteDatabase):
    """Rejects the first ingests."""

    failures_left = 5

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        self.failures_left -= 1
        if self.failures_left >= 0:
            raise StoreUnavailable("not now")
        return super().ingest(journal, start, end, segment)


def test_ingest_unavailable_database_keeps_summarized_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        contextlib.closing(UnavailableDatabase(tmp_path / "svc.db")) as database,
        open_journal(tmp_path / "journal") as journal,
    ):
        database.migrate()
        ingester = JournalIngester(tmp_path / "journal", database, journal=journal)
        monkeypatch.setattr(journal_lines, "parse_segment", None)
        for number in range(5):
            write(journal, record(number, 0))
            journal.seal_segment()
            with pytest.raises(StoreUnavailable):
                ingester.ingest_all()
        ingester.ingest_all()
        assert ingester.ingested_count == 5


def test_wait_for_journal_writers_returns_after_close_or_timeout(tmp_path: Path) -> None:
    began = time.monotonic()
    wait_for_journal_writers(tmp_path / "journal", 5)
    assert time.monotonic() - began < 1
    with open_journal(tmp_path / "journal") as journal:
        wait_for_journal_writers(tmp_path / "journal", 0.2)
        assert time.monotonic() - began >= 0.2
        closer = threading.Timer(0.3, journal.close)
        closer.start()
        wait_for_journal_writers(tmp_path / "journal", 60)
        assert 0.5 <= time.monotonic() - began < 30
        closer.join()


@pytest.mark.parametrize("line_count", [0, 1, 2, 3])
@pytest.mark.parametrize("more_bytes", [0, 1, 100])
def test_journal_disk_full_within_write_loses_no_record(tmp_path: Path, line_count: int, more_bytes: int) -> None:
    """Complete lines stay in the file and in its summary, and memory keeps the others. None is stored twice."""
    records = [record(number, number) for number in range(3)]
    for each in records:
        each.line = encode_record(each)
    room = sum(len(each.line) + len(b"}\n") for each in records[:line_count]) + more_bytes
    with (
        contextlib.closing(SqliteDatabase(tmp_path / "svc.db")) as database,
        open_journal(tmp_path / "journal") as journal,
    ):
        database.migrate()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            journal.append_records(records)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert journal.is_full == (line_count < 3)
        assert journal.path.read_bytes() == b"".join(each.line + b"}\n" for each in records[:line_count])
        journal.seal_segment()
        assert sum(summary.line_count for summary in journal.summaries) == line_count
        if journal.is_full:
            journal.recover()
        write(journal, record(3, 3.0))
        ingester = JournalIngester(tmp_path / "journal", database, journal=journal)
        journal.close()
        ingester.ingest_all()
        ingest_orphans(tmp_path / "journal", database)
        assert sorted(each.request_id for each in database.list_entries()) == [
            f"{PROCESS}{number:08x}" for number in range(4)
        ]
        assert sum(each.requests for each in database.aggregate_usage("key")) == 4
