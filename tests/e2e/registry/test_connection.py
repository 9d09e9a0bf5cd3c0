"""The registry's client connections: ranges, pipelining, limits, malformed requests, and how they end."""

import asyncio
import contextlib
import json
import random
import re
import resource
import signal
import socket
import time
from pathlib import Path

import pytest

from svc.registry import connection, server
from svc.registry.server import open_server
from svc.registry.service import RegistryService
from svc.security import Keyring
from svc.stores.bundles.factory import open_store

from .conftest import Machine, make_bundle

PATH = "/bundles/big/1.0/any/big.xyb"
PUBLISHER = "a-key-that-is-long-enough"
TAG = re.compile(rb'etag: ("[^"]+")')


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("registry")
    one = Machine(folder / "home", SVC_REGISTRY_KEYS=PUBLISHER)
    one.home.mkdir()
    big = make_bundle(folder / "big.xyb", "big", data=random.Random(5).randbytes(3 << 20))
    one.run("registry", "add", big)
    server = one.serve()
    with connect(server.port) as sock:
        ask(sock, head())  # the server keeps the file open from here on
    yield server, big.read_bytes()
    one.stop()


@pytest.fixture(scope="module")
def served_file(running):
    server, data = running
    return server.port, data


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def head(*lines, method="GET", path=PATH):
    return "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "")).encode()


def ask(sock, data, bare=False):
    """Return the response's status, its head without the date, and its body."""
    sock.sendall(data)
    return read(sock, bare)


def read(sock, bare=False):
    got = b""
    while b"\r\n\r\n" not in got:
        data = sock.recv(65536)
        assert data, got
        got += data
    top, _, body = got.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", top)
    while not bare and length and len(body) < int(length[1]):
        data = sock.recv(1 << 20)
        assert data
        body += data
    return int(top.split()[1]), re.sub(rb"\r\ndate: [^\r]+", b"", top), body


def test_connection_ranges_and_conditions(served_file):
    port, data = served_file
    tag = TAG.search(ask(connect(port), head())[1])[1].decode()
    with connect(port) as sock:
        for lines, status, body in [
            ([], 200, data),
            (["Range: bytes=0-0"], 206, data[:1]),
            (["range:bytes=5-70000"], 206, data[5:70001]),
            (["RANGE: bytes=-7"], 206, data[-7:]),
            ([f"Range: bytes={len(data)}-"], 416, b""),
            (["Range: bytes=9-2"], 200, data),
            (["Range: lines=1-2"], 200, data),
            (["Range: bytes=1-2,4-5"], 200, data),
            (["Range:   bytes = 3 - 4 "], 206, data[3:5]),
            (["Range: bytes=0-9", f"If-Range: {tag}"], 206, data[:10]),
            (["Range: bytes=0-9", 'If-Range: "x"'], 200, data),
            ([f"If-None-Match: W/{tag}"], 304, b""),
            (["If-None-Match: *", "Range: bytes=0-1"], 304, b""),
            (["Connection: keep-alive", "Accept: */*", "X-Unknown: 1", "Range: bytes=2-3"], 206, data[2:4]),
        ]:
            answer = ask(sock, head(*lines))
            assert (answer[0], answer[2] == body) == (status, True), lines


def test_connection_serves_files_and_routes_in_turn(served_file):
    port, data = served_file
    with connect(port) as sock:
        for _ in range(2):
            assert ask(sock, head("Range: bytes=1-100000"))[2] == data[1:100001]
        assert ask(sock, head(method="HEAD"), bare=True)[0] == 200
        assert ask(sock, head("Range: bytes=4-5"))[2] == data[4:6]
        assert ask(sock, head(path="/health"))[0] == 200
        assert ask(sock, head("Range: bytes=4-99999"))[2] == data[4:100000]


def test_connection_head_in_several_reads_is_served(served_file):
    port, data = served_file
    whole = head("Range: bytes=7-9")
    for cut in (1, 3, 20, len(whole) - 3, len(whole) - 1):
        with connect(port) as sock:
            sock.sendall(whole[:cut])
            time.sleep(0.05)
            assert ask(sock, whole[cut:])[2] == data[7:10]


def test_connection_pipelined_requests_are_answered_in_order(served_file):
    port, data = served_file
    with connect(port) as sock:
        sock.sendall(head("Range: bytes=0-999999") + head("Range: bytes=1-2") + head("Range: bytes=3-200000"))
        assert [read_exactly(sock, size) for size in (1000000, 2, 199998)] == [
            data[:1000000],
            data[1:3],
            data[3:200001],
        ]


