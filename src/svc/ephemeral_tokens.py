"""The secret of an ephemeral key: a token that any node verifies with the record of the parent key. No I/O.

    svc_ek_ <parent> . <claims> . <HMAC-SHA256 of the text before it>

The signing key derives from the digest of the parent's secret, so a token ends when its parent is revoked or rotated.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import Final

import msgspec

from svc.wire.key import ApiKey, EphemeralKey

EPHEMERAL_KEY_PREFIX: Final = "svc_ek_"
MAX_TOKEN_CHARACTERS: Final = 4096
"""Maximum characters of a token. A WebSocket's header line has room for 8190 bytes."""
ISSUED_PARENT_PREFIX: Final = "key_"
"""An issued parent is named by its id, a configured one by a reference that reveals nothing about its secret."""
_SIGNATURE_CHARACTERS: Final = 43
_TOKEN: Final = re.compile(r"svc_ek_((?:key_|c)[0-9a-f]{16})\.([A-Za-z0-9_-]{1,4096})\.([A-Za-z0-9_-]{43})")
_SIGNING_LABEL: Final = b"svc ephemeral key 1"
_REFERENCE_LABEL: Final = b"svc ephemeral parent 1"


class EphemeralClaims(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The permissions and limits of an ephemeral key. Times are Unix seconds."""

    id: str
    issued_at: int
    expires_at: int
    scopes: tuple[str, ...]
    models: tuple[str, ...] | None = None
    rpm: int = 0
    budget_usd: float | None = None
    tags: dict[str, str] = {}


_encode_claims: Final = msgspec.msgpack.Encoder().encode
_claims_decoder: Final = msgspec.msgpack.Decoder(EphemeralClaims)


def generate_ephemeral_id() -> str:
    """Return a new id, which is not secret."""
    return f"ek_{secrets.token_hex(12)}"


def derive_signing_key(parent_digest: bytes) -> bytes:
    """Return the signing key of an issued key, whose secret has 256 random bits."""
    return hmac.digest(parent_digest, _SIGNING_LABEL, "sha256")


def stretch_configured_secret(secret: str) -> tuple[str, bytes]:
    """Return the reference and the signing key of a configured key.

    A person may have chosen that secret, so scrypt (RFC 7914) makes guesses against a token slow. Takes 50 ms.
    """
    text = secret.encode("utf-8", "surrogateescape")
    stretched = hashlib.scrypt(text, salt=_SIGNING_LABEL, n=2**14, r=8, p=1, dklen=32)
    return f"c{hmac.digest(stretched, _REFERENCE_LABEL, 'sha256').hex()[:16]}", derive_signing_key(stretched)


def encode_token(parent_reference: str, signing_key: bytes, claims: EphemeralClaims) -> str:
    """Return the token. It can be longer than MAX_TOKEN_CHARACTERS: the caller must check."""
    text = f"{EPHEMERAL_KEY_PREFIX}{parent_reference}.{_encode_base64(_encode_claims(claims))}"
    return f"{text}.{_sign(text, signing_key)}"


def find_parent_reference(token: str) -> str | None:
    """Return the reference of the parent, or None if the text is not a token."""
    match = _TOKEN.fullmatch(token) if len(token) <= MAX_TOKEN_CHARACTERS else None
    return None if match is None else match[1]


def verify_token(token: str, signing_key: bytes) -> EphemeralClaims | None:
    """Return the claims of a token, or None if the signature is wrong. The caller must check the expiry."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    text = token[: -_SIGNATURE_CHARACTERS - 1]
    if not hmac.compare_digest(_sign(text, signing_key), match[3]):
        return None
    try:
        claims = match[2]
        return _claims_decoder.decode(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    except (msgspec.MsgspecError, ValueError):  # another version signed it
        return None


def build_ephemeral_key(claims: EphemeralClaims, parent: ApiKey, parent_digest: bytes) -> EphemeralKey:
    """Return the key of verified claims, narrowed to what its parent may do now."""
    return EphemeralKey(
        claims.id,
        parent,
        parent_digest,
        scopes=frozenset(claims.scopes),
        models=None if claims.models is None else frozenset(claims.models),
        own_rpm=claims.rpm,
        own_budget_usd=claims.budget_usd,
        tags=claims.tags,
        issued_at=claims.issued_at,
        expires=claims.expires_at,
    )


def _sign(text: str, signing_key: bytes) -> str:
    return _encode_base64(hmac.digest(signing_key, text.encode(), "sha256"))


def _encode_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
