"""Providers behind TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.harness import GPT, HI, Gateway
from tests.e2e.reading import broken_stream, complete_chunks, text_of
from tests.e2e.test_backpressure import KIB
from tests.e2e.test_memory import MIB, UNCOLLECTED, resident
from tests.e2e.test_resume import STREAM
from tests.fakes import openai_wire
from tests.fakes.certificate import certificate, context
from tests.fakes.http_client import request_bytes
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, Script, answer, fin, hold, sse
from tests.fakes.tcp_proxy import TcpProxy

STREAM_COUNT = 16
CHAT = {"model": GPT, "messages": HI}
CONFIG = "[gateway]\nconnect_timeout = 1\n[routing]\nretries = 0\nbreaker = false\n"


@contextlib.contextmanager
def provider(
    name: str,
    folder: Path,
    *,
    newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    chunk_bytes: int = 65536,
    command: Sequence[str] = (),
) -> Iterator[tuple[FakeProvider, Gateway, TcpProxy]]:
    """A provider whose certificate is for `name`, a gateway that trusts it, and the proxy between them."""
    file = certificate(folder, name)
    tls = context(file)
    tls.maximum_version = newest
    with (
        FakeProvider(OpenAIWire(), key="sk-tls", tls=tls) as fake,
        TcpProxy(fake.port, chunk_bytes=chunk_bytes) as proxy,
    ):
        address = f"https://localhost:{proxy.port}/v1"
        env = {"PROVIDER_A_API_KEY": fake.key, "PROVIDER_A_BASE_URL": address, "SSL_CERT_FILE": str(file)}
        gateway = Gateway(folder, env=env, config=CONFIG, is_forked=True)
        gateway.command = [*command] or gateway.command
        gateway.start()
        try:
            yield fake, gateway, proxy
        finally:
            status = gateway.stop()
        assert status == 0
        assert "Traceback" not in gateway.log


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_json_and_streams_reuse_connection(tmp_path: Path, newest: ssl.TLSVersion) -> None:
    with provider("localhost", tmp_path, newest=newest) as (fake, gateway, _):
        for stream in (False, True) * 3:
            got = gateway.chat(stream=stream)
            assert got.status == 200
            if stream:
                assert text_of(complete_chunks(got.body)) == openai_wire.TEXT
        assert {seen.connection for seen in fake.requests} == {1}


def test_tls_certificate_for_other_name_returns_502(tmp_path: Path) -> None:
    with provider("other.example", tmp_path) as (fake, gateway, _):
        got = gateway.chat()
        assert (got.status, got.code) == (502, "provider_error")
        assert not fake.requests
        assert "localhost:" in gateway.logged("certificate verify failed")


def test_tls_bytes_split_anywhere_lose_nothing(tmp_path: Path) -> None:
    with provider("localhost", tmp_path, chunk_bytes=1) as (_, gateway, _):
        assert gateway.chat().status == 200
        assert text_of(complete_chunks(gateway.chat(stream=True).body)) == openai_wire.TEXT


def test_tls_long_prompt_and_response_are_complete(tmp_path: Path) -> None:
    with provider("localhost", tmp_path) as (fake, gateway, _):
        long = "".join(map(str, range(500_000)))
        fake.plays(answer(200, openai_wire.chat(long)))
        got = gateway.chat(messages=[{"role": "user", "content": long}])
        assert got.json["choices"][0]["message"]["content"] == long
        assert fake.requests[0].json["messages"][0]["content"] == long


def test_tls_connection_closed_while_idle_is_replaced(tmp_path: Path) -> None:
    with provider("localhost", tmp_path) as (fake, gateway, proxy):
        fake.plays(answer(200, openai_wire.chat()) + fin())
        assert [gateway.chat().status for _ in range(2)] == [200, 200]
        assert {seen.connection for seen in fake.requests} == {1, 2}
        proxy.close_without_tls_alert()
        proxy.release()
        assert gateway.chat().status == 200


def test_tls_connection_with_unsolicited_data_is_not_reused(tmp_path: Path) -> None:
    """The rest of the unsolicited data would be taken for the start of the next response."""
    with provider("localhost", tmp_path) as (fake, gateway, proxy):
        assert gateway.chat().status == 200
        proxy.inject(b"\x17\x03\x03\x00\x40" + bytes(3))
        time.sleep(0.2)  # the gateway has received the data by now
        assert gateway.chat().status == 200
        assert [seen.connection for seen in fake.requests] == [1, 2]


def test_tls_close_delimited_response_without_close_notify_returns_502(tmp_path: Path) -> None:
    """Without close_notify, an attacker could truncate the response unnoticed."""
    with provider("localhost", tmp_path) as (fake, gateway, proxy):
        script = answer(200, openai_wire.chat("all of it"), framing="close")
        fake.plays(script)
        assert gateway.chat().json["choices"][0]["message"]["content"] == "all of it"
        gate = Gate()
        fake.plays(Script(script.steps[:-1]) + hold(gate))
        with gateway.raw() as client:
            client.send(request_bytes("POST", "/v1/chat/completions", CHAT, key=gateway.key))
            gate.reached()
            time.sleep(0.2)  # the gateway has received the data by now
            proxy.close_without_tls_alert()
            got = client.read()
        assert (got.status, got.code) == (502, "provider_error")


def test_tls_corrupted_stream_ends_with_error(tmp_path: Path) -> None:
    with provider("localhost", tmp_path) as (fake, gateway, proxy):
        gate = Gate()
        fake.plays(sse([openai_wire.role(), openai_wire.chunk({"content": "so far"})], end=hold(gate)))
        with gateway.raw() as client:
            client.send(request_bytes("POST", "/v1/chat/completions", STREAM, key=gateway.key))
            gate.reached()
            time.sleep(0.2)
            proxy.inject(b"\x17\x03\x03\x00\x40" + bytes(64))
            got = client.read()
        assert broken_stream(got.body)[1]["code"] == "provider_error"
        fake.wait(1).wait_left()


@pytest.mark.parametrize("when", ["silent", "closed"])
def test_tls_handshake_timeout_or_reset_returns_502(tmp_path: Path, when: str) -> None:
    with provider("localhost", tmp_path) as (fake, gateway, proxy):
        proxy.hold()
        if when == "closed":
            threading.Timer(0.3, proxy.close_without_tls_alert).start()
        began = time.monotonic()
        got = gateway.chat()
        assert (got.status, got.code) == (502, "provider_error")
        assert ("took too long" if when == "silent" else "cannot be reached") in got.json["error"]["message"]
        assert time.monotonic() - began < 5
        to = f"localhost:{proxy.port}"
        reason = f"no TLS connection to {to} within 1 s"
        silent = f"openai: Connection timeout: the provider took too long to accept a connection. ({reason}) [req"
        closed = f"openai: The provider cannot be reached. (no connection to {to}: ConnectionResetError: "
        gateway.logged(silent if when == "silent" else closed)
        fake.until(lambda: not fake.connections)
        proxy.release()
        assert proxy.opened == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refused", "left"])
def test_tls_failed_handshake_releases_memory_without_gc(tmp_path: Path, how: str) -> None:
    """The garbage collector is disabled. Each OpenSSL connection takes 70 KB."""
    with provider("other.example", tmp_path, command=[sys.executable, "-c", UNCOLLECTED]) as (_, gateway, proxy):

        def fail(times: int) -> None:
            for _ in range(times):
                if how == "refused":
                    assert gateway.chat().status == 502
                    continue
                opened = proxy.opened
                with gateway.raw() as client:
                    client.send(request_bytes("POST", "/v1/chat/completions", CHAT, key=gateway.key))
                    while proxy.opened == opened:
                        time.sleep(0.001)

        if how == "left":
            proxy.hold()
        fail(20)
        before = resident(gateway)
        fail(100)
        assert resident(gateway) - before < 2 * MIB


def test_tls_unread_stream_uses_bounded_memory(tmp_path: Path) -> None:
    with provider("localhost", tmp_path) as (fake, gateway, _):
        gateway.chat(GPT, stream=True)
        fake.forget()
        fake.always_plays(sse([openai_wire.role(), *[openai_wire.chunk({"content": " word"}) * 20] * 2000]))
        request = request_bytes("POST", "/v1/chat/completions", STREAM, key=gateway.key)
        before = resident(gateway)
        with contextlib.ExitStack() as stack:
            for _ in range(STREAM_COUNT):
                client = stack.enter_context(gateway.raw())
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.send(request)
            fake.wait(STREAM_COUNT, 20)
            time.sleep(3)
            assert (resident(gateway) - before) / STREAM_COUNT < 256 * KIB
