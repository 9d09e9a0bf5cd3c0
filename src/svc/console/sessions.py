"""Login and logout of browsers: `/console/session` and the link that `svc up` prints."""

from __future__ import annotations

import hmac
import secrets
import time
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from svc.console.assets import CONSOLE_PATH, SECURITY_HEADERS
from svc.console.login_limiter import AttemptCounter, LoginLimiter
from svc.console.trusted_proxies import TrustedProxies
from svc.errors import AuthenticationFailed, InvalidRequest, NotFound, TooLarge
from svc.security import MAX_SECRET_CHARACTERS, Keyring, secret_from_request
from svc.session_tokens import SESSION_PREFIX, SESSION_SECONDS, check_origin, csrf_token, session_cookie_name
from svc.wire.key import ApiKey, EphemeralKey

MAX_LOGIN_BYTES: Final = 8 * 1024
LINK_SECONDS: Final = 600.0
"""Lifetime of a link of `svc console`."""
MAX_LINKS: Final = 16
"""Maximum unused links."""
_NO_STORE: Final = {"cache-control": "no-store"}


class LoginRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /console/session`."""

    key: str
    """An API key."""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the console."""

    key_id: str
    """The id of the key that logged in."""
    key_name: str
    """The name of the key."""
    scopes: list[str]
    """The scopes of the key."""
    models: list[str] | None
    """The models that the key may use. Null means all."""
    csrf_token: str
    """The value of the header `x-csrf-token`, which each change needs."""


class LoginLinks:
    """Links that log in once, with the console's own key. `svc up` prints the first one, `svc console` another."""

    def __init__(self, console_key: str) -> None:
        self._console_key = console_key
        self._expiry_by_token: dict[str, float] = {}

    def create(self, lifetime_seconds: float = LINK_SECONDS) -> str:
        """Return the path of a new link. The oldest link ends if there are too many."""
        token = secrets.token_urlsafe(32)
        self._expiry_by_token[token] = time.monotonic() + lifetime_seconds
        if len(self._expiry_by_token) > MAX_LINKS:
            del self._expiry_by_token[next(iter(self._expiry_by_token))]
        return f"{CONSOLE_PATH}login?token={token}"

    def use(self, token: str) -> str | None:
        """Return the console's key if the token is right and unused. It cannot be used again."""
        given = token.encode("utf-8", "replace")
        for known, expires_at in list(self._expiry_by_token.items()):
            if hmac.compare_digest(known.encode(), given):
                del self._expiry_by_token[known]
                return self._console_key if time.monotonic() < expires_at else None
        return None


class LinkInfo(msgspec.Struct, frozen=True):
    """A link that logs in once."""

    path: str
    """The path of the link at this gateway."""
    expires_in: float
    """Seconds."""


class SessionApi:
    """The routes of sessions."""

    def __init__(
        self,
        keyring: Keyring,
        trusted_proxies: TrustedProxies,
        login_links: LoginLinks | None,
        count_attempt: AttemptCounter,
    ) -> None:
        self._keyring = keyring
        self._trusted_proxies = trusted_proxies
        self._login_links = login_links
        self._limiter = LoginLimiter(count_attempt)

    def routes(self) -> list[BaseRoute]:
        """Return the routes. Handlers raise SvcError, which the application converts to a response."""
        return [
            Route(f"{CONSOLE_PATH}session", self._handle_session, methods=["GET", "POST", "DELETE"]),
            Route(f"{CONSOLE_PATH}login", self._open_link, methods=["GET"]),
            Route(f"{CONSOLE_PATH}links", self._create_link, methods=["POST"]),
        ]

    async def _handle_session(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._log_in(request)
        if request.method == "DELETE":
            return await self._log_out(request)
        secret = secret_from_request("GET", request.headers)
        if secret is None or not secret.startswith(SESSION_PREFIX):
            raise AuthenticationFailed("There is no session. Log in with an API key.")
        return _session_response(await self._keyring.authenticate(secret), secret)

    async def _log_in(self, request: Request) -> Response:
        await self._limiter.record_attempt(self._client_address(request))
        _check_same_origin(request)
        body = await _read_login(request)
        try:
            login = msgspec.json.decode(body, type=LoginRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise InvalidRequest('The body must be {"key": "<API_KEY>"}.', param="key") from None
        secret = login.key.strip()
        if not secret or len(secret) > MAX_SECRET_CHARACTERS or secret.startswith(SESSION_PREFIX):
            raise AuthenticationFailed("This is not an API key.")
        key = await self._keyring.authenticate(secret)
        if isinstance(key, EphemeralKey):
            raise AuthenticationFailed("An ephemeral key cannot log in. Use the key that made it.")
        session = await self._keyring.make_session(secret, key)
        return self._set_cookie(request, _session_response(key, session), session)

    async def _log_out(self, request: Request) -> Response:
        secret = secret_from_request(request.method, request.headers)
        if secret is not None:
            await self._keyring.authenticate(secret)
        response = Response(status_code=204, headers=_NO_STORE)
        name = session_cookie_name(request.headers.get("host"))
        response.delete_cookie(name, path="/", httponly=True, samesite="strict")
        return response

    async def _open_link(self, request: Request) -> Response:
        """Log in with the token of the link. Without a token, this is the page that asks for a key."""
        token = request.query_params.get("token")
        if token is None:
            return RedirectResponse(f"{CONSOLE_PATH}overview", 303, _NO_STORE)
        await self._limiter.record_attempt(self._client_address(request))
        console_key = self._login_links.use(token) if self._login_links is not None else None
        if console_key is None:
            return RedirectResponse(f"{CONSOLE_PATH}overview?login=used", 303, {**SECURITY_HEADERS, **_NO_STORE})
        key = await self._keyring.authenticate(console_key)
        session = await self._keyring.make_session(console_key, key)
        response = RedirectResponse(f"{CONSOLE_PATH}overview", 303, {**SECURITY_HEADERS, **_NO_STORE})
        return self._set_cookie(request, response, session)

    async def _create_link(self, request: Request) -> Response:
        secret = secret_from_request(request.method, request.headers)
        (await self._keyring.authenticate(secret)).require_scope("admin")
        if self._login_links is None:
            raise NotFound("Only `svc up` has login links. Log in with an API key.")
        link = LinkInfo(self._login_links.create(), LINK_SECONDS)
        return Response(msgspec.json.encode(link), 201, _NO_STORE, "application/json")

    def _set_cookie(self, request: Request, response: Response, session: str) -> Response:
        response.set_cookie(
            session_cookie_name(request.headers.get("host")),
            session,
            max_age=SESSION_SECONDS,
            path="/",
            secure=request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "").lower() == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    def _client_address(self, request: Request) -> str:
        peer = request.client.host if request.client is not None else ""
        return self._trusted_proxies.client_address(peer, ",".join(request.headers.getlist("x-forwarded-for")))


def _check_same_origin(request: Request) -> None:
    """Raise PermissionDenied for a form of another page, which could log the browser in with a key of its author."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequest("The content type must be application/json.")
    if (origin := request.headers.get("origin")) is not None:
        check_origin(origin, request.headers.get("host"))


async def _read_login(request: Request) -> bytes:
    body = await request.body()
    if len(body) > MAX_LOGIN_BYTES:
        raise TooLarge(f"The body is larger than {MAX_LOGIN_BYTES >> 10} KiB.")
    return body


def _session_response(key: ApiKey, session: str) -> Response:
    info = SessionInfo(
        key_id=key.id,
        key_name=key.name,
        scopes=sorted(key.scopes),
        models=None if key.models is None else sorted(key.models),
        csrf_token=csrf_token(session),
    )
    return Response(msgspec.json.encode(info), 200, _NO_STORE, "application/json")
