"""TLS for client connections. New connections use a changed certificate, established ones keep theirs."""

from __future__ import annotations

import asyncio
import ssl
import time
import weakref
from pathlib import Path

from svc.errors import UsageError

MAX_HANDSHAKE_WAIT_SECONDS = 3.0
HANDSHAKE_POLL_SECONDS = 0.01
_CERTIFICATE_MARK = b"-----BEGIN CERTIFICATE-----"
_KEY_MARK = b"PRIVATE KEY-----"


class ServerContext(ssl.SSLContext):
    """A context that knows its handshakes in progress."""

    pending_handshakes: weakref.WeakSet[ssl.SSLObject]


class _HandshakeObject(ssl.SSLObject):
    """Reports to its context when its handshake starts and ends."""

    def do_handshake(self) -> None:
        assert isinstance(self.context, ServerContext)
        pending = self.context.pending_handshakes
        pending.add(self)
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            raise
        except BaseException:
            pending.discard(self)
            raise
        pending.discard(self)


class ServerTls:
    """The certificate of a server. `context` is for the listener and stays the same when the certificate changes."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self._current = context
        context.sni_callback = self._select_context

    def replace(self, context: ServerContext) -> None:
        """Use the certificate of another context for new connections."""
        context.pending_handshakes = self.context.pending_handshakes  # a handshake continues with the new context
        self._current = context

    async def wait_for_handshakes(self) -> None:
        """Wait until the handshakes in progress are complete, but not longer than MAX_HANDSHAKE_WAIT_SECONDS.

        A server that stops would otherwise lose the request that follows.
        """
        deadline = time.monotonic() + MAX_HANDSHAKE_WAIT_SECONDS
        while self.context.pending_handshakes and time.monotonic() < deadline:  # noqa: ASYNC110 a WeakSet has no event
            await asyncio.sleep(HANDSHAKE_POLL_SECONDS)

    def _select_context(self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        """Select the certificate during a handshake. OpenSSL calls this also for clients that send no server name."""
        if self._current is not context:
            connection.context = self._current


def load_server_context(cert: str, key: str) -> ServerContext:
    """Return a context with a certificate chain and its private key, two PEM files. TLS 1.2 is the minimum.

    Raises UsageError with the file that cannot be used.
    """
    cert_path, key_path = Path(cert).expanduser(), Path(key).expanduser()
    _check_file("tls_cert", cert_path, _CERTIFICATE_MARK, "certificate")
    _check_file("tls_key", key_path, _KEY_MARK, "private key")
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.pending_handshakes = weakref.WeakSet()
    context.sslobject_class = _HandshakeObject
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION

    def reject_encrypted_key() -> str:  # without it, OpenSSL would ask for the password on the terminal
        raise UsageError(f"tls_key in [gateway]: {key_path} is encrypted. Decrypt it, for example with `openssl pkey`.")

    try:
        context.load_cert_chain(cert_path, key_path, reject_encrypted_key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"tls_key in [gateway]: {key_path} is not the private key of {cert_path}.") from error
        raise UsageError(
            f"tls_cert and tls_key in [gateway]: OpenSSL cannot use {cert_path} and {key_path} "
            f"({error.reason or 'invalid PEM data'})."
        ) from error
    except OSError as error:
        raise UsageError(f"tls_cert in [gateway]: {cert_path} or {key_path} cannot be read: {error}.") from error
    return context


def _check_file(setting: str, path: Path, mark: bytes, content: str) -> None:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{setting} in [gateway]: {path} cannot be read: {error.strerror}.") from error
    if mark not in data:
        raise UsageError(f"{setting} in [gateway]: {path} contains no {content} in PEM format.")
