"""Check that a configured server responds: one cheap request for a provider, a connection for others.

    connect ──> TLS, for https ──> GET of the model list ──> the final status, after interim (1xx) responses

A provider's proxy is used as for chat requests. All steps share PROBE_TIMEOUT_SECONDS. The error names the step that
timed out.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
from typing import Final

from svc.gateway.net.proxy_tunnel import ProxyFailed, encode_connect, read_connect_response
from svc.gateway.routing.backends import upstream_origin
from svc.gateway.routing.outbound_proxy import OutboundProxy
from svc.gateway.routing.providers import Provider, UpstreamOrigin

PROBE_TIMEOUT_SECONDS: Final = 3.0
STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)")
STATUS_LINE_BYTES: Final = len("HTTP/1.1 200")
INTERIM_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] 1(?!01)\d\d")
"""A final response follows on the same connection, except after `101 Switching Protocols`."""
MAX_INTERIM_RESPONSES: Final = 20
"""Interim responses that are skipped. Each is limited by the StreamReader buffer, 64 KiB."""
TLS_ALERT_PREFIX: Final = b"\x15\x03"
"""First bytes of the TLS alert with which a TLS server rejects plaintext HTTP (RFC 8446, section 6)."""


class ProbeFailed(Exception):
    """No response arrived. The message is for the person who configured the address."""


def probe_provider(provider: Provider, tls: ssl.SSLContext) -> int:
    """Return the HTTP status of a provider's model list. Raises ProbeFailed."""
    origin = upstream_origin(provider)
    deadline = time.monotonic() + PROBE_TIMEOUT_SECONDS
    first_hop = origin.proxy or origin
    tcp_socket = _open_connection(first_hop.host, first_hop.port)
    try:
        response_start = asyncio.run(
            _request_status_line(tcp_socket, origin, _encode_request(provider), tls, deadline - time.monotonic())
        )
    finally:
        tcp_socket.close()
    if status := STATUS_LINE.match(response_start):
        return int(status[1])
    if response_start.startswith(TLS_ALERT_PREFIX):
        raise ProbeFailed("the server requires TLS: its address must begin with https://")
    raise ProbeFailed(
        "the response is not HTTP" if response_start else "the server closed the connection without a response"
    )


def check_connection(host: str, port: int) -> None:
    """Open and close a TCP connection. Raises ProbeFailed."""
    _open_connection(host, port).close()


def _open_connection(host: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((host, port), timeout=PROBE_TIMEOUT_SECONDS)
    except TimeoutError:
        raise ProbeFailed(f"no connection within {PROBE_TIMEOUT_SECONDS:g} s") from None
    except socket.gaierror as error:
        raise ProbeFailed(f"its host name cannot be resolved ({error.strerror})") from None
    except OSError as error:
        raise ProbeFailed(_describe_os_error(error)) from None
    except ValueError as error:  # a host name that cannot be encoded
        raise ProbeFailed(f"its host name is invalid ({error})") from None


def _encode_request(provider: Provider) -> bytes:
    """Encode the request with the provider's key, as for a chat."""
    address, target = provider.address, provider.models_target()
    proxy = provider.proxy if address.scheme == "http" else None
    lines = [
        f"GET {f'http://{address.netloc}{target}' if proxy is not None else target} HTTP/1.1",
        f"host: {address.netloc}",
        "accept: application/json",
        "user-agent: svc",
        "connection: close",
        *[f"{name}: {value}" for name, value in provider.auth_headers()],
        *([f"proxy-authorization: {proxy.authorization}"] if proxy is not None and proxy.authorization else []),
        "\r\n",
    ]
    return "\r\n".join(lines).encode("ascii")


async def _request_status_line(
    tcp_socket: socket.socket, origin: UpstreamOrigin, request: bytes, tls: ssl.SSLContext, timeout_seconds: float
) -> bytes:
    """Return the first bytes of the final response, or empty bytes. Raises ProbeFailed."""
    reader, writer = await asyncio.open_connection(sock=tcp_socket)
    try:
        async with asyncio.timeout(timeout_seconds):
            if origin.proxy is not None:
                await _pass_proxy(reader, writer, origin, origin.proxy, tls)
            if origin.uses_tls:
                await _start_tls(writer, origin.host, tls)
            return await _read_final_response(reader, writer, request)
    except TimeoutError:
        handshake_done = not origin.uses_tls or writer.get_extra_info("ssl_object") is not None
        missing_step = "sends no response" if handshake_done else "does not finish the TLS handshake"
        raise ProbeFailed(f"it accepts the connection, but {missing_step} within {PROBE_TIMEOUT_SECONDS:g} s") from None
    except OSError as error:
        raise ProbeFailed(_describe_os_error(error)) from None
    finally:
        writer.transport.abort()


async def _pass_proxy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    origin: UpstreamOrigin,
    proxy: OutboundProxy,
    tls: ssl.SSLContext,
) -> None:
    """Open a tunnel through the proxy, for a provider with TLS. Raises ProbeFailed."""
    if proxy.uses_tls:
        await _start_tls(writer, proxy.host, tls)
    if not origin.uses_tls:
        return
    writer.write(encode_connect(origin.host, origin.port, proxy.authorization))
    try:
        await read_connect_response(reader.read)
    except ProxyFailed as error:
        raise ProbeFailed(str(error)) from None


async def _start_tls(writer: asyncio.StreamWriter, host: str, tls: ssl.SSLContext) -> None:
    try:
        await writer.start_tls(tls, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise ProbeFailed(f"its certificate is not trusted: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise ProbeFailed(
            f"the TLS handshake failed ({error.reason or error}); for plaintext HTTP use http://"
        ) from None
    except ConnectionError:
        raise ProbeFailed("the server closed the connection during the TLS handshake") from None
    except ValueError as error:  # not a valid server name
        raise ProbeFailed(f"its host name is invalid ({error})") from None


async def _read_final_response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """Return the first bytes of the final response, after interim ones such as `103 Early Hints`."""
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
    raise ProbeFailed("it sends too many interim (1xx) responses")


async def _read_response_start(reader: asyncio.StreamReader) -> bytes:
    """Read up to the status code, or until the connection closes."""
    response_start = b""
    while len(response_start) < STATUS_LINE_BYTES and not response_start.startswith(TLS_ALERT_PREFIX):
        chunk = await reader.read(STATUS_LINE_BYTES - len(response_start))
        if not chunk:
            break
        response_start += chunk
    return response_start


def _describe_os_error(error: OSError) -> str:
    """Return the operating system's message, if the error has one."""
    if isinstance(error, ssl.SSLError):  # OpenSSL numbers are not errno values
        return f"TLS failed ({error.reason or error})"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error) or type(error).__name__
