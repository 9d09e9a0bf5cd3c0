"""Runs nginx, Caddy and HAProxy with the files in `deploy/`: TLS, a stream, a WebSocket and `/metrics`."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import websockets.exceptions
from websockets.sync.client import connect

from tests.deploy.checks import CheckFailed, say
from tests.e2e.harness import GPT, HI, KEY, Gateway, provider_environment
from tests.fakes.certificate import certificate as make_certificate
from tests.fakes.openai_wire import OpenAIWire, stream
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, body, end, head, hold

ROOT = Path(__file__).resolve().parents[2]
NGINX = ROOT / "deploy" / "nginx" / "svc.conf"
HAPROXY = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
CADDYFILE = ROOT / "deploy" / "caddy" / "Caddyfile"
WAIT_SECONDS = 30
CONFIG = '[gateway]\nhosts = ["gateway.example"]\n'


def check_proxies() -> None:
    """Check each proxy that is installed, and fail without any of them. Raises CheckFailed."""
    missing = [name for name in PROXIES if not find_program(name)]
    with tempfile.TemporaryDirectory(prefix="svc-deploy-") as name, FakeProvider(OpenAIWire(), key="a") as provider:
        folder = Path(name)
        pem = make_certificate(folder, "gateway.example")
        context = ssl.create_default_context(cafile=str(pem))
        gateway = Gateway(folder, env=provider_environment({"A": provider}), config=CONFIG).start()
        try:
            for proxy in PROXIES:
                if proxy not in missing:
                    with run_proxy(proxy, folder, gateway.port, pem) as port:
                        check_traffic(port, provider, context)
                    say(f"  {proxy}: TLS, a stream, a WebSocket and /metrics are right")
        finally:
            gateway.stop(60)
    if missing:
        raise CheckFailed(
            f"missing: {', '.join(missing)}; install them, for example with: apt-get install nginx caddy haproxy"
        )


def find_program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def nginx_command(folder: Path, port: int, gateway: int, pem: Path) -> list[str]:
    """Write the configuration, with free ports and a file with certificate and key. Returns the command."""
    text = NGINX.read_text(encoding="utf-8").replace("127.0.0.1:3000", f"127.0.0.1:{gateway}")
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    text = re.sub(r"ssl_certificate \S+;", f"ssl_certificate {pem};", text)
    text = re.sub(r"ssl_certificate_key \S+;", f"ssl_certificate_key {pem};", text)
    (folder / "svc.conf").write_text(text, encoding="utf-8")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/nginx-{kind}; " for kind in kinds)
    whole = (
        f"daemon off; pid {folder}/nginx.pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {temporary}include {folder}/svc.conf; }}\n"
    )
    (folder / "nginx.conf").write_text(whole, encoding="utf-8")
    return [str(find_program("nginx")), "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy_command(folder: Path, port: int, gateway: int, pem: Path) -> list[str]:
    """Write the configuration, with free ports and a file with certificate and key. Returns the command."""
    text = CADDYFILE.read_text(encoding="utf-8").replace("127.0.0.1:3000", f"127.0.0.1:{gateway}")
    site = f"https://gateway.example:{port} {{\n\tbind 127.0.0.1\n\ttls {pem} {pem}"
    text = text.replace("gateway.example {", site)
    whole = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + text
    (folder / "Caddyfile").write_text(whole, encoding="utf-8")
    return [str(find_program("caddy")), "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


def haproxy_command(folder: Path, port: int, gateway: int, pem: Path) -> list[str]:
    """Write the configuration, with free ports and a file with certificate and key. Returns the command."""
    text = HAPROXY.read_text(encoding="utf-8").replace("127.0.0.1:3000", f"127.0.0.1:{gateway}")
    text = re.sub(r"bind :443 ssl crt \S+", f"bind 127.0.0.1:{port} ssl crt {pem}", text)
    (folder / "haproxy.cfg").write_text(text, encoding="utf-8")
    return [str(find_program("haproxy")), "-db", "-f", str(folder / "haproxy.cfg")]


PROXIES = {"nginx": nginx_command, "caddy": caddy_command, "haproxy": haproxy_command}


@contextlib.contextmanager
def run_proxy(name: str, folder: Path, gateway: int, pem: Path) -> Iterator[int]:
    """Run a proxy. Yields its port."""
    port = closed_port()
    command = PROXIES[name](folder, port, gateway, pem)
    log = folder / f"{name}.log"
    environment = {"HOME": str(folder), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_listening(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise CheckFailed(f"{name} did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def require(condition: bool, text: str) -> None:
    if not condition:
        raise CheckFailed(text)


def check_traffic(port: int, provider: FakeProvider, context: ssl.SSLContext) -> None:
    """Send what clients send."""
    require(status_of(port, "/health", context) == 200, "/health is not 200")
    require(status_of(port, "/metrics", context) == 403, "/metrics is not 403")
    require(negotiate(port) == "h2", "HTTP/2 is not offered")
    check_stream(port, provider, context)
    check_websocket(port, context)


def open_connection(port: int, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    """Return a connection to this machine with the public name in TLS."""
    connection = http.client.HTTPSConnection("gateway.example", port, timeout=WAIT_SECONDS)
    plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
    connection.sock = context.wrap_socket(plain, server_hostname="gateway.example")
    return connection


def negotiate(port: int) -> str | None:
    """Return the protocol that the proxy selects for a client with HTTP/2."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
    with context.wrap_socket(plain, server_hostname="gateway.example") as client:
        return client.selected_alpn_protocol()


def status_of(port: int, path: str, context: ssl.SSLContext) -> int:
    with contextlib.closing(open_connection(port, context)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status


def check_stream(port: int, provider: FakeProvider, context: ssl.SSLContext) -> None:
    """Check that the first event arrives while the provider waits with the next."""
    gate, events = Gate(), stream()
    first = body(b"".join(events[:2]))
    provider.plays(
        head(200, content_type="text/event-stream", framing="chunked")
        + first
        + hold(gate)
        + body(b"".join(events[2:]))
        + end()
    )
    with contextlib.closing(open_connection(port, context)) as connection:
        content = json.dumps({"model": GPT, "messages": HI, "stream": True})
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", content, headers)
        try:
            response = connection.getresponse()
            line = response.readline()
            require(response.status == 200 and line.startswith(b"data: "), f"{response.status}: {line!r}")
        except TimeoutError as error:
            raise CheckFailed("the first event does not arrive before the stream ends") from error
        finally:
            gate.open()
        require(response.read().rstrip().endswith(b"data: [DONE]"), "the stream is not complete")


def check_websocket(port: int, context: ssl.SSLContext) -> None:
    """Check that messages pass in both directions. An invalid `config` needs no model."""
    address = f"wss://gateway.example:{port}/v1/audio/transcriptions/stream"
    plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
    headers = {"Authorization": f"Bearer {KEY}"}
    times = {"open_timeout": WAIT_SECONDS, "close_timeout": WAIT_SECONDS}
    try:
        with connect(address, sock=plain, ssl=context, additional_headers=headers, proxy=None, **times) as client:
            client.send(json.dumps({"type": "config", "vad": "yes"}))
            received = json.loads(client.recv(WAIT_SECONDS))
            require(received["type"] == "error", f"a wrong config gets {received}")
    except (OSError, websockets.exceptions.WebSocketException) as error:
        raise CheckFailed(f"the WebSocket fails: {error}") from error
