"""Concurrent clients of a gateway: an event loop in a thread, with one request at a time on each connection.

with Clients([port, …], key, 200, streams=0.5) as clients:
    ...                              # meanwhile something happens to the gateway
clients.answers                      # the result of each request, with its time
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.e2e.harness import GPT, HI
from tests.fakes.http_client import request_bytes

ID = re.compile(rb"^x-request-id: (\S+)\r$", re.M)
LENGTH = re.compile(rb"^content-length: (\d+)\r$", re.M)
PATIENCE = 30.0


@dataclass(frozen=True)
class Answer:
    """`sent` and `got` are values of `time.monotonic()`. The gateway admitted the request between them."""

    sent: float
    got: float
    status: int
    id: str
    node: int
    body: bytes = b""
    """Set for responses other than 200 and 429."""


class Clients:
    """`keep` reuses connections. Otherwise each request opens a new one, and with it may reach any worker.

    `hosts` has the address of each node, if they are not on loopback. A client then continues with the next node if
    one refuses the connection, or has closed it before the response, as load balancers do.
    """

    def __init__(
        self,
        ports: Sequence[int],
        key: str,
        count: int,
        *,
        streams: float = 0.0,
        keep: bool = True,
        pause: float = 0.0,
        hosts: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        **fields: Any,
    ) -> None:
        self.answers: list[Answer] = []
        self.lost = 0
        """Requests whose connection ended before the response was complete."""
        self.failovers = 0
        """Requests that no node has read, and that the next node got."""
        self._fails_over = bool(hosts)
        self._ports = ports
        self._hosts = hosts or ["127.0.0.1"] * len(ports)
        self._count = count
        self._streams = streams
        self._keep = keep
        self._pause = pause
        self._tls = tls
        body = {"model": GPT, "messages": HI, **fields}
        path = "/v1/chat/completions"
        self._plain = request_bytes("POST", path, body, key=key)
        self._stream = request_bytes("POST", path, {**body, "stream": True}, key=key)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="clients")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(PATIENCE + 10)

    def statuses(self) -> Counter[int]:
        return Counter(answer.status for answer in self.answers)

    def let_through(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.status == 200]

    async def _run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(self._count)))

    async def _client(self, number: int) -> None:
        node = number % len(self._ports)
        reader: asyncio.StreamReader | None = None
        writer: asyncio.StreamWriter | None = None
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(PATIENCE):
                    if reader is None or writer is None:
                        reader, writer = await asyncio.open_connection(
                            self._hosts[node],
                            self._ports[node],
                            ssl=self._tls,
                            server_hostname="localhost" if self._tls else None,
                        )
                    last = await self._ask(reader, writer, node)
            except (OSError, EOFError, TimeoutError) as error:
                if self._fails_over and (isinstance(error, ConnectionRefusedError) or _was_closed_idle(error)):
                    self.failovers += 1
                    node = (node + 1) % len(self._ports)
                else:
                    self.lost += 1
                if writer is not None:
                    writer.close()
                reader = writer = None
                await asyncio.sleep(0.01)
                continue
            if last or not self._keep:
                writer.close()
                reader = writer = None
            if self._pause:
                await asyncio.sleep(self._pause * random.uniform(0.5, 1.5))
        if writer is not None:
            writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: int) -> bool:
        """Whether the connection must not be reused."""
        streams = random.random() < self._streams
        sent = time.monotonic()
        writer.write(self._stream if streams else self._plain)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        length = LENGTH.search(head)
        if length is not None:
            body = await reader.readexactly(int(length[1]))
        else:
            body = await reader.readuntil(b"0\r\n\r\n")
            if b"[DONE]" not in body:
                raise EOFError
        found = ID.search(head)
        assert found, head
        kept = b"" if status in (200, 429) else body
        self.answers.append(Answer(sent, time.monotonic(), status, found[1].decode(), node, kept))
        return b"\r\nconnection: close\r\n" in head


def _was_closed_idle(error: Exception) -> bool:
    """Return whether the node closed the connection without a byte of the response."""
    return isinstance(error, asyncio.IncompleteReadError) and not error.partial


def certainly_within(answers: Sequence[Answer], seconds: float) -> int:
    """Return the largest number of responses that were certainly admitted within any span of that length."""
    ordered = sorted(answers, key=lambda answer: answer.got)
    most = 0
    for first in answers:
        end = first.sent + seconds
        inside = sum(first.sent <= answer.sent and answer.got <= end for answer in ordered)
        most = max(most, inside)
    return most


def pretty(found: Counter[int]) -> str:
    return json.dumps(dict(sorted(found.items())))
