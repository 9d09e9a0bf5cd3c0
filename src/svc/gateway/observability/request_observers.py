"""The observers of the requests of one event loop, and the events that they get."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from svc.gateway.accounting.record import AttemptRecord, RequestRecord
from svc.gateway.net.io_batch import IoBatch
from svc.gateway.observability.access_log import AccessLogEntry
from svc.gateway.observability.observer import RequestObserver, RequestStart

log = logging.getLogger("svc.gateway")

OBSERVER_FAULT: Final = "error in the observer's method %r"


class RequestObservers:
    """For each event, the methods of the observers that override the default. An event without one costs a branch.

    A fault in an observer is logged, and does not affect the client.
    """

    __slots__ = (
        "_batch",
        "_is_scheduled",
        "_waiting_records",
        "on_attempt",
        "on_batch_end",
        "on_end",
        "on_first_byte",
        "on_other_response",
        "on_refusal",
        "on_start",
    )

    def __init__(self, observers: tuple[RequestObserver, ...], batch: IoBatch) -> None:
        self._batch = batch
        self._waiting_records: list[RequestRecord] = []
        """The records of requests whose end is reported at the next step of the batch."""
        self._is_scheduled = False
        """Whether the batch runs `run_step`."""
        self.on_start: tuple[Callable[[RequestStart], None], ...] = tuple(
            [observer.on_start for observer in _overriding(observers, "on_start")]
        )
        self.on_attempt: tuple[Callable[[AttemptRecord], None], ...] = tuple(
            [observer.on_attempt for observer in _overriding(observers, "on_attempt")]
        )
        self.on_first_byte: tuple[Callable[[str, float], None], ...] = tuple(
            [observer.on_first_byte for observer in _overriding(observers, "on_first_byte")]
        )
        self.on_refusal: tuple[Callable[[RequestRecord], None], ...] = tuple(
            [observer.on_refusal for observer in _overriding(observers, "on_refusal")]
        )
        self.on_end: tuple[Callable[[RequestRecord], None], ...] = tuple(
            [observer.on_end for observer in _overriding(observers, "on_end")]
        )
        self.on_batch_end: tuple[Callable[[], None], ...] = tuple(
            [observer.on_batch_end for observer in _overriding(observers, "on_batch_end")]
        )
        self.on_other_response: tuple[Callable[[AccessLogEntry, bytes, str], None], ...] = tuple(
            [observer.on_other_response for observer in _overriding(observers, "on_other_response")]
        )

    def report_start(self, request: RequestStart) -> None:
        """Report that a request starts."""
        for on_start in self.on_start:
            try:
                on_start(request)
            except Exception:  # boundary: a fault must not affect the client
                log.exception(OBSERVER_FAULT, on_start)

    def report_attempt(self, attempt: AttemptRecord) -> None:
        """Report that an attempt ended."""
        for on_attempt in self.on_attempt:
            try:
                on_attempt(attempt)
            except Exception:  # boundary: a fault must not affect the client
                log.exception(OBSERVER_FAULT, on_attempt)

    def report_first_byte(self, request_id: str, seconds: float) -> None:
        """Report that a response starts, `seconds` after its request."""
        for on_first_byte in self.on_first_byte:
            try:
                on_first_byte(request_id, seconds * 1000)
            except Exception:  # boundary: a fault must not affect the client
                log.exception(OBSERVER_FAULT, on_first_byte)

    def report_end(self, record: RequestRecord) -> None:
        """Report that a request ended, or was refused before any attempt. Call it before the last byte is sent."""
        self._waiting_records.append(record)
        self.run_step()

    def report_end_in_step(self, record: RequestRecord) -> None:
        """Report that a request ended, at the next step of the batch of reads. Send the last byte in a step after it.

        Each observer gets the records of the batch one after the other.
        """
        self._waiting_records.append(record)
        if not self._is_scheduled or not self._batch.is_handling:
            self._is_scheduled = True
            self._batch.schedule_step(self)

    def run_step(self) -> None:
        """Report the requests that have ended."""
        self._is_scheduled = False
        records, self._waiting_records = self._waiting_records, []
        if not records:
            return
        for record in records:
            if record.code is not None and not record.attempt_count and not record.from_cache:
                self._report_refusal(record)
        for on_end in self.on_end:
            for record in records:
                try:
                    on_end(record)
                except Exception:  # boundary: a fault must not affect the client
                    log.exception(OBSERVER_FAULT, on_end)
        for on_batch_end in self.on_batch_end:
            try:
                on_batch_end()
            except Exception:  # boundary: a fault must not affect the client
                log.exception(OBSERVER_FAULT, on_batch_end)

    def _report_refusal(self, record: RequestRecord) -> None:
        for on_refusal in self.on_refusal:
            try:
                on_refusal(record)
            except Exception:  # boundary: a fault must not affect the client
                log.exception(OBSERVER_FAULT, on_refusal)

    def report_other_response(self, entry: AccessLogEntry, client_field: bytes, limit_name: str = "") -> None:
        """Report a response without a `RequestRecord`."""
        for on_other_response in self.on_other_response:
            try:
                on_other_response(entry, client_field, limit_name)
            except Exception:  # boundary: a fault must not affect the client
                log.exception(OBSERVER_FAULT, on_other_response)


def _overriding(observers: tuple[RequestObserver, ...], method: str) -> list[RequestObserver]:
    """Return the observers that override a method of `RequestObserver`."""
    default: object = getattr(RequestObserver, method)
    return [observer for observer in observers if getattr(type(observer), method) is not default]
