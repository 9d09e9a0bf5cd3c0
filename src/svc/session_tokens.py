"""The cookie of a browser session: a token that any node verifies with the record of the key that logged in. No I/O.

    svc_cs_ <key reference> . <expiry> . <nonce> . <HMAC-SHA256 of the text before it>

The signing key derives from the digest of the key's secret, so a session ends when its key is revoked or rotated.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
from typing import Final

from svc.errors import PermissionDenied

SESSION_PREFIX: Final = "svc_cs_"
SESSION_COOKIE: Final = "svc_session"
SESSION_SECONDS: Final = 12 * 3600
"""Lifetime of a session. It is not prolonged."""
CSRF_HEADER: Final = "x-csrf-token"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing, and need no CSRF token (RFC 9110, section 9.2.1)."""
_SESSION_TOKEN: Final = re.compile(
    r"svc_cs_((?:key_|c)[0-9a-f]{16})\.([0-9]{1,12})\.([A-Za-z0-9_-]{22})\.([A-Za-z0-9_-]{43})"
)
_PORT: Final = re.compile(r":([0-9]{1,5})$")
_SESSION_LABEL: Final = b"svc console session 1"
_CSRF_LABEL: Final = b"svc console csrf 1"
_SESSION_SIGNATURE_CHARACTERS: Final = 43


def encode_session(key_reference: str, signing_key: bytes, expires_at: int) -> str:
    """Return the token of a new session. `expires_at` is Unix seconds."""
    text = f"{SESSION_PREFIX}{key_reference}.{expires_at}.{secrets.token_urlsafe(16)}"
    return f"{text}.{_sign(text, signing_key)}"


def find_session_key_reference(token: str) -> str | None:
    """Return the reference of the key that logged in, or None if the text is not a token."""
    match = _SESSION_TOKEN.fullmatch(token)
    return None if match is None else match[1]


def verify_session(token: str, signing_key: bytes) -> int | None:
    """Return the expiry in Unix seconds, or None if the signature is wrong. The caller must check the expiry."""
    match = _SESSION_TOKEN.fullmatch(token)
    if match is None or not hmac.compare_digest(
        _sign(token[: -_SESSION_SIGNATURE_CHARACTERS - 1], signing_key), match[4]
    ):
        return None
    return int(match[2])


def csrf_token(session: str) -> str:
    """Return the CSRF token of a session. A page of another origin cannot compute or read it."""
    return _encode_base64(hmac.digest(session.encode(), _CSRF_LABEL, "sha256"))


def session_cookie_name(host: str | None) -> str:
    """Return the name of the cookie. It has the port of `Host`: browsers send cookies to all ports of a host."""
    port = _PORT.search(host or "")
    return f"{SESSION_COOKIE}_{port[1]}" if port is not None else SESSION_COOKIE


def session_from_cookies(cookies: str, host: str | None) -> str | None:
    """Return the session token in the Cookie header (RFC 6265), or None."""
    cookie_name = session_cookie_name(host)
    for pair in cookies.split(";"):
        name, _, value = pair.strip().partition("=")
        if name == cookie_name and value.startswith(SESSION_PREFIX):
            return value
    return None


def check_csrf(session: str, method: str, token: str | None) -> None:
    """Raise PermissionDenied for a change whose CSRF token is missing or wrong.

    Reference: https://cheatsheetseries.owasp.org/cheatsheets/Cross-Site_Request_Forgery_Prevention_Cheat_Sheet.html
    """
    if method not in SAFE_METHODS and not hmac.compare_digest((token or "").encode(), csrf_token(session).encode()):
        raise PermissionDenied(
            f"A change with a session cookie needs the header {CSRF_HEADER}, whose value GET /console/session returns."
        )


def check_origin(origin: str | None, host: str | None) -> None:
    """Raise PermissionDenied for a request of a page from another origin. Its WebSockets have the cookie as well."""
    if origin is None or origin.partition("://")[2] != host:
        raise PermissionDenied("This request must come from the console's own address.")


def _sign(text: str, signing_key: bytes) -> str:
    session_key = hmac.digest(signing_key, _SESSION_LABEL, "sha256")
    return _encode_base64(hmac.digest(session_key, text.encode(), "sha256"))


def _encode_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
