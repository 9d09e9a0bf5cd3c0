"""The client's side of the live socket: audio goes out, what the server says comes back. No files, no drawing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from svc.errors import CommandFailed, UsageError

PATIENCE = 120.0
"""Seconds without a word from the server, after which it is given up."""
FLUSH = b'{"type":"flush"}'
CLOSE = b'{"type":"close"}'


class Listening:
    """One session. Send with `audio`, `flush` and `close`; iterate over the server's messages at the same time."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def audio(self, data: bytes) -> None:
        """16-bit PCM at 16 kHz, mono. Waits when the server has enough."""
        await self._send(data)

    async def flush(self) -> None:
        """Asks for the final."""
        await self._send(FLUSH.decode())

    async def close(self) -> None:
        """Ends the session."""
        await self._send(CLOSE.decode())

    async def _send(self, data: bytes | str) -> None:
        with contextlib.suppress(ConnectionClosed):  # whoever reads the messages learns why
            await self._socket.send(data)

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """What the server says, until it closes. Raises CommandFailed when it says nothing for too long."""
        while True:
            try:
                async with asyncio.timeout(PATIENCE):
                    yield msgspec.json.decode(await self._socket.recv())
            except ConnectionClosed:
                return
            except TimeoutError:
                raise CommandFailed("The gateway has said nothing for two minutes.") from None


@contextlib.asynccontextmanager
async def listen(base_url: str, key: str | None, **config: Any) -> AsyncIterator[Listening]:
    """Opens a session at `{base_url}/audio/transcriptions/stream`; `config` are the fields of the first message.

    Raises CommandFailed when the gateway cannot be reached or refuses, UsageError for an address that is none.
    """
    url = base_url.rstrip("/").replace("http", "ws", 1) + "/audio/transcriptions/stream"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        socket = await connect(url, additional_headers=headers, max_size=1 << 22, compression=None, open_timeout=20)
    except InvalidURI:
        raise UsageError(f"{base_url!r} is not an address such as http://127.0.0.1:3000/v1.") from None
    except InvalidStatus as error:
        raise CommandFailed(_refusal(base_url, error)) from None
    except (OSError, InvalidHandshake) as error:  # TimeoutError is an OSError
        reason = getattr(error, "strerror", None) or str(error) or "it does not answer"
        raise CommandFailed(f"The gateway {base_url} cannot be reached ({reason}); {HINT}") from None
    try:
        await socket.send(msgspec.json.encode({"type": "config", **config}).decode())
        yield Listening(socket)
    finally:
        await socket.close()


HINT = "name one with SVC_GATEWAY_URL, or start one: svc up"


def _refusal(base_url: str, error: InvalidStatus) -> str:
    status = error.response.status_code
    if status == 401:
        return f"The gateway {base_url} does not accept the key; put a valid one into SVC_API_KEY."
    if status == 404:
        return f"{base_url} is no gateway with speech (404); its address ends in /v1."
    return f"The gateway {base_url} refuses the session with status {status}."
