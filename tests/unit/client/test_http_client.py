"""The HTTP library under both clients: proxies, certificates, HTTP/2, a client of the caller's, cancelled streams."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes import openai_wire
from tests.fakes.certificate import certificate, context
from tests.fakes.forward_proxy import ForwardProxy, TlsFront
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, fin, pause, reset, sse, stall
from websockets.sync.server import ServerConnection, serve

import svc
from svc import errors
from svc.cli import _local_gateway

CREDENTIALS = "user:pass-word"
PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")

Chat = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXY_VARIABLES, "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def certificate_file(tmp_path: Path) -> Path:
    return certificate(tmp_path, "localhost")


@pytest.fixture
def server(certificate_file: Path) -> Iterator[FakeProvider]:
    """A server with TLS, whose certificate nobody has signed."""
    with FakeProvider(OpenAIWire(), key="key-1", tls=context(certificate_file)) as fake:
        yield fake


@pytest.fixture(params=["sync", "async"])
def chat(request: pytest.FixtureRequest) -> Chat:
    """`chat(server)` returns the texts of two calls and a stream of one client. `http` are options for httpx2."""

    def do(server: FakeProvider, http: dict[str, Any] | None = None, timeout_s: float | None = None) -> list[str]:
        named: dict[str, Any] = {"gateway_url": f"{server.address}/v1", "api_key": "key-1", "retries": 0}
        if request.param == "sync":
            with contextlib.ExitStack() as stack:
                if http is not None:
                    named["http_client"] = stack.enter_context(httpx2.Client(**http))
                client = stack.enter_context(svc.Client(**named))
                texts = [client.chat("Hi").text, client.chat("Hi").text]
                return [*texts, "".join(chunk.text for chunk in client.chat("Hi", stream=True, timeout_s=timeout_s))]

        async def run() -> list[str]:
            async with contextlib.AsyncExitStack() as stack:
                if http is not None:
                    named["http_client"] = await stack.enter_async_context(httpx2.AsyncClient(**http))
                client = await stack.enter_async_context(svc.AsyncClient(**named))
                texts = [(await client.chat("Hi")).text, (await client.chat("Hi")).text]
                return [
                    *texts,
                    "".join([chunk.text async for chunk in await client.chat("Hi", stream=True, timeout_s=timeout_s)]),
                ]

        return asyncio.run(run())

    return do


TEXTS = [openai_wire.TEXT] * 3


def trusting(file: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(file))


# certificates


def test_client_unknown_authority_is_rejected(chat: Chat, server: FakeProvider) -> None:
    with pytest.raises(errors.GatewayFailed, match="certificate verify failed"):
        chat(server)
    assert server.requests == []


def test_client_ssl_cert_file_names_the_authority(
    chat: Chat, server: FakeProvider, certificate_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate_file))
    assert chat(server) == TEXTS
    assert server.accepted == 1


def test_client_http_client_has_its_own_authorities(chat: Chat, server: FakeProvider, certificate_file: Path) -> None:
    assert chat(server, {"verify": trusting(certificate_file)}) == TEXTS


def test_client_certificate_is_sent_to_a_server_that_requires_one(
    chat: Chat, tmp_path: Path, certificate_file: Path
) -> None:
    client_file = certificate(tmp_path, "client")
    server_context = context(certificate_file)
    server_context.verify_mode = ssl.CERT_REQUIRED
    server_context.load_verify_locations(client_file)
    with FakeProvider(OpenAIWire(), key="key-1", tls=server_context) as server:
        with pytest.raises(errors.GatewayFailed):
            chat(server, {"verify": trusting(certificate_file)})
        assert server.requests == []
        client_context = trusting(certificate_file)
        client_context.load_cert_chain(client_file)
        assert chat(server, {"verify": client_context}) == TEXTS


def test_client_missing_certificate_file_raises_usage_error(chat: Chat, server: FakeProvider, monkeypatch: Any) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/at/all.pem")
    with pytest.raises(errors.UsageError, match="SSL_CERT_FILE"):
        chat(server)


# proxies


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_client_proxy_of_environment_tunnels_tls_with_credentials(
    chat: Chat,
    server: FakeProvider,
    tmp_path: Path,
    certificate_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate_file))
    with ForwardProxy(tmp_path, CREDENTIALS) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        assert chat(server) == TEXTS
        assert proxy.requests == [f"CONNECT localhost:{server.port} HTTP/1.1"]  # one connection for all requests
    assert not any("proxy-authorization" in seen.headers for seen in server.requests)


def test_client_proxy_of_http_client_tunnels_tls(
    chat: Chat, server: FakeProvider, tmp_path: Path, certificate_file: Path
) -> None:
    with ForwardProxy(tmp_path, CREDENTIALS) as proxy:
        assert chat(server, {"proxy": proxy.url, "verify": trusting(certificate_file)}) == TEXTS
        assert proxy.requests == [f"CONNECT localhost:{server.port} HTTP/1.1"]


def test_client_proxy_with_tls_itself_tunnels_tls(
    chat: Chat, server: FakeProvider, tmp_path: Path, certificate_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate_file))
    with ForwardProxy(tmp_path, CREDENTIALS) as proxy, TlsFront(proxy.port, context(certificate_file)) as front:
        monkeypatch.setenv("HTTPS_PROXY", f"https://{CREDENTIALS}@localhost:{front.port}")
        assert chat(server) == TEXTS
        assert proxy.requests == [f"CONNECT localhost:{server.port} HTTP/1.1"]


def test_client_proxy_forwards_plain_http(chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeProvider(OpenAIWire(), key="key-1") as server, ForwardProxy(tmp_path, CREDENTIALS) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        assert chat(server) == TEXTS
        assert f"POST {server.address}/v1/chat/completions HTTP/1.1" in proxy.requests


@pytest.mark.parametrize("bypassed", ["localhost", "example.com, localhost", "*"])
def test_client_no_proxy_host_is_reached_directly(
    chat: Chat, server: FakeProvider, certificate_file: Path, monkeypatch: pytest.MonkeyPatch, bypassed: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate_file))
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("NO_PROXY", bypassed)
    assert chat(server) == TEXTS


def test_client_wrong_proxy_password_raises_error_without_it(
    chat: Chat, server: FakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ForwardProxy(tmp_path, "user:other") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{CREDENTIALS}@127.0.0.1:{proxy.port}")
        with pytest.raises(errors.GatewayFailed, match="the proxy refused the connection: 401") as caught:
            chat(server)
    assert "pass-word" not in str(caught.value)


def test_client_unreachable_proxy_is_named_without_credentials(
    chat: Chat, server: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = closed_port()
    monkeypatch.setenv("HTTPS_PROXY", f"http://{CREDENTIALS}@127.0.0.1:{port}")
    reason = f"the proxy at 127.0.0.1:{port} cannot be reached: (All connection attempts failed|Connection refused)"
    with pytest.raises(errors.GatewayFailed, match=reason) as caught:
        chat(server)
    assert "pass-word" not in str(caught.value)


def test_client_untrusted_certificate_behind_proxy_is_that_of_the_gateway(
    chat: Chat, server: FakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ForwardProxy(tmp_path, CREDENTIALS) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(errors.GatewayFailed, match="certificate verify failed") as caught:
            chat(server)
    assert "the proxy" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["ftp://user:pass-word@proxy", "http://user:pass-word@proxy:port"])
def test_client_invalid_proxy_raises_usage_error_without_credentials(
    chat: Chat, server: FakeProvider, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(errors.UsageError, match="HTTPS_PROXY") as caught:
        chat(server)
    assert "pass-word" not in str(caught.value)


def test_client_gateway_of_svc_up_is_never_behind_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SVC_GATEWAY_URL", "SVC_PLATFORM_URL", "SVC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SVC_HOME", str(tmp_path))
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port()}")
    with FakeProvider(OpenAIWire(), key=_local_gateway.ensure_api_key(tmp_path)) as fake:
        _local_gateway.write_gateway_record(tmp_path, f"{fake.address}/v1")
        with svc.Client() as client:
            assert client.chat("Hi").text == openai_wire.TEXT


# live sessions


def _serve_live(connection: ServerConnection) -> None:
    for message in connection:
        if isinstance(message, str):
            match json.loads(message)["type"]:
                case "config":
                    connection.send(json.dumps({"type": "ready", "session_id": "s", "model": "m"}))
                case "flush":
                    connection.send(
                        json.dumps({"type": "final", "text": "hello", "duration_ms": 1, "chunks_processed": 1})
                    )
                case "close":
                    connection.send(json.dumps({"type": "closed", "reason": "client_close"}))


@pytest.mark.parametrize("explicit", [False, True])
def test_live_proxy_tunnels_tls(
    tmp_path: Path, certificate_file: Path, monkeypatch: pytest.MonkeyPatch, explicit: bool
) -> None:
    with (
        serve(_serve_live, "localhost", 0, ssl=context(certificate_file)) as live_server,
        ForwardProxy(tmp_path, CREDENTIALS) as proxy,
    ):
        thread = threading.Thread(target=live_server.serve_forever, daemon=True)
        thread.start()
        port = live_server.socket.getsockname()[1]
        connection_options = None
        if explicit:
            connection_options = {"proxy": proxy.url, "ssl": trusting(certificate_file)}
        else:
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate_file))
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        url = f"https://localhost:{port}/v1"
        with (
            svc.Client(gateway_url=url, api_key="key-1") as client,
            client.live(websocket_connection_options=connection_options) as live,
        ):
            live.feed(bytes(100_000))
            assert live.finish().text == "hello"

        async def run() -> str:
            async with (
                svc.AsyncClient(gateway_url=url, api_key="key-1") as client,
                await client.live(websocket_connection_options=connection_options) as live,
            ):
                await live.feed(bytes(100_000))
                return (await live.finish()).text

        assert asyncio.run(run()) == "hello"
        assert proxy.requests == [f"CONNECT localhost:{port} HTTP/1.1"] * 2
        live_server.shutdown()


def test_live_https_proxy_variable_is_not_used_for_plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{closed_port()}")
    with serve(_serve_live, "127.0.0.1", 0) as live_server:
        threading.Thread(target=live_server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{live_server.socket.getsockname()[1]}/v1"
        with svc.Client(gateway_url=url, api_key="key-1") as client, client.live() as live:
            assert live.finish().text == "hello"
        live_server.shutdown()


@pytest.mark.parametrize("proxy", ["http://user:pass-word@", "http://user:pass-word@127.0.0.1:1/path"])
def test_live_invalid_proxy_raises_error_without_credentials(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with (
        svc.Client(gateway_url="http://gateway.example", api_key="key-1") as client,
        pytest.raises(errors.GatewayFailed, match="the proxy is not valid") as caught,
    ):
        client.live()
    assert "pass-word" not in "".join(traceback.format_exception(caught.value))


def test_live_wrong_proxy_password_names_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ForwardProxy(tmp_path, "user:other") as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{CREDENTIALS}@127.0.0.1:{proxy.port}")
        with (
            svc.Client(gateway_url="http://gateway.example", api_key="key-1") as client,
            pytest.raises(errors.GatewayFailed, match="proxy rejected connection: HTTP 401"),
        ):
            client.live()


# a client of the caller's


def _respond(request: httpx2.Request) -> httpx2.Response:
    assert request.headers["authorization"] == "Bearer key-1"
    assert request.headers["x-mine"] == "yes"
    return httpx2.Response(200, json=openai_wire.chat("from the transport"))


def test_client_http_client_with_a_transport_is_used_and_stays_open() -> None:
    options: dict[str, Any] = {"gateway_url": "http://gateway.example", "api_key": "key-1"}
    http: dict[str, Any] = {"transport": httpx2.MockTransport(_respond), "headers": {"x-mine": "yes"}}
    with httpx2.Client(**http) as http_client:
        with svc.Client(http_client=http_client, **options) as client:
            assert client.chat("Hi").text == "from the transport"
        assert not http_client.is_closed

    async def run() -> None:
        async with httpx2.AsyncClient(**http) as http_client:
            async with svc.AsyncClient(http_client=http_client, **options) as client:
                assert (await client.chat("Hi")).text == "from the transport"
            assert not http_client.is_closed

    asyncio.run(run())


def test_client_http_client_of_other_kind_raises_usage_error() -> None:
    asynchronous = httpx2.AsyncClient()
    with pytest.raises(errors.UsageError, match=r"httpx2\.Client"):
        svc.Client(http_client=asynchronous)  # type: ignore[arg-type]
    with httpx2.Client() as blocking, pytest.raises(errors.UsageError, match=r"httpx2\.AsyncClient"):
        svc.AsyncClient(http_client=blocking)  # type: ignore[arg-type]


def test_client_closed_raises_usage_error(plain_server: FakeProvider) -> None:
    client = svc.Client(gateway_url=plain_server.address, api_key="key-1")
    client.close()
    with pytest.raises(errors.UsageError, match="closed"):
        client.chat("Hi")

    async def run() -> None:
        client = svc.AsyncClient(gateway_url=plain_server.address, api_key="key-1")
        await client.close()
        await client.chat("Hi")

    with pytest.raises(errors.UsageError, match="closed"):
        asyncio.run(run())


# HTTP/2

NGINX_CONFIG = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log; {user}
events {{}}
http {{ log_format protocol "$server_protocol $request_method"; access_log {folder}/access.log protocol;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{port} ssl http2; ssl_certificate {certificate}; ssl_certificate_key {certificate};
    location / {{ proxy_pass http://127.0.0.1:{upstream}; proxy_http_version 1.1; proxy_buffering off; }} }} }}
"""


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is missing")
def test_client_server_with_http2_gets_http2(
    chat: Chat, tmp_path: Path, certificate_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate_file))
    port = closed_port()
    with FakeProvider(OpenAIWire(), key="key-1") as fake:
        config = NGINX_CONFIG.format(
            folder=tmp_path,
            port=port,
            certificate=certificate_file,
            upstream=fake.port,
            user="user root;" if os.geteuid() == 0 else "",
        )
        (tmp_path / "conf").write_text(config)
        nginx = subprocess.Popen(["nginx", "-c", tmp_path / "conf", "-p", tmp_path], stderr=subprocess.DEVNULL)
        try:
            _wait_until_listening(port)
            fake.address = f"https://localhost:{port}"
            assert chat(fake) == TEXTS
            completion = answer(200, openai_wire.chat("ok"))
            fake.plays(completion, completion, sse(openai_wire.stream()[:3], end=fin()))
            with pytest.raises((errors.GatewayFailed, errors.ProviderFailed)):
                chat(fake)
        finally:
            nginx.terminate()
            nginx.wait(10)
    assert set((tmp_path / "access.log").read_text().splitlines()) == {"HTTP/2.0 POST"}


