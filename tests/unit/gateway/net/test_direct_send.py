"""Sends on real sockets, in C where it is compiled, and in Python."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from svc.gateway.net import direct_send
from svc.gateway.net.direct_send import create_send

IS_COMPILED = direct_send._COMPILED_SENDER is not None
SIZES = (0, 1, 65536, 65537, 1_000_000)
Create = Callable[[socket.socket], Callable[[bytes], int]]


def create_python_send(sock: socket.socket) -> Callable[[bytes], int]:
    return direct_send._SocketSender(sock).send


@pytest.fixture(
    params=[
        pytest.param(create_send, id="c", marks=pytest.mark.skipif(not IS_COMPILED, reason="it is not compiled")),
        pytest.param(create_python_send, id="python"),
    ]
)
def create(request: pytest.FixtureRequest) -> Create:
    function: Create = request.param
    return function


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        other.settimeout(20)
        yield one, other


def test_direct_send_in_c_is_used_where_it_is_compiled() -> None:
    assert any(Path(direct_send.__file__).parent.glob("_direct_send.*.so")) == IS_COMPILED


@pytest.mark.parametrize("size", SIZES)
def test_direct_send_returns_how_many_bytes_the_socket_accepts(
    create: Create, pair: tuple[socket.socket, socket.socket], size: int
) -> None:
    one, other = pair
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    sent = create(one)(data)
    assert (sent == size) if size < 2 else 0 < sent <= size
    received = b""
    while len(received) < sent:
        received += other.recv(1 << 20)
    assert received == data[:sent]


def test_direct_send_to_a_full_socket_returns_0(create: Create, pair: tuple[socket.socket, socket.socket]) -> None:
    send = create(pair[0])
    while send(b"x" * 100_000):
        pass
    assert send(b"x") == send(b"x" * 100_000) == 0


def test_direct_send_to_a_peer_that_is_gone_returns_0(
    create: Create, pair: tuple[socket.socket, socket.socket]
) -> None:
    pair[1].close()
    send = create(pair[0])
    assert send(b"x") == send(b"x" * 100_000) == 0