@pytest.mark.slow
def test_connection_unread_pipelined_responses_use_bounded_memory(tmp_path):
    one = Machine(tmp_path / "home")
    one.home.mkdir()
    one.run("registry", "add", make_bundle(tmp_path / "big.xyb", "big", data=bytes(1 << 20)))
    server = one.serve()
    memory = Path(f"/proc/{server.process.pid}/statm")

    def resident():
        return int(memory.read_text().split()[1]) * resource.getpagesize()

    request = head("Range: bytes=0-65535")
    try:
        with connect(server.port) as sock:
            assert ask(sock, request)[0] == 206
            before = resident()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(500):
                sock.sendall(request)
                time.sleep(0.0005)
            sock.sendall(request * 1500)
            time.sleep(0.3)
            assert resident() - before < 40 << 20
            for _ in range(2000):
                read_exactly(sock, 65536)
    finally:
        one.stop()


@pytest.mark.parametrize("first", [["Range: bytes=0-999999"], ["Range: bytes=0-9"]])
def test_connection_half_closed_by_client_gets_every_response(served_file, first):
    port, data = served_file
    requests = [head(*first), head(path="/health"), head("Range: bytes=1-2"), head("Range: bytes=3-200000")]
    with connect(port) as sock:
        sock.sendall(b"".join(requests))
        sock.shutdown(socket.SHUT_WR)
        end = int(first[-1].rpartition("-")[2]) + 1
        assert read_exactly(sock, end) == data[:end]
        assert b"svc-registry" in read_exactly(sock)
        assert read_exactly(sock, 2) == data[1:3]
        assert read_exactly(sock, 199998) == data[3:200001]
        assert sock.recv(1) == b""


def test_connection_head_in_same_read_as_upload_end_is_served(served_file):
    port, data = served_file
    put = head(f"Authorization: Bearer {PUBLISHER}", f"Content-Length: {len(data)}", method="PUT")
    following = head("Range: bytes=5-6")
    with connect(port) as sock:
        sock.sendall(put + data[:-9])
        time.sleep(0.1)
        sock.sendall(data[-9:] + following[:20])
        assert b'"big"' in read_exactly(sock)
        sock.sendall(following[20:])
        assert read_exactly(sock, 2) == data[5:7]


def memory(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) << 10


@pytest.mark.parametrize(
    ("request_", "thousands"),
    [(head(method="HEAD"), 200), (head(path="/health"), 100), (b"GET / HTTP/1.1\r\n\r\n", 100)],
)
def test_connection_unread_pipelined_small_requests_use_bounded_memory(running, request_, thousands):
    server, data = running
    before = memory(server.process)
    with connect(server.port) as sock, contextlib.suppress(TimeoutError, ConnectionError):
        sock.settimeout(1)
        for _ in range(thousands):
            sock.sendall(request_ * 1000)
    assert memory(server.process) - before < 24 << 20
    with connect(server.port) as sock:
        assert ask(sock, head("Range: bytes=0-99999"))[2] == data[:100000]


async def send_forever(sock):
    while True:
        await asyncio.get_running_loop().sock_sendall(sock, head(path="/index") * 100)
        await asyncio.sleep(0.02)


async def test_connection_client_that_never_reads_is_closed(monkeypatch, tmp_path):
    monkeypatch.setattr(connection, "STALL_TIMEOUT_SECONDS", 0.3)
    with open_store(tmp_path, {}) as store, socket.create_server(("127.0.0.1", 0)) as listener:
        async with open_server(RegistryService(store, Keyring([])), lambda: None) as server:
            serving = asyncio.create_task(server.serve([listener]))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            with socket.create_connection(listener.getsockname()) as sock:
                sock.setblocking(False)
                with pytest.raises(ConnectionError):
                    await asyncio.wait_for(send_forever(sock), 10)
            server.should_exit = True
            await serving


