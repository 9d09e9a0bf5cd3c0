"""Certificates of private authorities are accepted in each version of Python, though 3.13 has stricter defaults."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from svc.client.blocking_transport import http_client_options
from svc.gateway.upstream.pool import default_ssl_context
from svc.outbound_http import create_tls_context
from svc.stores.redis import connection
from svc.stores.redis.address import parse_redis_url
from svc.tls_context import create_client_context
from tests.fakes.certificate import context, private_authority


def shake_hands(client_context: ssl.SSLContext, server_context: ssl.SSLContext) -> None:
    """Do a handshake for localhost without a network. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    pending = [client, server]
    while pending:
        side = pending.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pending.append(side)


def for_sdk(_: Path) -> ssl.SSLContext:
    made = http_client_options("https://localhost/v1", direct=False)["verify"]
    assert isinstance(made, ssl.SSLContext)
    return made


CONTEXTS: dict[str, Callable[[Path], ssl.SSLContext]] = {
    "collector of spans": lambda file: create_client_context(str(file)),
    "live session": lambda _: create_client_context(),
    "provider": lambda _: default_ssl_context(),
    "Redis": lambda file: connection.create_tls_context(parse_redis_url(f"rediss://localhost?ssl_ca_certs={file}")),
    "registry": lambda _: create_tls_context(),
    "SDK": for_sdk,
}


@pytest.mark.parametrize("peer", CONTEXTS)
def test_tls_context_private_authority_without_optional_extensions_is_accepted(
    peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, issued = private_authority(tmp_path, "localhost")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    shake_hands(CONTEXTS[peer](authority), context(issued))


@pytest.mark.parametrize("peer", CONTEXTS)
def test_tls_context_unknown_authority_and_other_host_are_rejected(
    peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    authority, issued_for_other = private_authority(tmp_path, "other.example")
    _, issued_by_other = private_authority(tmp_path / "other", "localhost")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    for issued in (issued_by_other, issued_for_other):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(CONTEXTS[peer](authority), context(issued))
