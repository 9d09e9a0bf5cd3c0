"""Whose request it is: the key of a hot request, from memory, or after the database was asked. No sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from svc.errors import AuthenticationFailed, SvcError, TooLarge
from svc.gateway.request import Request
from svc.security import Keyring, bearer, digest_of, unsure
from svc.wire.key import Key

SCOPE: Final = "chat"


def identify(request: Request, keyring: Keyring, loaded: Callable[[Request], None]) -> None:
    """Sets `key` or `refusal`; when the database has to be asked, `waiting` is set, and `loaded` is called later.

    A refused request is read to its end, but not kept. One that is refused for its form is, for the access log,
    somebody's all the same.
    """
    values = dict(request.headers)
    secret = _secret(values)
    try:
        request.key = keyring.look(secret)
        if request.key is not None:
            request.key.require(SCOPE)
    except SvcError as error:
        request.refusal = error
        return
    try:
        request.check_form(values)
    except SvcError as error:
        request.refusal = error
    if request.key is None and secret is not None:
        request.waiting = True
        keyring.load(secret, lambda: _asked(request, secret, keyring, loaded))


def trust(request: Request, keyring: Keyring) -> None:
    """Before a large body is kept: the path takes one, and the key may be known.

    Raises AuthenticationFailed, TooLarge.
    """
    if not request.path.startswith(b"/v1/"):
        raise TooLarge("This path takes no such body.")
    keyring.look(_secret(dict(request.headers)))
    request.known = True


def key_in(request: Request, keyring: Keyring) -> Key | None:
    """The key of a request that was refused before anyone looked, as far as memory knows it: nobody is asked."""
    try:
        return keyring.look(_secret(dict(request.headers)))
    except AuthenticationFailed:
        return None


def digest_in(request: Request) -> bytes:
    """Of the key that the request came with."""
    return digest_of(_secret(dict(request.headers)) or "")


def _secret(headers: Mapping[bytes, bytes]) -> str | None:
    authorization = headers.get(b"authorization", b"").decode("latin-1")
    return bearer(authorization, headers.get(b"x-api-key", b"").decode("latin-1"))


def _asked(request: Request, secret: str, keyring: Keyring, loaded: Callable[[Request], None]) -> None:
    request.waiting = False
    try:
        request.key = keyring.look(secret)
        if request.key is None:
            raise unsure()
        request.key.require(SCOPE)
    except SvcError as error:
        request.refusal = error
        request.body.clear()
    loaded(request)
