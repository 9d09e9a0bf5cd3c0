"""The search for ledger entries, with every database, against a plain filter of the same entries."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from datetime import UTC, datetime

import msgspec
import pytest

from svc.keys.request_search import format_millis
from svc.stores.database import journal_lines
from svc.stores.database.base import Database, EntryPage, LedgerEntry
from svc.stores.database.entry_filter import EntryFilter, EntryPosition, SearchLimits
from svc.stores.database.entry_search import matches_filter
from tests.contracts.test_database import make_entry

START_MS = 1_772_600_000_000
ENTRY_COUNT = 1500
NEWEST = EntryPosition(2**60, "")


def random_entries(seed: int) -> list[LedgerEntry]:
    source = random.Random(seed)
    entries = []
    for number in range(ENTRY_COUNT):
        prefix = source.choice(["0000000000000001", "0000000000000002"])
        status = source.choice(["ok", "ok", "ok", "error", "cut"])
        entry = make_entry(
            f"req_{prefix}{number:08x}",
            time=format_millis(START_MS + source.randrange(4 * 3_600_000)),
            key_id=source.choice(["k1", "k2"]),
            model=source.choice(["m", "other", 'a "quoted" model', "ä"]),
            model_asked=source.choice([None, "alias"]),
            provider=source.choice(["p", "q"]),
            status=status,
            http_status=200 if status == "ok" else source.choice([429, 502]),
            code=None if status == "ok" else source.choice(["rate_limit_exceeded", "provider_error"]),
            tags=source.choice([{}, {"team": "a"}, {"team": "b", "x": "a"}]),
            client_request_id=source.choice([None, f"mine-{number}"]),
        )
        entries.append(entry)
    return entries


@pytest.fixture
def entries(database: Database) -> list[LedgerEntry]:
    """Entries in batches, in packed single entries, and ingested in another order than that of their times."""
    entries = random_entries(5)
    bounds = [0, 1, 2, 300, 301, 900, ENTRY_COUNT]
    for start, end in itertools.pairwise(bounds):
        assert database.insert_entries(entries[start:end]) == end - start
    return entries


def search(database: Database, filter: EntryFilter, **options: float) -> list[EntryPage]:
    """Return all pages of a search."""
    limits = msgspec.convert(options, SearchLimits)
    pages = [database.search_entries(filter, 0.0, NEWEST, limits)]
    while (end := pages[-1].next_end) is not None:
        pages.append(database.search_entries(filter, 0.0, end, limits))
    return pages


def expected(entries: list[LedgerEntry], filter: EntryFilter) -> list[str]:
    matching = [entry for entry in entries if matches_filter(filter, entry)]
    return [entry.request_id for entry in sorted(matching, key=lambda entry: (entry.time, entry.request_id))[::-1]]


FILTERS = [
    EntryFilter(),
    EntryFilter(key_id="k2"),
    EntryFilter(model="m", status="error"),
    EntryFilter(model='a "quoted" model', http_status=429),
    EntryFilter(model="ä", provider="q"),
    EntryFilter(model="alias", code="provider_error"),
    EntryFilter(tag=("team", "a"), endpoint="/v1/chat/completions"),
    EntryFilter(tag=("x", "a")),
    EntryFilter(client_request_id="mine-77"),
    EntryFilter(code="no_such_code"),
]


def test_search_pages_equal_a_plain_filter(database: Database, entries: list[LedgerEntry]) -> None:
    for filter in FILTERS:
        pages = search(database, filter, limit=37, seconds=60.0)
        assert all(len(page.entries) == 37 for page in pages[:-1]), filter
        assert [entry.request_id for page in pages for entry in page.entries] == expected(entries, filter), filter


@pytest.mark.slow
def test_search_without_time_left_continues_and_finds_each_entry_once(
    database: Database, entries: list[LedgerEntry]
) -> None:
    for filter in FILTERS:
        pages = search(database, filter, limit=37, seconds=0.0)
        assert len(pages) > 3
        assert [entry.request_id for page in pages for entry in page.entries] == expected(entries, filter), filter
        assert [page.searched_until_ms for page in pages] == sorted(
            (page.searched_until_ms for page in pages), reverse=True
        )


def test_search_page_is_stable_while_entries_arrive(database: Database, entries: list[LedgerEntry]) -> None:
    first = database.search_entries(EntryFilter(), 0.0, NEWEST, SearchLimits(limit=10))
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    database.insert_entries([make_entry("req_0000000000000003000000ff", time=now)])
    assert first.next_end is not None
    second = database.search_entries(EntryFilter(), 0.0, first.next_end, SearchLimits(limit=10))
    found = [entry.request_id for entry in first.entries + second.entries]
    assert found == expected(entries, EntryFilter())[:20]


def test_search_bounds_include_since_and_exclude_the_end(database: Database) -> None:
    ids = [f"req_{number:024x}" for number in range(3)]
    database.insert_entries([make_entry(id, time=format_millis(1000 * n + 5)) for n, id in enumerate(ids, 1)])
    page = database.search_entries(EntryFilter(), 2.005, EntryPosition(3005, ""), SearchLimits())
    assert [entry.request_id for entry in page.entries] == [ids[1]]
    assert (page.next_end, page.searched_until_ms) == (None, 2005)


def test_search_that_is_cancelled_stops(database: Database, entries: list[LedgerEntry]) -> None:
    page = database.search_entries(
        EntryFilter(), 0.0, NEWEST, SearchLimits(seconds=math.inf, is_cancelled=lambda: True)
    )
    assert page.next_end is not None


def test_interrupt_ends_a_running_statement(database: Database) -> None:
    numbers = (
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 2000000000) SELECT MAX(x) FROM n"
    )
    database.ping()
    errors: list[Exception] = []

    def run() -> None:
        try:
            database._run_statement(numbers)  # type: ignore[attr-defined]
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 10
    while thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
        database.interrupt()
        thread.join(0.2)
    assert not thread.is_alive()
    assert len(errors) == 1
    database.ping()


def test_search_reads_an_entry_in_a_batch_of_one(database: Database) -> None:
    entry = make_entry("not-of-the-gateway", client_request_id="c")
    database.insert_entries([entry])
    assert journal_lines.parse_request_id(entry.request_id) is None
    page = database.search_entries(EntryFilter(client_request_id="c"), 0.0, NEWEST, SearchLimits())
    assert page.entries == [entry]
