"""The common part of streamed responses: reads server-sent events, and ends with the response or an error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

from svc.client.http_session import HttpSession, add_request_id
from svc.client.transport import ClientResponse
from svc.errors import ProviderFailed, SvcError
from svc.wire.sse import EventSplitter, split_events

ItemT = TypeVar("ItemT")

FINISH_SECONDS = 1.0
"""How long a complete stream waits for the end of its response."""


class SdkEventStream(ABC, Generic[ItemT]):
    """A streamed response. Items that were received before a failure are returned first.

    A subclass adds the items of each event to `_items`.
    """

    def __init__(self, session: HttpSession, response: ClientResponse) -> None:
        self._session, self._response = session, response
        self._splitter = EventSplitter()
        self._items: deque[ItemT] = deque()
        self._failure: SvcError | None = None
        """Raised after the items before it."""
        self._is_complete = self._closed = self._has_item = False
        self.request_id = response.headers.get("x-request-id")

    async def next(self) -> ItemT | None:
        """Return the next item, or None at the end. Raises SvcError if the stream fails or is interrupted."""
        try:
            with add_request_id(self._response):
                while not self._items and not self._closed:
                    await self._advance()
        except BaseException:
            await self.close()
            raise
        return self._items.popleft() if self._items else None

    async def _advance(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_complete:
            self._closed = True
            await self._response.finish(FINISH_SECONDS)
            return
        data = await self._session.read_chunk(self._response)
        try:
            for event in split_events(self._splitter.feed_block(data) if data else self._splitter.flush()):
                self._handle_event(event)
                self._has_item = self._has_item or bool(self._items)
            if self._is_last_event_read or not data:
                if not self._has_result:
                    raise ProviderFailed(self._describe_missing_end())
                self._is_complete = True
        except SvcError as error:
            self._failure = error

    def _describe_missing_end(self) -> str:
        content_type = self._response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self._has_item or content_type in ("", "text/event-stream"):
            return "The response was interrupted."
        # Such as the page of a web server at an address without `/v1`.
        return f"The response has the content type {content_type[:80]!r} instead of events. Check the address."

    @abstractmethod
    def _handle_event(self, event: bytes) -> None:
        """Add the items of an event. Raises SvcError."""

    @property
    @abstractmethod
    def _is_last_event_read(self) -> bool:
        """Whether no events follow."""

    @property
    @abstractmethod
    def _has_result(self) -> bool:
        """Whether the response is complete if the stream ends here."""

    async def close(self) -> None:
        """Cancel the response. Safe to call twice."""
        self._closed = True
        await self._response.close()
