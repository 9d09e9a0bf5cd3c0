"""A response head that equals the previous one is not parsed. The result is the same."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, Gateway

HEAD = b"HTTP/1.1 200 OK\r\nserver: local\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Server:
    """A provider that sends given bytes, one write after the other, and counts its connections."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.responses: list[list[bytes]] = []
        self.connections = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        with connection, suppress(OSError):
            while data := connection.recv(65536):
                received += data
                head, _, body = received.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                if not body or len(body) < length:
                    continue
                received = b""
                for data_to_send in self.responses.pop(0):
                    if not data_to_send:
                        return
                    connection.sendall(data_to_send)
                    threading.Event().wait(0.02)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


@pytest.fixture
def gateway(server: Server, start_gateway: StartGateway) -> Gateway:
    address = {"PROVIDER_A_BASE_URL": f"http://127.0.0.1:{server.port}/v1"}
    return start_gateway(config="[routing]\nretries = 0\nbreaker = false\n", env=address)


def answer(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": GPT, "choices": [choice], "usage": usage}
    return json.dumps(body).encode()


def json_response(text: str, head: bytes = HEAD) -> bytes:
    body = answer(text)
    return head % len(body) + body


def ask(gateway: Gateway) -> tuple[int, str]:
    """Return the status, and the text or the error code."""
    got = gateway.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI})
    if got.status != 200:
        return got.status, got.code
    return 200, got.json["choices"][0]["message"]["content"]


def test_response_head_cache_returns_each_body(gateway: Gateway, server: Server) -> None:
    texts = ["a", "b", "a" * 10, "x" * 700, "y" * 900, "z" * 20_000, "é", "b", "w" * 60_000, "c"]
    for text in texts:
        server.responses = [[json_response(text)]]
        assert ask(gateway) == (200, text)
    assert server.connections == 1


@pytest.mark.parametrize(
    ("writes", "expected", "reused"),
    [
        ([json_response("new")], (200, "new"), True),
        ([json_response("new")[:30], json_response("new")[30:]], (200, "new"), True),
        ([json_response("new")[:-5], json_response("new")[-5:]], (200, "new"), True),
        ([json_response("new")[:-5], b""], (502, "provider_error"), False),
        ([HEAD % (len(answer("new")) - 1) + answer("new")], (502, "provider_error"), False),
        ([json_response("new") + b"HTTP/1.1 200 OK\r\n"], (502, "provider_error"), False),
        ([json_response("new") * 2], (502, "provider_error"), False),
        ([json_response("new") + b"\r\n"], (200, "new"), True),
        ([json_response("new", HEAD.replace(b"200 OK", b"429 Slow"))], (429, "rate_limit_exceeded"), True),
        ([json_response("new", HEAD.replace(b"server: local", b"connection: close"))], (200, "new"), False),
        ([json_response("new", HEAD.replace(b"1.1 200", b"1.0 200"))], (200, "new"), False),
        ([b"HTTP/1.1 103 Hints\r\n\r\n" + json_response("new")], (200, "new"), True),
        ([HEAD % 0], (502, "provider_error"), True),
        ([json_response("new", HEAD.replace(b"Length: %d", b"Length: %d, 3"))], (502, "provider_error"), False),
    ],
)
def test_response_head_cache_returns_same_result_as_parser(
    gateway: Gateway, server: Server, writes: list[bytes], expected: tuple[int, str], reused: bool
) -> None:
    for text in ("one", "two"):
        server.responses = [[json_response(text)]]
        assert ask(gateway) == (200, text)
    server.responses = [writes]
    assert ask(gateway) == expected
    server.responses = [[json_response("last")]]
    assert ask(gateway) == (200, "last")
    assert server.connections == (1 if reused else 2)
