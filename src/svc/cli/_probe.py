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

from svc.gateway.routing.backends import upstream_origin
from svc.gateway.routing.providers import Provider, UpstreamOrigin

PROBE_TIMEOUT_SECONDS: Final = 3.0
STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)")
STATUS_LINE_BYTES: Final = len("HTTP/1.1 200")
INTERIM_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] 1(?!01)\d\d")
"""Another answer follows, on the same connection; after `101 Switching Protocols` none does."""
MAX_INTERIM_RESPONSES: Final = 20
"""Interim answers that are passed over; each may have as many bytes as a StreamReader keeps, 64 KiB."""
TLS_ALERT_PREFIX: Final = b"\x15\x03"
"""How a server of TLS begins what it says to who speaks plain HTTP."""


class ProbeFailed(Exception):
    """Why no answer came, in words for who configured the address."""


def probe_provider(provider: Provider, tls: ssl.SSLContext) -> int:
    """The status that a provider answers with to a request for its models. Raises Unreachable."""
    origin = upstream_origin(provider)
    deadline = time.monotonic() + PROBE_TIMEOUT_SECONDS
    tcp_socket = _open_connection(origin.host, origin.port)
    try:
        response_start = asyncio.run(
            _request_status_line(tcp_socket, origin, _encode_request(provider), tls, deadline - time.monotonic())
        )
    finally:
        tcp_socket.close()
    if status := STATUS_LINE.match(response_start):
        return int(status[1])
    if response_start.startswith(TLS_ALERT_PREFIX):
        raise ProbeFailed("it speaks TLS: its address has to begin with https://")
    raise ProbeFailed("what it answers is not HTTP" if response_start else "it closed the connection without an answer")


def check_connection(host: str, port: int) -> None:
    """Makes a connection, and says nothing on it. Raises Unreachable."""
    _open_connection(host, port).close()


def _open_connection(host: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((host, port), timeout=PROBE_TIMEOUT_SECONDS)
    except TimeoutError:
        raise ProbeFailed(f"no connection within {PROBE_TIMEOUT_SECONDS:g} s") from None
    except socket.gaierror as error:
        raise ProbeFailed(f"its host name is not known ({error.strerror})") from None
    except OSError as error:
        raise ProbeFailed(_describe_os_error(error)) from None
    except ValueError as error:  # a name that cannot be encoded
        raise ProbeFailed(f"its host name is none ({error})") from None


def _encode_request(provider: Provider) -> bytes:
    """With the provider's key, as each chat is sent there."""
    address, dialect = provider.address, provider.dialect
    lines = [
        f"GET {address.path}{dialect.models_path} HTTP/1.1",
        f"host: {address.netloc}",
        "accept: application/json",
        "user-agent: svc",
        "connection: close",
        *[f"{name}: {value}" for name, value in dialect.auth_headers(provider.key)],
        "\r\n",
    ]
    return "\r\n".join(lines).encode("ascii")


async def _request_status_line(
    tcp_socket: socket.socket, origin: UpstreamOrigin, request: bytes, tls: ssl.SSLContext, timeout_seconds: float
) -> bytes:
    """The beginning of the answer; empty when there is none. Raises Unreachable."""
    reader, writer = await asyncio.open_connection(sock=tcp_socket)
    try:
        async with asyncio.timeout(timeout_seconds):
            if origin.tls:
                await _start_tls(writer, origin.host, tls)
            return await _read_final_response(reader, writer, request)
    except TimeoutError:
        handshake_done = not origin.tls or writer.get_extra_info("ssl_object") is not None
        missing_step = "sends no answer" if handshake_done else "does not finish the TLS handshake"
        raise ProbeFailed(f"it takes the connection, but {missing_step} within {PROBE_TIMEOUT_SECONDS:g} s") from None
    except OSError as error:
        raise ProbeFailed(_describe_os_error(error)) from None
    finally:
        writer.transport.abort()


async def _start_tls(writer: asyncio.StreamWriter, host: str, tls: ssl.SSLContext) -> None:
    try:
        await writer.start_tls(tls, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise ProbeFailed(f"its certificate is refused: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise ProbeFailed(
            f"it speaks no TLS that we know ({error.reason or error}); for plain HTTP its address begins with http://"
        ) from None
    except ConnectionError:
        raise ProbeFailed("it closed the connection in the TLS handshake") from None
    except ValueError as error:  # no name that TLS knows
        raise ProbeFailed(f"its host name is none ({error})") from None


async def _read_final_response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """The beginning of the final answer: the interim ones before it, such as `103 Early Hints`, are passed over."""
    writer.write(request)
    for _ in range(MAX_INTERIM_RESPONSES + 1):
        response_start = await _read_response_start(reader)
        if not INTERIM_STATUS_LINE.match(response_start):
            return response_start
        try:
            await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        except asyncio.LimitOverrunError:
            break
    raise ProbeFailed("its interim answers (1xx) do not come to an end")


async def _read_response_start(reader: asyncio.StreamReader) -> bytes:
    """As much of an answer as has its status, or what came before the connection closed."""
    response_start = b""
    while len(response_start) < STATUS_LINE_BYTES and not response_start.startswith(TLS_ALERT_PREFIX):
        chunk = await reader.read(STATUS_LINE_BYTES - len(response_start))
        if not chunk:
            break
        response_start += chunk
    return response_start


def _describe_os_error(error: OSError) -> str:
    """The system's, where it has some."""
    if isinstance(error, ssl.SSLError):  # whose numbers are not the system's
        return f"TLS failed ({error.reason or error})"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error) or type(error).__name__
