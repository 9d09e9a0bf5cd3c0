"""The files for proxies are valid, and those of the guides. `make deploy-check` sends requests through them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from svc import settings
from svc.wire.speech import LIVE_TRANSCRIPTION_PATH
from tests.deploy.proxies import (
    CADDYFILE,
    HAPROXY,
    NGINX,
    caddy_command,
    find_program,
    haproxy_command,
    nginx_command,
)
from tests.documentation.snippets import snippets
from tests.fakes.certificate import certificate
from tests.fakes.ports import closed_port

GUIDES = Path(__file__).parent.parent / "docs" / "how-to"


@pytest.mark.parametrize(
    ("guide", "language", "file"),
    [
        ("run-behind-nginx.md", "nginx", NGINX),
        ("run-behind-caddy.md", "caddyfile", CADDYFILE),
        ("run-behind-haproxy.md", "haproxy", HAPROXY),
    ],
)
def test_guide_shows_the_file(guide: str, language: str, file: Path) -> None:
    page = (GUIDES / guide).read_text(encoding="utf-8")
    shown = [each.text.strip() for each in snippets(page) if each.language == language]
    assert shown == [file.read_text(encoding="utf-8").strip()]


def test_files_agree_with_the_settings() -> None:
    gateway = settings.load({}, config=None).gateway
    nginx, caddy, haproxy = NGINX.read_text(), CADDYFILE.read_text(), HAPROXY.read_text()
    assert re.findall(r"127\.0\.0\.1:(\d+)", nginx + caddy + haproxy) == [str(gateway.port)] * 3
    assert f"client_max_body_size {gateway.max_body:g}m;" in nginx
    assert f"max_size {gateway.max_body:g}MiB" in caddy
    assert f"proxy_read_timeout {gateway.total_timeout:g}s;" in nginx
    for seconds in re.findall(r"(?:keepalive|http-keep-alive) (\d+)s", caddy + haproxy):
        assert int(seconds) < gateway.keep_alive
    for name, expected in (("server", gateway.total_timeout), ("http-request", gateway.header_timeout)):
        assert f"timeout {name} {expected:g}s " in haproxy
    assert LIVE_TRANSCRIPTION_PATH in nginx
    assert "listen 443 ssl http2;" in nginx  # docs/how-to/serve-tls.md promises HTTP/2


@pytest.mark.skipif(find_program("nginx") is None, reason="needs nginx")
def test_nginx_accepts_the_file(tmp_path: Path) -> None:
    command = nginx_command(tmp_path, closed_port(), 3000, certificate(tmp_path, "gateway.example"))
    done = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(find_program("caddy") is None, reason="needs caddy")
def test_caddy_accepts_the_file(tmp_path: Path) -> None:
    command = caddy_command(tmp_path, closed_port(), 3000, certificate(tmp_path, "gateway.example"))
    command[1] = "validate"
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(find_program("haproxy") is None, reason="needs haproxy")
def test_haproxy_accepts_the_file(tmp_path: Path) -> None:
    command = haproxy_command(tmp_path, closed_port(), 3000, certificate(tmp_path, "gateway.example"))
    done = subprocess.run([*command, "-c"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
