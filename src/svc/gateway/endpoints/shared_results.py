"""Shares the result of a query between callers that come within a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _SharedResult(Generic[T]):
    """A query, and how many callers wait for it."""

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting = 0


class SharedResults(Generic[T]):
    """Runs one query for all callers with the same key within `seconds` of its start. Belongs to one event loop.

    A query is cancelled when no caller waits for it. An error is shared by those that wait, and not remembered.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._results: dict[Hashable, _SharedResult[T]] = {}

    async def get(self, key: Hashable, query: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result for `key`. Raises the exceptions of `query`."""
        shared = self._results.get(key)
        if shared is None:
            shared = self._start(key, query)
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting and not shared.task.done():
                self._forget(key, shared)
                shared.task.cancel()

    def _start(self, key: Hashable, query: Callable[[], Coroutine[Any, Any, T]]) -> _SharedResult[T]:
        loop = asyncio.get_running_loop()
        shared = self._results[key] = _SharedResult(loop.create_task(query()))
        loop.call_later(self._seconds, self._forget, key, shared)
        shared.task.add_done_callback(lambda task: self._on_done(key, shared, task))
        return shared

    def _on_done(self, key: Hashable, shared: _SharedResult[T], task: asyncio.Task[T]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._forget(key, shared)

    def _forget(self, key: Hashable, shared: _SharedResult[T]) -> None:
        if self._results.get(key) is shared:
            del self._results[key]
