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

from svc.gateway import journal as journals
from svc.gateway.bill import NOTHING, Bill
from svc.gateway.intake import Intake, take_left_behind, wait_for_orphans
from svc.gateway.journal import Journal
from svc.gateway.plane import TICK
from svc.gateway.record import Lines, Record
from svc.stores import lines
from svc.stores.base import Entry, StoreDown
from svc.stores.batches import Batch, Stretch
from svc.stores.sqlite import SqliteDatabase
from svc.wire.key import Key
from svc.wire.usage import Usage

KEYS = (Key("k1", "one"), Key("k2", "two", tags={"team": "search", "app": "ß"}), Key("k3", ""))
PROCESS = "req_c37a0b2ee7673eb9"
MIDNIGHT = datetime(2026, 3, 4, 9, tzinfo=UTC).timestamp()

USAGE = st.builds(Usage, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 9), st.integers(0, 9))
BILL = st.builds(Bill, USAGE, st.integers(0, 10**12).map(lambda nanos: nanos / 10**9), st.booleans())


def record(number: int, second: float, key: Key = KEYS[0], model: str | None = "m", bill: Bill = NOTHING) -> Record:
    stamp = datetime.fromtimestamp(MIDNIGHT + second, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    return Record(
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
        attempts=1,
        seconds=0.25,
        first=0.1,
        code=None,
        bill=bill,
    )


def write(journal: Journal, one: Record) -> None:
    journal.append(Lines().line(one) + b"}\n", one)


def entries_in(batch: Batch) -> list[Entry]:
    return lines.entries_of(batch.packed, None if batch.lines is None else batch.lines.text)


def shown(found: Stretch) -> tuple[Any, ...]:
    """All of it but the batches' own ids."""
    batches = [(b.key_id, b.first, b.last, b.count, b.prefix, b.low, b.high, entries_in(b)) for b in found.batches]
    return sorted(map(repr, batches)), dict(found.hours), found.count, found.broken


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Journal]:
    journal = Journal(folder, limit=10**9)
    journal.open()
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
        BILL | st.just(NOTHING),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda one: one.request_id,
)


@settings(max_examples=200)
@given(records=RECORDS)
def test_it_is_what_reading_the_lines_comes_to(tmp_path_factory: pytest.TempPathFactory, records: list[Record]) -> None:
    with opened(tmp_path_factory.mktemp("j")) as journal:
        for one in records:
            write(journal, one)
        journal.seal()
        (tally,) = journal.tallies
        data = journal.path.read_bytes()
        assert (tally.start, tally.end, tally.count) == (0, len(data), len(records))
        assert shown(lines.read_tallied(data, tally)) == shown(lines.read(data))


@pytest.mark.parametrize("data", [b"", b"{}\n", b"{}\n{}\n{}\n"])
def test_lines_that_are_not_those_are_not_taken_for_them(tmp_path: Path, data: bytes) -> None:
    with opened(tmp_path) as journal:
        for number in range(2):
            write(journal, record(number, 0))
        journal.seal()
        with pytest.raises(ValueError, match="looked at"):
            lines.read_tallied(data, journal.tallies[0])


def test_a_price_that_was_not_known_is_looked_for(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, record(1, 0, bill=Bill(Usage(3, 4), None)))
        journal.seal()
        with pytest.raises(ValueError, match="looked at"):
            lines.read_tallied(journal.path.read_bytes(), journal.tallies[0])


def test_what_comes_while_some_waits_is_taken_together(tmp_path: Path) -> None:
    with opened(tmp_path) as journal, contextlib.closing(SqliteDatabase(tmp_path / "db")) as database:
        intake = Intake(tmp_path, database, journal=journal)
        for number in range(4):
            write(journal, record(number, 0))
            journal.seal_next()
        assert [tally.count for tally in journal.tallies] == [1]
        intake.take_all()
        journal.seal_next()
        assert [tally.count for tally in journal.tallies] == [3]
        intake.take_all()
        journal.seal_next()
        assert (intake.taken, list(journal.tallies)) == (4, [])


