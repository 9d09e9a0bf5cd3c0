"""WebSocket connections whose client does not read, or sends much at once."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import KEY, Gateway
from tests.fakes.http_client import RawClient

PATH = "/v1/audio/transcriptions/stream"
MASK = bytes(4)  # a zero mask leaves the payload unchanged
PING = b"\x89\xfd" + MASK + b"p" * 125
MIB = 1 << 20


def connect(gateway: Gateway) -> RawClient:
    """Open a WebSocket and return its client."""
    client = gateway.raw(timeout=10)
    key = base64.b64encode(os.urandom(16)).decode()
    client.send(
        f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\nConnection: Upgrade\r\n"
        f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.socket.recv(1)
    assert head.startswith(b"HTTP/1.1 101")
    return client


def send_until_blocked(sock: socket.socket, data: bytes, most: int) -> int:
    """Send `data` repeatedly until nothing is accepted for two seconds, and return the number of bytes sent."""
    sent = 0
    sock.settimeout(2)
    try:
        while sent < most:
            sent += sock.send(data)
    except TimeoutError:
        return sent
    return sent


def memory_of(process: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_websocket_pings_of_client_not_reading_are_not_read(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    with connect(gateway) as client:
        before = memory_of(gateway.process.pid)
        sent = send_until_blocked(client.socket, PING * 500, 96 * MIB)
        assert sent < 64 * MIB  # the kernel's buffers in both directions
        assert memory_of(gateway.process.pid) - before < 16 * MIB
        assert gateway.request("GET", "/health", key=None).status == 200


def test_websocket_reading_continues_when_client_reads(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    with connect(gateway) as client:
        client.socket.settimeout(30)
        ask = json.dumps({"type": "nonsense"}).encode()
        pings = PING * (24 * MIB // len(PING))
        message = struct.pack("!BB", 0x81, 0x80 | len(ask)) + MASK + ask
        writer = threading.Thread(target=client.socket.sendall, args=(pings + message,))
        writer.start()
        time.sleep(2)  # by then the gateway has stopped reading
        tail, pongs = b"", 0
        while b'"error"' not in tail:
            got = client.socket.recv(1 << 16)
            assert got
            pongs += len(got)
            tail = tail[-1000:] + got
        writer.join(10)
    assert b"invalid_request" in tail
    assert pongs >= 24 * MIB // len(PING) * 127  # every ping was answered


def test_websocket_client_never_reading_is_closed(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[gateway]\nwrite_timeout = 1\n")
    with connect(gateway) as client:
        client.socket.settimeout(10)
        with pytest.raises(ConnectionError):
            client.socket.sendall(PING * (96 * MIB // len(PING)))


@pytest.mark.slow
def test_websocket_ping_flood_does_not_block_other_requests(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    with connect(gateway) as client:
        small = (b"\x89\x80" + MASK) * 40_000
        deadline = time.monotonic() + 3

        def flood() -> None:
            while time.monotonic() < deadline:
                client.socket.sendall(small)

        def drain() -> None:
            while time.monotonic() < deadline:
                client.socket.recv(1 << 18)

        threads = [threading.Thread(target=work) for work in (flood, drain)]
        for thread in threads:
            thread.start()
        worst = 0.0
        while time.monotonic() < deadline - 0.5:
            began = time.monotonic()
            assert gateway.request("GET", "/health", key=None).status == 200
            worst = max(worst, time.monotonic() - began)
        for thread in threads:
            thread.join(10)
    assert worst < 1, worst