def _wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return


# streams


@pytest.fixture
def plain_server() -> Iterator[FakeProvider]:
    with FakeProvider(OpenAIWire(), key="key-1") as fake:
        yield fake


@pytest.mark.parametrize("started", [False, True])
def test_chat_stream_dropped_closes_connection(plain_server: FakeProvider, started: bool) -> None:
    plain_server.plays(sse(openai_wire.stream()[:3], end=stall()))
    with svc.Client(gateway_url=plain_server.address, api_key="key-1") as client:
        stream = client.chat("Hi", stream=True)
        if started:
            next(stream)
        del stream
        gc.collect()
        plain_server.wait().wait_left(2.0)


async def test_async_chat_stream_dropped_closes_connection(plain_server: FakeProvider) -> None:
    plain_server.plays(sse(openai_wire.stream()[:3], end=stall()))
    async with svc.AsyncClient(gateway_url=plain_server.address, api_key="key-1") as client:
        stream = await client.chat("Hi", stream=True)
        await anext(stream)
        del stream
        gc.collect()
        await asyncio.to_thread(plain_server.wait().wait_left, 2.0)


async def _read_all(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


async def test_async_chat_stream_cancelled_task_closes_connection(plain_server: FakeProvider) -> None:
    plain_server.plays(sse(openai_wire.stream()[:3], end=stall()))
    async with svc.AsyncClient(gateway_url=plain_server.address, api_key="key-1") as client:
        stream = await client.chat("Hi", stream=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_read_all(stream), 0.3)
        await asyncio.to_thread(plain_server.wait().wait_left, 2.0)
        assert (await client.chat("Hi")).text == openai_wire.TEXT


def test_chat_stream_closed_by_other_thread_wakes_reader(plain_server: FakeProvider) -> None:
    plain_server.plays(sse(openai_wire.stream()[:3], end=stall()))
    with svc.Client(gateway_url=plain_server.address, api_key="key-1") as client:
        stream = client.chat("Hi", stream=True)
        threading.Timer(0.3, stream.close).start()
        started_at = time.monotonic()
        with pytest.raises(errors.GatewayFailed, match="interrupted"):
            list(stream)
        assert time.monotonic() - started_at < 3


def test_chat_timeout_limits_a_stream_that_stalls_late(chat: Chat, plain_server: FakeProvider) -> None:
    completion = answer(200, openai_wire.chat("ok"))
    plain_server.plays(completion, completion, sse(openai_wire.stream()[:3], end=pause(0.4) + stall()))
    with pytest.raises(errors.GatewayFailed, match="timed out"):
        chat(plain_server, timeout_s=0.6)


def test_chat_timeout_limits_a_stream_whose_events_each_arrive_in_time(chat: Chat, plain_server: FakeProvider) -> None:
    completion = answer(200, openai_wire.chat("ok"))
    plain_server.plays(completion, completion, sse(openai_wire.stream("word " * 100), every=0.2))  # for 20 seconds
    with pytest.raises(errors.GatewayFailed, match="timed out"):
        chat(plain_server, timeout_s=1.0)


def test_client_idle_connection_reset_by_server_is_not_a_failure(chat: Chat, plain_server: FakeProvider) -> None:
    """A proxy or server may close an idle connection at the moment of the next request."""
    completion = answer(200, openai_wire.chat(openai_wire.TEXT))
    plain_server.plays(completion, reset())
    assert chat(plain_server) == TEXTS
    assert len(plain_server.requests) == 4


def test_client_new_connection_reset_by_server_is_a_failure(chat: Chat, plain_server: FakeProvider) -> None:
    plain_server.plays(reset())
    with pytest.raises(errors.GatewayFailed, match="cannot be reached"):
        chat(plain_server)
    assert len(plain_server.requests) == 1


def test_chat_timeout_of_a_body_without_length_times_out(chat: Chat, plain_server: FakeProvider) -> None:
    completion = answer(200, openai_wire.chat("ok"))
    plain_server.plays(completion, completion, sse(openai_wire.stream()[:3], framing="close", end=stall()))
    with pytest.raises(errors.GatewayFailed, match="timed out"):
        chat(plain_server, timeout_s=0.5)


def test_client_many_threads_share_one_client(plain_server: FakeProvider) -> None:
    texts: list[str] = []
    with svc.Client(gateway_url=plain_server.address, api_key="key-1") as client:

        def work() -> None:
            for _ in range(5):
                texts.append(client.chat("Hi").text)
                texts.append("".join(chunk.text for chunk in client.chat("Hi", stream=True)))

        threads = [threading.Thread(target=work) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert texts == [openai_wire.TEXT] * 200
    assert plain_server.accepted <= 200


def test_svc_version_and_import_load_no_http_library() -> None:
    script = (
        "import sys, runpy\n"
        "import svc; svc.Client; svc.AsyncClient\n"
        "sys.argv = ['svc', '--version']\n"
        "try: runpy.run_module('svc', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "assert not {'httpx2', 'httpcore2', 'urllib.request', 'websockets'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
