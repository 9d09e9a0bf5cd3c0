"""Requests to providers through an HTTP proxy: a real Tinyproxy between gateway and provider."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import CLAUDE, GPT, Gateway, run
from tests.e2e.reading import broken_stream, complete_chunks, text_of
from tests.fakes import openai_wire
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.certificate import certificate, context
from tests.fakes.forward_proxy import ForwardProxy, TlsFront
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, hold, sse

CONFIG = "[gateway]\nconnect_timeout = 2\n[routing]\nretries = 0\nbreaker = false\n"
CREDENTIALS = "user:pass-word"


@contextlib.contextmanager
def tls_provider(folder: Path) -> Iterator[tuple[FakeProvider, Path]]:
    """A provider with TLS, and the file with its certificate."""
    file = certificate(folder, "localhost")
    with FakeProvider(OpenAIWire(), key="sk-tls", tls=context(file)) as fake:
        yield fake, file


@contextlib.contextmanager
def running_gateway(
    folder: Path, fake: FakeProvider, *, certificate_file: Path | None = None, config: str = CONFIG, **env: str
) -> Iterator[Gateway]:
    """A gateway whose provider A is `fake`. It must exit with 0, and log neither credentials nor a traceback."""
    scheme = "http" if certificate_file is None else "https"
    own = {"PROVIDER_A_API_KEY": fake.key, "PROVIDER_A_BASE_URL": f"{scheme}://localhost:{fake.port}/v1"}
    trust = {} if certificate_file is None else {"SSL_CERT_FILE": str(certificate_file)}
    gateway = Gateway(folder, env={**own, **trust, **env}, config=config, is_forked=True).start()
    try:
        yield gateway
    finally:
        status = gateway.stop()
    assert status == 0
    assert "Traceback" not in gateway.log
    assert "pass-word" not in gateway.log


def provider_config(proxy: str) -> str:
    return f'{CONFIG}[[providers]]\nname = "openai"\nproxy = "{proxy}"\n'


def test_outbound_proxy_setting_tunnels_tls_with_credentials(tmp_path: Path) -> None:
    with (
        tls_provider(tmp_path) as (fake, file),
        ForwardProxy(tmp_path, CREDENTIALS) as proxy,
        running_gateway(tmp_path, fake, certificate_file=file, config=provider_config(proxy.url)) as gateway,
    ):
        for stream in (False, True) * 2:
            got = gateway.chat(stream=stream)
            assert got.status == 200
            if stream:
                assert text_of(complete_chunks(got.body)) == openai_wire.TEXT
        assert proxy.requests == [f"CONNECT localhost:{fake.port} HTTP/1.1"]  # one connection for all requests
        assert {seen.connection for seen in fake.requests} == {1}
        doctor = run("doctor", home=tmp_path, env={"PROVIDER_A_API_KEY": fake.key, "SSL_CERT_FILE": str(file)})
        assert "pass-word" not in doctor.stdout + doctor.stderr


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy"])
def test_outbound_proxy_variable_tunnels_tls(tmp_path: Path, variable: str) -> None:
    with (
        tls_provider(tmp_path) as (fake, file),
        ForwardProxy(tmp_path) as proxy,
        running_gateway(tmp_path, fake, certificate_file=file, **{variable: proxy.url}) as gateway,
    ):
        assert gateway.chat().status == 200
        assert proxy.requests == [f"CONNECT localhost:{fake.port} HTTP/1.1"]


def test_outbound_proxy_plain_http_is_forwarded_with_credentials(tmp_path: Path) -> None:
    with (
        FakeProvider(OpenAIWire(), key="sk-plain") as fake,
        ForwardProxy(tmp_path, CREDENTIALS) as proxy,
        running_gateway(tmp_path, fake, HTTP_PROXY=proxy.url) as gateway,
    ):
        assert gateway.chat().status == 200
        assert text_of(complete_chunks(gateway.chat(stream=True).body)) == openai_wire.TEXT
        assert f"POST http://localhost:{fake.port}/v1/chat/completions HTTP/1.1" in proxy.requests
        assert not any("proxy-authorization" in seen.headers for seen in fake.requests)


def test_outbound_proxy_anthropic_provider_streams(tmp_path: Path) -> None:
    file = certificate(tmp_path, "localhost")
    with (
        FakeProvider(AnthropicWire(), key="sk-ant", tls=context(file)) as fake,
        ForwardProxy(tmp_path) as proxy,
    ):
        address = {"PROVIDER_B_BASE_URL": f"https://localhost:{fake.port}", "PROVIDER_B_API_KEY": fake.key}
        with running_gateway(tmp_path, fake, certificate_file=file, HTTPS_PROXY=proxy.url, **address) as gateway:
            assert gateway.message(stream=True).status == 200
            assert gateway.chat(model=CLAUDE).status == 200
            assert proxy.requests[0] == f"CONNECT localhost:{fake.port} HTTP/1.1"


@pytest.mark.parametrize(
    ("config", "env"),
    [
        (CONFIG, {"NO_PROXY": "example.com, localhost"}),
        (CONFIG, {"no_proxy": "*"}),
        (provider_config("direct"), {}),
    ],
)
def test_outbound_proxy_bypassed_host_is_reached_directly(tmp_path: Path, config: str, env: dict[str, str]) -> None:
    with (
        tls_provider(tmp_path) as (fake, file),
        ForwardProxy(tmp_path) as proxy,
        running_gateway(tmp_path, fake, certificate_file=file, config=config, HTTPS_PROXY=proxy.url, **env) as gateway,
    ):
        assert gateway.chat().status == 200
        assert proxy.requests == []


def test_outbound_proxy_wrong_password_returns_502_and_logs_reason(tmp_path: Path) -> None:
    with (
        tls_provider(tmp_path) as (fake, file),
        ForwardProxy(tmp_path, "user:other") as proxy,
        running_gateway(
            tmp_path, fake, certificate_file=file, HTTPS_PROXY=f"http://{CREDENTIALS}@127.0.0.1:{proxy.port}"
        ) as gateway,
    ):
        got = gateway.chat()
        assert (got.status, got.code) == (502, "provider_error")
        assert "rejected the credentials" in gateway.logged(f"through the proxy 127.0.0.1:{proxy.port}")
        assert not fake.requests


def test_outbound_proxy_unreachable_returns_502_and_recovers(tmp_path: Path) -> None:
    with tls_provider(tmp_path) as (fake, file):
        proxy = ForwardProxy(tmp_path)
        with running_gateway(tmp_path, fake, certificate_file=file, HTTPS_PROXY=proxy.url) as gateway:
            assert gateway.chat().status == 502
            with proxy:
                assert gateway.chat().status == 200


def test_outbound_proxy_killed_during_stream_breaks_it_honestly(tmp_path: Path) -> None:
    gate = Gate()
    with (
        tls_provider(tmp_path) as (fake, file),
        ForwardProxy(tmp_path) as proxy,
        running_gateway(tmp_path, fake, certificate_file=file, HTTPS_PROXY=proxy.url) as gateway,
    ):
        fake.plays(sse(openai_wire.stream()[:3], end=hold(gate)))
        killer = threading.Timer(0.5, proxy.kill)
        killer.start()
        got = gateway.chat(stream=True)
        killer.join()
        gate.open()
        assert broken_stream(got.body)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "status 403"),
        (b"rubbish\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000, "larger than"),
        (b"HTTP/1.1 200 OK\r\n\r\nextra", "before the tunnel"),
        (b"", "closed the connection"),
        (b"HTTP/1.1 2", "within 2 s"),
    ],
)
def test_outbound_proxy_invalid_response_returns_error_with_reason(
    tmp_path: Path, response: bytes, reason: str
) -> None:
    with tls_provider(tmp_path) as (fake, file), socket.create_server(("127.0.0.1", 0)) as listener:
        closes = reason == "closed the connection"
        thread = threading.Thread(target=_respond, args=(listener, response, closes), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with running_gateway(tmp_path, fake, certificate_file=file, HTTPS_PROXY=url) as gateway:
            assert gateway.chat().status in (502, 504)
            gateway.logged(reason)
            assert not fake.requests


def _respond(listener: socket.socket, response: bytes, closes: bool) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        with contextlib.suppress(OSError):
            connection.sendall(response)
            while not closes and connection.recv(4096):
                pass


@pytest.mark.parametrize("tls", [True, False])
def test_outbound_proxy_with_tls_itself_carries_both_schemes(tmp_path: Path, tls: bool) -> None:
    file = certificate(tmp_path, "localhost")
    with (
        FakeProvider(OpenAIWire(), key="sk-a", tls=context(file) if tls else None) as fake,
        ForwardProxy(tmp_path, CREDENTIALS) as proxy,
        TlsFront(proxy.port, context(file)) as front,
    ):
        url = f"https://{CREDENTIALS}@localhost:{front.port}"
        with running_gateway(
            tmp_path,
            fake,
            certificate_file=file if tls else None,
            SSL_CERT_FILE=str(file),
            HTTPS_PROXY=url,
            HTTP_PROXY=url,
        ) as gateway:
            for stream in (False, True) * 2:
                got = gateway.chat(stream=stream, model=GPT)
                assert got.status == 200
                if stream:
                    assert text_of(complete_chunks(got.body)) == openai_wire.TEXT
            long_prompt = [{"role": "user", "content": "x" * 300_000}]
            assert gateway.chat(messages=long_prompt).status == 200
        assert proxy.requests


def test_outbound_proxy_invalid_setting_is_usage_error_without_credentials(tmp_path: Path) -> None:
    (tmp_path / "svc.toml").write_text('[[providers]]\nname = "openai"\nproxy = "socks5://user:pass-word@x"\n')
    done = run("gateway", "--port", "0", home=tmp_path, env={"OPENAI_API_KEY": "sk-x"})
    assert done.returncode == 2
    assert "http://proxy.example:3128" in done.stderr
    assert "pass-word" not in done.stderr