def read_exactly(sock, size=None):
    """Read one response's body and no byte of the next response."""
    top = b""
    while not top.endswith(b"\r\n\r\n"):
        data = sock.recv(1)
        assert data, top
        top += data
    length = int(re.search(rb"content-length: (\d+)", top)[1])
    assert size in (length, None)
    size = length
    body = b""
    while len(body) < size:
        data = sock.recv(min(1 << 20, size - len(body)))
        assert data
        body += data
    return body


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (f"GET {PATH} HTTP/1.1\nHost: localhost\n\n".encode(), None),
        (head("Range : bytes=0-1"), 400),
        (head("Range: bytes=0-1", " 5"), 400),
        (head("X: a\0b"), 400),
        (head("Content-Length: 5", "Transfer-Encoding: chunked"), 400),
        (head(method="GARBAGE"), 400),
        (head(method="GET "), 400),
        (head(path=PATH + " "), 400),
        (head().replace(b"HTTP/1.1", b"RTSP/1.0"), 400),
        (head("Authorization: Bearer a", "Authorization: Bearer b"), 400),
        (head("Authorization: Bearer a", "authorization: Bearer a", path="/index"), 400),
        (head("Authorization: Bearer a", "authorization: Bearer a", path="/health"), 400),
        (head(path="/bundles/big/1.0/any/other.xyb"), 404),
        (head(path="/bundles/../any/big.xyb"), 404),
        (head(path="/bundles/big/2.0/any/big.xyb"), 404),
        (head("Connection: close", "Range: bytes=0-1"), 206),
        (head("Range: bytes=0-1", "Range: bytes=0-2"), 206),
        (head(path=PATH + "?a=b"), 200),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    ],
)
def test_connection_unusual_request_gets_its_status(served_file, data, status):
    port, _ = served_file
    with connect(port) as sock:
        sock.sendall(data)
        if status is None:  # rejected, or waiting for more: never a success response
            sock.settimeout(1)
            with contextlib.suppress(TimeoutError):
                assert read(sock)[0] >= 400
        else:
            assert read(sock)[0] == status


def test_connection_two_authorization_headers_return_json_error(served_file):
    port, _ = served_file
    with connect(port) as sock:
        sock.sendall(head("Authorization: Bearer a", "Authorization: Bearer b"))
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], error["message"]) == (
        "invalid_request",
        "The request has more than one Authorization header.",
    )


@pytest.mark.parametrize("lines", [["A: b"] * 2000, ["Range: bytes=" + " " * 15000 + "-" + " " * 15000 + "x"]])
def test_connection_large_head_is_parsed_quickly(served_file, lines):
    port, _ = served_file
    with connect(port) as sock:
        began = time.monotonic()
        assert ask(sock, head(*lines, "X_Y: 1", method="HEAD"), bare=True)[0] == 200
        assert ask(sock, head(*lines, "Range: bytes=0-0"))[0] in (200, 206)
        assert time.monotonic() - began < 5


def test_server_sigterm_completes_response_in_progress(tmp_path):
    one = Machine(tmp_path / "home")
    one.home.mkdir()
    big = make_bundle(tmp_path / "big.xyb", "big", data=bytes(64 << 20))
    one.run("registry", "add", big)
    server = one.serve()
    try:
        with connect(server.port) as idle, connect(server.port) as busy:
            ask(idle, head("Range: bytes=0-0"))
            ask(idle, head("Range: bytes=0-0"))
            busy.sendall(head())
            first = busy.recv(1 << 16)
            server.process.send_signal(signal.SIGTERM)
            assert idle.recv(1) == b""
            body = first.partition(b"\r\n\r\n")[2]
            size = len(body)
            while data := busy.recv(1 << 20):
                size += len(data)
            assert size == big.stat().st_size
        assert server.process.wait(20) == 0
    finally:
        one.stop()


async def test_connection_without_request_is_closed_before_idle_one(monkeypatch, tmp_path):
    monkeypatch.setattr(connection, "REGISTRY_HEAD_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(server, "REGISTRY_IDLE_TIMEOUT_SECONDS", 1)
    with open_store(tmp_path, {}) as store, socket.create_server(("127.0.0.1", 0)) as listener:
        async with open_server(RegistryService(store, Keyring([])), lambda: None) as running:
            serving = asyncio.create_task(running.serve([listener]))
            port = listener.getsockname()[1]
            used, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head(path="/health"))
            assert b" 200 " in await used.readline()
            silent, silent_writer = await asyncio.open_connection("127.0.0.1", port)
            ended = []

            async def wait_for_end(reader, name):
                await reader.read()
                ended.append(name)

            await asyncio.wait_for(asyncio.gather(wait_for_end(used, "used"), wait_for_end(silent, "silent")), 10)
            assert ended == ["silent", "used"]
            for one in (writer, silent_writer):
                one.close()
            running.should_exit = True
            await serving
