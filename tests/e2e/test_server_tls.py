"""TLS between clients and the gateway: all routes, a new certificate by SIGHUP, and files that cannot be used."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import openai
import pytest
import websockets.sync.client
from cryptography.hazmat.primitives import serialization

from svc.errors import UsageError
from svc.gateway.net.server_tls import load_server_context
from tests.e2e.accounts.test_keys import until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, KEY, Gateway, run
from tests.e2e.reading import complete_chunks, text_of
from tests.fakes import openai_wire
from tests.fakes.certificate import certificate
from tests.fakes.collector import Collector, attributes_of
from tests.soak.clients import Clients

CHAT = {"model": GPT, "messages": HI}


def install(folder: Path, name: str) -> Path:
    """Make a new certificate for localhost, and put it where the gateway reads it. Return a copy to trust it by."""
    (made_in := folder / name).mkdir()
    made = certificate(made_in, "localhost")
    shutil.copy(made, folder / "next.pem")
    (folder / "next.pem").replace(folder / "server.pem")
    return made


def config(folder: Path, more: str = "") -> str:
    return f'[gateway]\ntls_cert = "{folder / "server.pem"}"\ntls_key = "{folder / "server.pem"}"\n{more}'


def trusting(file: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file)


def is_accepted(gateway: Gateway, context: ssl.SSLContext) -> bool:
    """Return whether a new connection to the gateway succeeds."""
    try:
        with (
            socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost"),
        ):
            return True
    except OSError:
        return False


def test_server_tls_spans_have_the_scheme_https(start_gateway: StartGateway, tmp_path: Path) -> None:
    made = install(tmp_path, "first")
    with Collector() as collector:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        gateway = start_gateway(config=config(tmp_path), env=environ)
        url = f"https://localhost:{gateway.port}/v1"
        with openai.OpenAI(
            base_url=url, api_key=KEY, max_retries=0, http_client=openai.DefaultHttpxClient(verify=trusting(made))
        ) as client:
            client.chat.completions.create(model=GPT, messages=[{"role": "user", "content": "Hi"}])
        assert attributes_of(collector.wait_spans(2)[0])["url.scheme"] == "https"


def test_server_tls_curl_gets_json_stream_and_large_body(start_gateway: StartGateway, tmp_path: Path) -> None:
    trusted = install(tmp_path, "one")
    gateway = start_gateway(config=config(tmp_path))
    gateway.logged(f"gateway  https://127.0.0.1:{gateway.port}/v1", timeout=20)
    common = ["curl", "-sS", "--fail-with-body", "--max-time", "20", "--cacert", str(trusted)]

    def curl(path: str, *options: str) -> bytes:
        command = [*common, *options, f"https://localhost:{gateway.port}{path}"]
        done = subprocess.run(command, capture_output=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    post = ["-H", f"Authorization: Bearer {KEY}", "-H", "Content-Type: application/json", "--data-binary"]
    large = tmp_path / "large.json"
    large.write_text(json.dumps({"model": GPT, "messages": [{"role": "user", "content": "x" * 2_000_000}]}))
    assert json.loads(curl("/health"))["status"] == "ok"
    streamed = curl("/v1/chat/completions", *post, json.dumps({**CHAT, "stream": True}))
    assert text_of(complete_chunks(streamed)) == openai_wire.TEXT
    answer = json.loads(curl("/v1/chat/completions", *post, f"@{large}"))
    assert answer["choices"][0]["message"]["content"] == openai_wire.TEXT


def test_server_tls_openai_client_gets_json_and_streams(start_gateway: StartGateway, tmp_path: Path) -> None:
    trusted = install(tmp_path, "one")
    gateway = start_gateway(config=config(tmp_path))
    with openai.OpenAI(
        base_url=f"https://localhost:{gateway.port}/v1",
        api_key=KEY,
        max_retries=0,
        timeout=20,
        http_client=openai.DefaultHttpxClient(verify=trusting(trusted)),
    ) as client:
        for _ in range(3):
            parts = client.chat.completions.create(model=GPT, messages=HI, stream=True)  # type: ignore[call-overload]
            assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == openai_wire.TEXT
            done = client.chat.completions.create(model=GPT, messages=HI)  # type: ignore[call-overload]
            assert done.choices[0].message.content == openai_wire.TEXT


def test_server_tls_websocket_is_secure(start_gateway: StartGateway, tmp_path: Path) -> None:
    trusted = install(tmp_path, "one")
    gateway = start_gateway(config=config(tmp_path))
    with websockets.sync.client.connect(
        f"wss://localhost:{gateway.port}/v1/audio/transcriptions/stream",
        ssl=trusting(trusted),
        additional_headers={"Authorization": f"Bearer {KEY}"},
        open_timeout=20,
    ) as live:
        live.send('{"type": "config", "vad": 7}')
        message = json.loads(live.recv(timeout=20))
        assert message["type"] == "error"
        assert "vad" in message["message"]


@pytest.mark.parametrize("workers", [1, 2])
def test_server_tls_new_certificate_by_sighup_interrupts_nothing(
    start_gateway: StartGateway, tmp_path: Path, workers: int
) -> None:
    first = install(tmp_path, "one")
    gateway = start_gateway(config=config(tmp_path, f"workers = {workers}\n"))
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    with Clients([gateway.port], KEY, 4, streams=0.5, keep=False, tls=unverified) as clients:
        until(lambda: len(clients.answers) > 5, 20)
        second = install(tmp_path, "two")
        gateway.process.send_signal(signal.SIGHUP)
        gateway.logged("reloaded the configuration", 30)
        until(lambda: is_accepted(gateway, trusting(second)), 20)
        if workers == 1:  # with several, the last old worker may still accept for a moment
            assert not is_accepted(gateway, trusting(first))
        count = len(clients.answers)
        until(lambda: len(clients.answers) > count + 5, 20)
    assert clients.lost == 0
    assert set(clients.statuses()) == {200}


def test_server_tls_invalid_file_at_reload_keeps_certificate(start_gateway: StartGateway, tmp_path: Path) -> None:
    trusted = install(tmp_path, "one")
    gateway = start_gateway(config=config(tmp_path))
    (tmp_path / "server.pem").write_text("not a certificate")
    gateway.process.send_signal(signal.SIGHUP)
    assert "server.pem contains no certificate in PEM format" in gateway.logged("the configuration was not reloaded")
    assert is_accepted(gateway, trusting(trusted))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # for the old versions
def test_server_tls_old_versions_plain_http_and_silent_clients_are_refused(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    trusted = install(tmp_path, "one")
    gateway = start_gateway(config=config(tmp_path))
    old = trusting(trusted)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    assert not is_accepted(gateway, old)
    modern = trusting(trusted)
    modern.maximum_version = ssl.TLSVersion.TLSv1_2
    assert is_accepted(gateway, modern)
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/1.1 200" not in plain.recv(1024)
    assert is_accepted(gateway, trusting(trusted))
    silent = socket.create_connection(("127.0.0.1", gateway.port), timeout=10)
    try:
        assert gateway.stop(20) == 0
    finally:
        silent.close()


def test_server_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    one, two = install(tmp_path, "one"), install(tmp_path, "two")
    text = one.read_bytes()
    key = serialization.load_pem_private_key(two.read_bytes().partition(b"-----END CERTIFICATE-----")[2], None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    (tmp_path / "only.crt").write_bytes(text.partition(b"-----BEGIN PRIVATE")[0])
    (tmp_path / "other.key").write_bytes(two.read_bytes())
    (tmp_path / "encrypted.key").write_bytes(encrypted)
    (tmp_path / "cut.crt").write_bytes(text[:200])
    (tmp_path / "empty.crt").write_bytes(b"")

    def error_of(cert: str, key: str) -> str:
        with pytest.raises(UsageError) as caught:
            load_server_context(str(tmp_path / cert), str(tmp_path / key))
        return caught.value.message

    assert "missing.crt cannot be read: No such file" in error_of("missing.crt", "other.key")
    assert "empty.crt contains no certificate" in error_of("empty.crt", "other.key")
    assert "cut.crt" in error_of("cut.crt", "other.key")
    assert "only.crt contains no private key" in error_of("only.crt", "only.crt")
    assert "other.key is not the private key of" in error_of("only.crt", "other.key")
    assert "encrypted.key is encrypted" in error_of("only.crt", "encrypted.key")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('tls_cert = "a.pem"\n', "`tls_key` is missing"),
        ('tls_key = "a.pem"\n', "`tls_cert` is missing"),
        ('tls_cert = "a.pem"\ntls_key = "a.pem"\nworkers = 2\n', "tls_cert in [gateway]: a.pem cannot be read"),
    ],
)
def test_server_tls_invalid_settings_end_start(tmp_path: Path, settings: str, message: str) -> None:
    (tmp_path / "svc.toml").write_text(f"[gateway]\n{settings}")
    done = run("gateway", "--port", "0", "--config", str(tmp_path / "svc.toml"), home=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