@pytest.mark.parametrize("took", [0.0, 0.09, 0.1, 0.3])
@pytest.mark.parametrize("phase", [0.01, 0.11, 0.21])
def test_an_entry_can_be_queried_within_two_seconds(tmp_path: Path, took: float, phase: float) -> None:
    """By a clock of the test's: 20 requests a second, a tick every TICK, and looks that take so long."""
    tick, look, new = 0.0, phase, 0.0
    waiting: list[float] = []
    longest = 0.0
    with opened(tmp_path) as journal, contextlib.closing(SqliteDatabase(tmp_path / "db")) as database:
        intake = Intake(tmp_path, database, journal=journal)
        while (now := min(tick, look, new)) < 20:
            if now == new:
                write(journal, record(round(now * 20), 0))
                waiting.append(now)
                new += 0.05
            elif now == tick:
                journal.seal_next()
                tick += TICK
            else:
                before = intake.taken
                intake.take_all()
                found = intake.taken - before
                look += took + intake.pause(found, took)
                longest = max([longest, *(now + took - at for at in waiting[:found])])
                del waiting[:found]
    assert 0.4 < longest < 1.8
    assert len(waiting) < 40


class Moody(SqliteDatabase):
    """Takes nothing now and then, and hears of it or not."""

    dice = random.Random(7)

    def take(self, journal: str, start: int, end: int, found: Stretch) -> bool:
        if self.dice.random() < 0.2:
            raise StoreDown("not now")
        took = super().take(journal, start, end, found)
        if self.dice.random() < 0.2:
            raise StoreDown("taken, and not said")
        return took


@pytest.mark.parametrize("seed", range(20))
def test_each_gets_in_once_whatever_comes_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Files that are let go of, sums that are forgotten or never made, another process that takes what it finds."""
    dice = random.Random(seed)
    made: list[Record] = []
    with contextlib.closing(Moody(tmp_path / "svc.db")) as database, opened(tmp_path / "journal") as journal:
        database.migrate()
        intake = Intake(tmp_path / "journal", database, journal=journal)
        for number in range(600):
            usage = Usage(dice.randrange(100), dice.randrange(100))
            bill = Bill(usage, dice.randrange(10**9) / 10**9)
            made.append(one := record(number, number * 9.0, dice.choice(KEYS[: 1 + seed % 3]), bill=bill))
            line = Lines().line(one) + b"}\n"
            journal.append(line, one if dice.random() < 0.95 else None)
            match dice.randrange(60):
                case 0 | 1 | 2 | 3:
                    journal.seal()
                case 4:
                    journal.open()
                case 5 if journal.tallies:
                    journal.tallies.popleft()
                case 6 | 7 | 8 | 9:
                    with contextlib.suppress(StoreDown):
                        intake.take_all()
                case 10:
                    with contextlib.suppress(StoreDown):
                        take_left_behind(tmp_path / "journal", database)
        journal.close()
        database.dice = random.Random(0)
        monkeypatch.setattr(Moody, "take", SqliteDatabase.take)
        intake.take_all()
        take_left_behind(tmp_path / "journal", database)
        assert list((tmp_path / "journal").iterdir()) == []
        assert {each.request_id for each in database.entries(limit=10_000)} == {each.request_id for each in made}
        sums = database.sums("key")
        assert sum(each.requests for each in sums) == len(made)
        usages = [each.bill.usage or Usage() for each in made]
        assert sum(each.prompt_tokens for each in sums) == sum(each.prompt_tokens for each in usages)
        assert sum(each.completion_tokens for each in sums) == sum(each.completion_tokens for each in usages)
        assert sum(each.cost_usd or 0 for each in sums) == pytest.approx(sum(each.bill.usd or 0 for each in made))


def test_what_is_summed_up_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be for nothing."""
    with contextlib.closing(SqliteDatabase(tmp_path / "svc.db")) as database, opened(tmp_path / "journal") as journal:
        database.migrate()
        intake = Intake(tmp_path / "journal", database, journal=journal)
        monkeypatch.setattr(lines, "read", None)
        for number in range(journals.STRETCH_BYTES // 100):  # several stretches, and several files
            write(journal, record(number, 0, bill=Bill(Usage(1, 1), 0.5)))
            if number % 1000 == 0:
                journal.open()
            if number % 700 == 0:
                intake.take_all()
        journal.seal()
        intake.take_all()
        assert intake.taken == number + 1
        assert database.spent({"k1": 0.0}) == {"k1": (number + 1) / 2}


class Busy(SqliteDatabase):
    """While it takes something, more is written, and summed up."""

    journal: Journal
    written = 0

    def take(self, journal: str, start: int, end: int, found: Stretch) -> bool:
        if self.written < 60:
            for _ in range(3):
                self.written += 1
                write(self.journal, record(self.written, 0))
            self.journal.open() if self.written % 5 else self.journal.seal()
        return super().take(journal, start, end, found)


def test_nor_is_what_was_written_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Busy(tmp_path / "svc.db")) as database, opened(tmp_path / "journal") as journal:
        database.migrate()
        database.journal = journal
        intake = Intake(tmp_path / "journal", database, journal=journal)
        monkeypatch.setattr(lines, "read", None)
        write(journal, record(0, 0))
        journal.seal()
        while journal.tallies:
            intake.take_all()
        assert intake.taken == database.written + 1 == 61
        intake.take_all()
        assert list((tmp_path / "journal").iterdir()) == [journal.path]


