"""Sums a field that only a copy of the sources has. `test_ledger_fields` runs it in that copy: FIELD HOME.

It prints where the field arrived, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from svc.gateway.accounting.bill import Bill
from svc.gateway.accounting.journal import Journal
from svc.gateway.accounting.record import RequestRecord, encode_record
from svc.gateway.endpoints.openapi import openapi_document
from svc.keys.usage_query import parse_usage_query
from svc.stores.database import journal_lines
from svc.stores.database.factory import open_database
from svc.wire.key import ApiKey
from svc.wire.usage import TokenUsage

COUNTS = (3, 4)
"""The values of the field in two requests."""


def main(field: str, home: Path) -> dict[str, Any]:
    """Write two requests to a journal, and ingest it into an older database."""
    journal = Journal(home / "journal", max_waiting_bytes=10**9)
    journal.start_new_file()
    for number, count in enumerate(COUNTS):
        record = _record(number, Bill(TokenUsage(10, 5).add(TokenUsage(**{field: count})), 0.25))
        record.line = encode_record(record)
        journal.append_records([record])
    journal.seal_segment()
    (summary,) = journal.summaries
    data = journal.path.read_bytes()
    journal.close()
    segment = journal_lines.parse_summarized_segment(data, summary)
    parsed = journal_lines.parse_segment(data)
    database = open_database(f"sqlite:///{home / 'svc.db'}")
    database.migrate()
    database.ingest(journal.path.name, database.committed_offset(journal.path.name), len(data), segment)
    entries, by_day, by_second = (
        parse_usage_query(parameters).execute(database)
        for parameters in ({}, {"by": "model"}, {"by": "model", "since": "2026-03-04T10:20:00.001Z"})
    )
    database.close()
    return {
        "lines": [json.loads(line)[field] for line in data.splitlines()],
        "segments": [getattr(sums, field) for each in (segment, parsed) for sums in each.hourly_sums.values()],
        "entries": [entry[field] for entry in entries],
        "sums": [row[field] for row in (*by_day, *by_second)],
        "openapi": json.loads(openapi_document())["components"]["schemas"]["Sum"]["properties"][field],
    }


def _record(number: int, bill: Bill) -> RequestRecord:
    return RequestRecord(
        ApiKey("k1", "one"),
        "/v1/messages",
        "m",
        "ok",
        200,
        time=f"2026-03-04T10:2{number}:00.000Z",
        request_id=f"req_c37a0b2ee7673eb9{number:08x}",
        client_request_id=None,
        model="m",
        provider="p",
        attempt_count=1,
        duration_seconds=0.25,
        first_byte_seconds=0.1,
        bill=bill,
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
