"""Providers behind TLS, as all real ones are."""

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
from tests.e2e.reading import broken_stream, text_of, whole_chunks
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

STREAMS = 16
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
        gateway = Gateway(folder, env=env, config=CONFIG)
        gateway.command = [*command] or gateway.command
        gateway.start()
        try:
            yield fake, gateway, proxy
        finally:
            status = gateway.stop()
        assert status == 0
        assert "Traceback" not in gateway.log


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_answers_streams_and_connections_that_are_used_again(tmp_path: Path, newest: ssl.TLSVersion) -> None:
    with provider("localhost", tmp_path, newest=newest) as (fake, gateway, _):
        for stream in (False, True) * 3:
            got = gateway.chat(stream=stream)
            assert got.status == 200
            if stream:
                assert text_of(whole_chunks(got.body)) == openai_wire.TEXT
        assert {seen.connection for seen in fake.requests} == {1}


def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    with provider("other.example", tmp_path) as (fake, gateway, _):
        got = gateway.chat()
        assert (got.status, got.code) == (502, "provider_error")
        assert not fake.requests
        assert "localhost:" in gateway.logged("certificate verify failed")


def test_byte_by_byte(tmp_path: Path) -> None:
    with provider("localhost", tmp_path, chunk_bytes=1) as (_, gateway, _):
        assert gateway.chat().status == 200
        assert text_of(whole_chunks(gateway.chat(stream=True).body)) == openai_wire.TEXT


def test_a_long_prompt_arrives_whole_and_so_does_a_long_answer(tmp_path: Path) -> None:
    with provider("localhost", tmp_path) as (fake, gateway, _):
        long = "".join(map(str, range(500_000)))
        fake.plays(answer(200, openai_wire.chat(long)))
        got = gateway.chat(messages=[{"role": "user", "content": long}])
        assert got.json["choices"][0]["message"]["content"] == long
        assert fake.requests[0].json["messages"][0]["content"] == long


def test_a_connection_that_was_closed_while_unused(tmp_path: Path) -> None:
    with provider("localhost", tmp_path) as (fake, gateway, proxy):
        fake.plays(answer(200, openai_wire.chat()) + fin())
        assert [gateway.chat().status for _ in range(2)] == [200, 200]
        assert {seen.connection for seen in fake.requests} == {1, 2}
        proxy.close_without_tls_alert()
        proxy.release()
        assert gateway.chat().status == 200


def test_a_connection_on_which_something_has_begun_is_not_used_again(tmp_path: Path) -> None:
    """Nobody asked for it, and its rest would be taken for the beginning of the next request's answer."""
    with provider("localhost", tmp_path) as (fake, gateway, proxy):
        assert gateway.chat().status == 200
        proxy.inject(b"\x17\x03\x03\x00\x40" + bytes(3))
        time.sleep(0.2)  # what it has said is through
        assert gateway.chat().status == 200
        assert [seen.connection for seen in fake.requests] == [1, 2]


def test_an_answer_that_ends_with_its_connection_must_end_in_tls(tmp_path: Path) -> None:
    """Else whoever sits between could cut it short, and nobody would know."""
    with provider("localhost", tmp_path) as (fake, gateway, proxy):
        whole = answer(200, openai_wire.chat("all of it"), framing="close")
        fake.plays(whole)
        assert gateway.chat().json["choices"][0]["message"]["content"] == "all of it"
        gate = Gate()
        fake.plays(Script(whole.steps[:-1]) + hold(gate))
        with gateway.raw() as client:
            client.send(request_bytes("POST", "/v1/chat/completions", CHAT, key=gateway.key))
            gate.reached()
            time.sleep(0.2)  # what it has said is through
            proxy.close_without_tls_alert()
            got = client.read()
        assert (got.status, got.code) == (502, "provider_error")


def test_a_stream_that_is_spoilt_on_its_way_is_broken_off(tmp_path: Path) -> None:
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
def test_a_handshake_that_does_not_come_to_an_end(tmp_path: Path, when: str) -> None:
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
        silent = (
            f"openai: The provider took too long to accept a connection. (no TLS connection to {to} within 1 s) [req"
        )
        closed = f"openai: The provider cannot be reached. (no connection to {to}: ConnectionResetError: "
        gateway.logged(silent if when == "silent" else closed)
        fake.until(lambda: not fake.connections)
        proxy.release()
        assert proxy.opened == 1


@pytest.mark.parametrize("how", ["refused", "left"])
def test_a_handshake_that_fails_leaves_nothing_behind(tmp_path: Path, how: str) -> None:
    """Even if no garbage collector ever comes: OpenSSL needs 70 KB for each."""
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


def test_who_does_not_read_costs_little_here_too(tmp_path: Path) -> None:
    with provider("localhost", tmp_path) as (fake, gateway, _):
        gateway.chat(GPT, stream=True)
        fake.forget()
        fake.always_plays(sse([openai_wire.role(), *[openai_wire.chunk({"content": " word"}) * 20] * 2000]))
        asked = request_bytes("POST", "/v1/chat/completions", STREAM, key=gateway.key)
        before = resident(gateway)
        with contextlib.ExitStack() as stack:
            for _ in range(STREAMS):
                client = stack.enter_context(gateway.raw())
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.send(asked)
            fake.wait(STREAMS, 20)
            time.sleep(3)
            assert (resident(gateway) - before) / STREAMS < 256 * KIB
