"""Each observer gets the records of a batch one after the other, before what they describe is sent."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from svc.gateway.accounting.record import RequestRecord
from svc.gateway.net.io_batch import IoBatch
from svc.gateway.observability.observer import RequestObserver
from svc.gateway.observability.request_observers import RequestObservers
from svc.wire.key import ApiKey


class RecordingObserver(RequestObserver):
    """Adds its events to a shared list. The end of the request `bad` fails."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events

    def on_refusal(self, record: RequestRecord) -> None:
        self.events.append(f"{self.name} refused {record.request_id}")

    def on_end(self, record: RequestRecord) -> None:
        self.events.append(f"{self.name} {record.request_id}")
        if record.request_id == "bad":
            raise LookupError("internal")

    def on_batch_end(self) -> None:
        self.events.append(f"{self.name} all")


class Reader:
    """Reports the ends of requests in a batch. `report_end` reports the last at once."""

    def __init__(self, observers: RequestObservers, events: list[str], batch: IoBatch, *ids: str) -> None:
        self.observers = observers
        self.events = events
        self.batch = batch
        self.ids = ids

    def handle_read(self, data: bytes) -> None:
        for request_id in self.ids:
            self.observers.report_end_in_step(record(request_id))
            self.batch.schedule_step(self)
        if data:
            self.observers.report_end(record(data.decode()))

    def run_step(self) -> None:
        self.events.append("sent")

    def abort(self) -> None: ...


def record(request_id: str, *, code: str | None = None) -> RequestRecord:
    return RequestRecord(
        ApiKey("k", "name"),
        "/v1/messages",
        "m",
        "ok",
        200,
        time="2026-03-04T10:20:30.456Z",
        request_id=request_id,
        client_request_id=None,
        model="m",
        provider="p",
        attempt_count=0 if code else 1,
        duration_seconds=0.25,
        first_byte_seconds=None,
        code=code,
    )


@pytest.fixture
def batch() -> IoBatch:
    class Loop:
        def call_soon(self, callback: object) -> None: ...

    loop: Any = Loop()
    return IoBatch(loop)


def test_report_end_in_step_groups_the_records_by_observer(batch: IoBatch, caplog: pytest.LogCaptureFixture) -> None:
    events: list[str] = []
    observers = RequestObservers((RecordingObserver("a", events), RecordingObserver("b", events)), batch)
    with caplog.at_level(logging.ERROR):
        batch.add(Reader(observers, events, batch, "1", "bad"), b"", is_request=False)
        batch.add(Reader(observers, events, batch, "2"), b"", is_request=False)
        batch.handle()
    assert events == ["a 1", "a bad", "a 2", "b 1", "b bad", "b 2", "a all", "b all", "sent", "sent", "sent"]
    assert caplog.text.count("LookupError: internal") == 2


def test_report_end_in_step_without_a_batch_reports_now(batch: IoBatch) -> None:
    events: list[str] = []
    observers = RequestObservers((RecordingObserver("a", events),), batch)
    observers.report_end_in_step(record("1"))
    assert events == ["a 1", "a all"]


def test_report_end_in_a_batch_reports_now_and_all_earlier_records(batch: IoBatch) -> None:
    events: list[str] = []
    observers = RequestObservers((RecordingObserver("a", events),), batch)
    batch.add(Reader(observers, events, batch, "3"), b"4", is_request=False)
    batch.handle()
    assert events == ["a 3", "a 4", "a all", "sent"]
    observers.report_end(record("5", code="limit"))
    assert events[4:] == ["a refused 5", "a 5", "a all"]
