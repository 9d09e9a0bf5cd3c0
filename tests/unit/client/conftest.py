"""A server, and calls of both clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider

import svc

Call = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[FakeProvider]:
    with FakeProvider(OpenAIWire(), key="key-1") as fake:
        yield fake


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, server: FakeProvider) -> Call:
    """`call(name, *args)` calls a method of a new blocking or asynchronous client."""

    def do(method: str, *args: Any, client: dict[str, Any] | None = None, **named: Any) -> Any:
        options = {"gateway_url": f"{server.address}/v1", "api_key": "key-1", **(client or {})}
        if request.param == "sync":
            with svc.Client(**options) as one:
                made = getattr(one, method)(*args, **named)
                return (list(made), made) if named.get("stream") else made

        async def run() -> Any:
            async with svc.AsyncClient(**options) as other:
                made = await getattr(other, method)(*args, **named)
                return ([chunk async for chunk in made], made) if named.get("stream") else made

        return asyncio.run(run())

    return do
