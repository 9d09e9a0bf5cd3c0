"""The tokens of browser sessions: signatures, the cookie header, CSRF tokens and origins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import PermissionDenied
from svc.session_tokens import (
    check_csrf,
    check_origin,
    csrf_token,
    encode_session,
    find_session_key_reference,
    session_cookie_name,
    session_from_cookies,
    verify_session,
)

REFERENCE = "key_0123456789abcdef"
SIGNING_KEY = b"k" * 32
EXPIRES_AT = 1_800_000_000
TOKEN = encode_session(REFERENCE, SIGNING_KEY, EXPIRES_AT)


def test_session_names_its_key_and_expiry() -> None:
    assert find_session_key_reference(TOKEN) == REFERENCE
    assert verify_session(TOKEN, SIGNING_KEY) == EXPIRES_AT


def test_two_sessions_of_a_key_differ() -> None:
    assert encode_session(REFERENCE, SIGNING_KEY, EXPIRES_AT) != TOKEN


def test_session_of_another_key_is_not_verified() -> None:
    assert verify_session(TOKEN, b"x" * 32) is None


@given(st.integers(0, len(TOKEN) - 1), st.sampled_from("Aa0._-\n\x00é"))
def test_changed_session_is_not_verified(position: int, character: str) -> None:
    changed = TOKEN[:position] + character + TOKEN[position + 1 :]
    assert verify_session(changed, SIGNING_KEY) == (EXPIRES_AT if changed == TOKEN else None)


@pytest.mark.parametrize("token", ["", "svc_cs_", TOKEN[:-1], TOKEN + "a", TOKEN + "\n", "svc_ek_" + TOKEN[7:]])
def test_text_that_is_no_session_has_no_key(token: str) -> None:
    assert verify_session(token, SIGNING_KEY) is None


@pytest.mark.parametrize(
    ("cookies", "session"),
    [
        (f"svc_session={TOKEN}", TOKEN),
        (f"a=b; svc_session={TOKEN}; c=d", TOKEN),
        (f"a=b;svc_session={TOKEN}", TOKEN),
        ("svc_session=; a", None),
        ("svc_session=other", None),
        (f"xsvc_session={TOKEN}", None),
        ("", None),
        (";;=;", None),
    ],
)
def test_cookie_header_yields_the_session(cookies: str, session: str | None) -> None:
    assert session_from_cookies(cookies, "host") == session


def test_gateways_on_two_ports_have_cookies_of_their_own() -> None:
    cookies = f"svc_session_3000={TOKEN}; svc_session=svc_cs_other"
    assert session_cookie_name("127.0.0.1:3000") == "svc_session_3000"
    assert session_cookie_name("[::1]:3000") == "svc_session_3000"
    assert session_from_cookies(cookies, "127.0.0.1:3000") == TOKEN
    assert session_from_cookies(cookies, "127.0.0.1:3001") is None
    assert session_from_cookies(cookies, "gateway.example") == "svc_cs_other"
    assert session_from_cookies(cookies, None) == "svc_cs_other"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "post", "UNKNOWN"])
def test_change_needs_the_csrf_token(method: str) -> None:
    check_csrf(TOKEN, method, csrf_token(TOKEN))
    for wrong in (None, "", "é", csrf_token(TOKEN)[:-1], csrf_token(TOKEN + "x")):
        with pytest.raises(PermissionDenied, match="x-csrf-token"):
            check_csrf(TOKEN, method, wrong)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reading_needs_no_csrf_token(method: str) -> None:
    check_csrf(TOKEN, method, None)


@pytest.mark.parametrize("origin", [None, "", "null", "http://other:3000", "http://host", "host:3000"])
def test_websocket_of_another_origin_is_rejected(origin: str | None) -> None:
    check_origin("http://host:3000", "host:3000")
    check_origin("https://host:3000", "host:3000")
    with pytest.raises(PermissionDenied):
        check_origin(origin, "host:3000")
