"""Whether what is configured answers: a provider one cheap request, anything else a connection. No verb.

    connection ──> TLS, where the address says so ──> GET of the models ──> the status that came, behind interim ones

All of it together has PROBE_SECONDS; what does not come in time is told by the step that it was to come in.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
from typing import Final

from svc.gateway.offers import origin_of
from svc.gateway.providers import Origin, Provider

PROBE_SECONDS: Final = 3.0
STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)")
STATUS_BYTES: Final = len("HTTP/1.1 200")
INTERIM: Final = re.compile(rb"HTTP/1\.[01] 1(?!01)\d\d")
"""Another answer follows, on the same connection; after `101 Switching Protocols` none does."""
MAX_INTERIM: Final = 20
"""Interim answers that are passed over; each may have as many bytes as a StreamReader keeps, 64 KiB."""
TLS_ALERT: Final = b"\x15\x03"
"""How a server of TLS begins what it says to who speaks plain HTTP."""


class Unreachable(Exception):
    """Why no answer came, in words for who configured the address."""


def ask(provider: Provider, tls: ssl.SSLContext) -> int:
    """The status that a provider answers with to a request for its models. Raises Unreachable."""
    origin = origin_of(provider)
    deadline = time.monotonic() + PROBE_SECONDS
    plain = _connected(origin.host, origin.port)
    try:
        said = asyncio.run(_said(plain, origin, _request(provider), tls, deadline - time.monotonic()))
    finally:
        plain.close()
    if status := STATUS.match(said):
        return int(status[1])
    if said.startswith(TLS_ALERT):
        raise Unreachable("it speaks TLS: its address has to begin with https://")
    raise Unreachable("what it answers is not HTTP" if said else "it closed the connection without an answer")


def reach(host: str, port: int) -> None:
    """Makes a connection, and says nothing on it. Raises Unreachable."""
    _connected(host, port).close()


def _connected(host: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((host, port), timeout=PROBE_SECONDS)
    except TimeoutError:
        raise Unreachable(f"no connection within {PROBE_SECONDS:g} s") from None
    except socket.gaierror as error:
        raise Unreachable(f"its host name is not known ({error.strerror})") from None
    except OSError as error:
        raise Unreachable(_words(error)) from None
    except ValueError as error:  # a name that cannot be encoded
        raise Unreachable(f"its host name is none ({error})") from None


def _request(provider: Provider) -> bytes:
    """With the provider's key, as each chat is sent there."""
    address, dialect = provider.address, provider.dialect
    lines = [
        f"GET {address.path}{dialect.models_path} HTTP/1.1",
        f"host: {address.netloc}",
        "accept: application/json",
        "user-agent: svc",
        "connection: close",
        *[f"{name}: {value}" for name, value in dialect.credentials(provider.key)],
        "\r\n",
    ]
    return "\r\n".join(lines).encode("ascii")


async def _said(plain: socket.socket, origin: Origin, request: bytes, tls: ssl.SSLContext, seconds: float) -> bytes:
    """The beginning of the answer; empty when there is none. Raises Unreachable."""
    reader, writer = await asyncio.open_connection(sock=plain)
    try:
        async with asyncio.timeout(seconds):
            if origin.tls:
                await _secure(writer, origin.host, tls)
            return await _answer(reader, writer, request)
    except TimeoutError:
        secured = not origin.tls or writer.get_extra_info("ssl_object") is not None
        missing = "sends no answer" if secured else "does not finish the TLS handshake"
        raise Unreachable(f"it takes the connection, but {missing} within {PROBE_SECONDS:g} s") from None
    except OSError as error:
        raise Unreachable(_words(error)) from None
    finally:
        writer.transport.abort()


async def _secure(writer: asyncio.StreamWriter, host: str, tls: ssl.SSLContext) -> None:
    try:
        await writer.start_tls(tls, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise Unreachable(f"its certificate is refused: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise Unreachable(
            f"it speaks no TLS that we know ({error.reason or error}); for plain HTTP its address begins with http://"
        ) from None
    except ConnectionError:
        raise Unreachable("it closed the connection in the TLS handshake") from None
    except ValueError as error:  # no name that TLS knows
        raise Unreachable(f"its host name is none ({error})") from None


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """The beginning of the final answer: the interim ones before it, such as `103 Early Hints`, are passed over."""
    writer.write(request)
    for _ in range(MAX_INTERIM + 1):
        said = await _beginning(reader)
        if not INTERIM.match(said):
            return said
        try:
            await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        except asyncio.LimitOverrunError:
            break
    raise Unreachable("its interim answers (1xx) do not come to an end")


async def _beginning(reader: asyncio.StreamReader) -> bytes:
    """As much of an answer as has its status, or what came before the connection closed."""
    said = b""
    while len(said) < STATUS_BYTES and not said.startswith(TLS_ALERT):
        piece = await reader.read(STATUS_BYTES - len(said))
        if not piece:
            break
        said += piece
    return said


def _words(error: OSError) -> str:
    """The system's, where it has some."""
    if isinstance(error, ssl.SSLError):  # whose numbers are not the system's
        return f"TLS failed ({error.reason or error})"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error) or type(error).__name__