def test_the_dead_do_not_wait_until_nothing_is_written(tmp_path: Path) -> None:
    with contextlib.closing(Busy(tmp_path / "svc.db")) as database:
        database.migrate()
        with opened(tmp_path / "journal") as dead:
            dead.append(Lines().line(record(1000, 0)) + b"}\n")
        with opened(tmp_path / "journal") as journal:
            database.journal = journal
            write(journal, record(0, 0))
            journal.seal()
            Intake(tmp_path / "journal", database, journal=journal).take_all()
            assert journal.tallies
            assert database.written < 30
            assert not dead.path.exists() or not dead.path.stat().st_size


def test_nobody_else_takes_what_is_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker would have to decode it. The file is begun before one with an earlier name: the clock is set."""
    folder, database = tmp_path / "journal", SqliteDatabase(tmp_path / "svc.db")
    with contextlib.closing(database), opened(folder) as journal:
        database.migrate()
        intake = Intake(folder, database, journal=journal)
        monkeypatch.setattr(lines, "read", None)
        first = journal.path
        write(journal, record(0, 0))
        with monkeypatch.context() as clock:
            clock.setattr(journals.time, "time_ns", lambda: 1)
            journal.open()
        write(journal, record(1, 0))
        journal.seal()
        take_left_behind(folder, database)
        assert first.exists()
        assert database.entries(limit=10) == []
        intake.take_all()
        assert intake.taken == 2
        assert list(folder.iterdir()) == [journal.path]
        take_left_behind(folder, database)
        assert journal.path.exists()


class Down(SqliteDatabase):
    """Takes nothing, for a while."""

    refusals = 5

    def take(self, journal: str, start: int, end: int, found: Stretch) -> bool:
        self.refusals -= 1
        if self.refusals >= 0:
            raise StoreDown("not now")
        return super().take(journal, start, end, found)


def test_what_is_summed_up_waits_for_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Down(tmp_path / "svc.db")) as database, opened(tmp_path / "journal") as journal:
        database.migrate()
        intake = Intake(tmp_path / "journal", database, journal=journal)
        monkeypatch.setattr(lines, "read", None)
        for number in range(5):
            write(journal, record(number, 0))
            journal.seal()
            with pytest.raises(StoreDown):
                intake.take_all()
        intake.take_all()
        assert intake.taken == 5


def test_a_start_waits_for_those_who_still_write(tmp_path: Path) -> None:
    began = time.monotonic()
    wait_for_orphans(tmp_path / "journal", 5)
    assert time.monotonic() - began < 1
    with opened(tmp_path / "journal") as journal:
        wait_for_orphans(tmp_path / "journal", 0.2)
        assert time.monotonic() - began >= 0.2
        leaves = threading.Timer(0.3, journal.close)
        leaves.start()
        wait_for_orphans(tmp_path / "journal", 60)
        assert 0.5 <= time.monotonic() - began < 30
        leaves.join()
