"""TLS 1.3 records of a provider, sealed by hand: messages that OpenSSL does not send by itself."""

from __future__ import annotations

import hashlib
import hmac
import struct
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HANDSHAKE, DATA = 22, 23


class Records:
    """Records after a handshake with TLS_AES_256_GCM_SHA384, before the server's own object has sealed any."""

    def __init__(self, keylog: Path) -> None:
        """`keylog` is the key log of one connection of the server."""
        said = dict(line.split()[::2] for line in keylog.read_text().splitlines() if not line.startswith("#"))
        self._use(bytes.fromhex(said["SERVER_TRAFFIC_SECRET_0"]))

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._key = AESGCM(_derived(secret, b"key", 32))
        self._nonce = int.from_bytes(_derived(secret, b"iv", 12))
        self._number = 0

    def seal(self, data: bytes, kind: int = DATA) -> bytes:
        inner = data + bytes([kind])
        head = b"\x17\x03\x03" + struct.pack("!H", len(inner) + 16)
        nonce = (self._nonce ^ self._number).to_bytes(12)
        self._number += 1
        return head + self._key.encrypt(nonce, inner, head)

    def key_update(self) -> bytes:
        """A KeyUpdate with a request for the peer's own update."""
        sealed = self.seal(b"\x18\x00\x00\x01\x01", HANDSHAKE)
        self._use(_derived(self._secret, b"traffic upd", 48))
        return sealed

    def ticket(self, size: int) -> bytes:
        """A session ticket, which nothing uses."""
        body = struct.pack("!IIB1sH", 7200, 1, 1, b"n", size) + bytes(size) + b"\x00\x00"
        return self.seal(b"\x04" + len(body).to_bytes(3) + body, HANDSHAKE)


def _derived(secret: bytes, label: bytes, length: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446. One block is enough here."""
    info = struct.pack("!HB", length, 6 + len(label)) + b"tls13 " + label + b"\x00"
    return hmac.digest(secret, info + b"\x01", hashlib.sha384)[:length]
