"""Cancels the work of a request whose client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

T = TypeVar("T")
CLIENT_CLOSED_REQUEST: Final = 499
"""The status in the access log of a request whose client disconnected."""


async def run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, or cancel it and return None when the client disconnects."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, watcher):
            each.cancel()
        await asyncio.wait({task, watcher})


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_or_disconnected(body: bytes | None) -> Response:
    """Return a JSON response, or for None one that no client receives."""
    if body is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return Response(body, HTTPStatus.OK, media_type="application/json")
