"""`/v1/admin/pipelines/…`: check and run a pipeline whose definition comes from a browser.

The calls of models go through this gateway with a short-lived key of the caller. A definition can name neither files of
the server, nor another registry, nor another gateway: `svc.pipeline.child` refuses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Final, TypeVar

import msgspec
import yaml
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from svc.app.pipeline_runs import ChildEvent, PipelineProcesses, run_if_large
from svc.client.address import with_v1_suffix
from svc.errors import InternalError, InvalidRequest, PermissionDenied, SvcError, TooLarge
from svc.gateway.endpoints.asgi_responses import authenticate_request, json_response
from svc.gateway.endpoints.disconnects import json_or_disconnected, run_while_connected
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.provider_entries import models_by_provider
from svc.keys.ephemeral import EPHEMERAL_SCOPES, NewEphemeralKey, create_claims
from svc.security import secret_from_request
from svc.settings import Settings
from svc.wire.form import parse_form
from svc.wire.key import ApiKey
from svc.wire.pipeline import (
    MAX_ONLINE_AUDIO_BYTES,
    ChildTask,
    PipelineCheck,
    PipelineCheckRequest,
    PipelineExample,
    PipelineExampleList,
    PipelineInput,
    PipelineProblem,
    PipelineRunRequest,
)

MAX_RUN_BODY_BYTES: Final = MAX_ONLINE_AUDIO_BYTES * 4 // 3 + (2 << 20)
COMMENT_INTERVAL_SECONDS: Final = 15.0
"""Interval of comments in a stream without events, so that proxies keep the connection."""
KEY_SECONDS: Final = 600
"""Lifetime of the key of a run, which is longer than a run."""
PASSED_VARIABLES: Final = (
    "SVC_REGISTRY_URL",
    "SVC_REGISTRY_KEY",
    "SVC_TRUSTED_KEYS",
    "SVC_BUNDLE_MAX_BYTES",
    "SVC_BUNDLE_MAX_RATIO",
)
"""The variables that resolving bundles needs, in addition to SVC_REGISTRY_ROOT."""

BodyT = TypeVar("BodyT")
PipelineHandler = Callable[[Request, ApiKey], Awaitable[Response]]


class PipelineApi:
    """The handlers. They raise SvcError, which the application converts to a response."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._processes = PipelineProcesses()

    def routes(self) -> list[BaseRoute]:
        """Return the routes, for keys with the scope `admin`."""
        return [
            self._route("/v1/admin/pipelines/examples", "GET", self._list_examples),
            self._route("/v1/admin/pipelines/check", "POST", self._check),
            self._route("/v1/admin/pipelines/run", "POST", self._run),
        ]

    def _route(self, path: str, method: str, handler: PipelineHandler) -> Route:
        async def handle(request: Request) -> Response:
            key = await authenticate_request(self._context, request)
            key.require_scope("admin")
            return await handler(request, key)

        return Route(path, handle, methods=[method])

    async def _list_examples(self, request: Request, key: ApiKey) -> Response:
        return json_response(await asyncio.to_thread(load_examples))

    async def _check(self, request: Request, key: ApiKey) -> Response:
        check_request = await _parse_body(request, PipelineCheckRequest)
        task = await self._task(request, check_request.yaml, None, None)
        checked = await run_while_connected(request, self._run_check(task))
        return json_or_disconnected(None) if checked is None else json_response(checked)

    async def _run_check(self, task: ChildTask) -> PipelineCheck:
        async with self._processes.start(task) as events:
            async for event in events:
                if event.type == "check":
                    return msgspec.json.decode(event.line, type=PipelineCheck)
        raise InternalError("The process of the pipeline sent no result.")

    async def _run(self, request: Request, key: ApiKey) -> Response:
        run_request = await _parse_body(request, PipelineRunRequest)
        task = await self._task(request, run_request.yaml, run_request.input, await self._make_key(request, key))
        stack = contextlib.AsyncExitStack()
        async with stack:
            events = await stack.enter_async_context(self._processes.start(task))
            first = await run_while_connected(request, _next_event(events))
            if first is None:
                return json_or_disconnected(None)
            if first.type == "invalid":
                raise _invalid_error(msgspec.json.decode(first.line, type=_InvalidEvent))
            owned = stack.pop_all()
        return _EventStream(_encode_events(first, events), owned)

    async def _task(
        self, request: Request, definition: str, given: PipelineInput | None, api_key: str | None
    ) -> ChildTask:
        settings = self._context.config.current.settings
        return ChildTask(
            yaml=definition,
            input=given,
            gateway_url=gateway_address(settings, request),
            api_key=api_key,
            models_by_provider=await asyncio.to_thread(self._known_models, settings),
            environ={
                "SVC_REGISTRY_ROOT": str(settings.registry_root),
                **{name: settings.environ[name] for name in PASSED_VARIABLES if settings.environ.get(name)},
            },
        )

    def _known_models(self, settings: Settings) -> dict[str, tuple[str, ...]]:
        """Return the models and aliases of each provider."""
        known = {name: list(models) for name, models in models_by_provider(settings).items()}
        for name, backend in self._context.router.offered_models(None).items():
            models = known.setdefault(backend.provider_name, [])
            if name not in models:
                models.append(name)
        return {name: tuple(models) for name, models in known.items()}

    async def _make_key(self, request: Request, parent: ApiKey) -> str | None:
        """Return a short-lived key of the caller, or None if the caller may use no model."""
        if parent.scopes.isdisjoint(EPHEMERAL_SCOPES):
            return None
        default_rpm = self._context.config.current.settings.limits.rpm
        claims = create_claims(NewEphemeralKey(expires_in=KEY_SECONDS), parent, default_rpm)
        secret = caller_secret(request)
        return await self._context.keyring.make_ephemeral_token(secret, parent, claims)


def caller_secret(request: Request) -> str:
    """Return the secret of the caller's key, or the token of its session."""
    secret = secret_from_request(request.method, request.headers)
    if secret is None:
        raise PermissionDenied("The request has no API key.")
    return secret


def own_address(request: Request) -> str:
    """Return the base URL of this gateway at the address at which the request arrived."""
    host, port = request.scope["server"]
    scheme = request.scope["scheme"]
    return f"{scheme}://[{host}]:{port}/v1" if ":" in host else f"{scheme}://{host}:{port}/v1"


def gateway_address(settings: Settings, request: Request) -> str:
    """Return the base URL that pipelines use: this gateway's, or `SVC_GATEWAY_URL`.

    The latter has precedence if this gateway serves no model endpoints, or has a certificate, which names a host.
    """
    configured = settings.environ.get("SVC_GATEWAY_URL")
    if configured and (settings.gateway.role == "admin" or settings.gateway.tls_cert):
        return with_v1_suffix(configured, "SVC_GATEWAY_URL")
    return own_address(request)


@functools.cache
def load_examples() -> PipelineExampleList:
    """Return the example pipelines. The first line of each is a comment: a description, a colon and a command."""
    examples = []
    folder = resources.files("svc.pipeline").joinpath("examples")
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        if file.name.endswith(".yaml"):
            text = file.read_text(encoding="utf-8")
            description = text.partition("\n")[0].removeprefix("#").partition(":")[0].strip()
            definition = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
            examples.append(
                PipelineExample(name=yaml.safe_load(text)["name"], description=description, yaml=definition)
            )
    return PipelineExampleList(data=examples)


async def _parse_body(request: Request, kind: type[BodyT]) -> BodyT:
    body = await request.body()
    if len(body) > MAX_RUN_BODY_BYTES:
        raise TooLarge(f"The body is larger than {MAX_RUN_BODY_BYTES >> 20} MiB.")
    return await run_if_large(len(body), lambda: parse_form(kind, body))


class _InvalidEvent(msgspec.Struct, frozen=True):
    problem: PipelineProblem
    param: str | None = None
    """The field of the input. None for a problem of the definition."""


def _invalid_error(event: _InvalidEvent) -> SvcError:
    problem = event.problem
    place = f"line {problem.line}, column {problem.column}: " if problem.line else ""
    message = f"{place}{problem.message}"
    if problem.code == PermissionDenied.code:
        return PermissionDenied(message)
    return InvalidRequest(message, param=event.param or "yaml")


class _EventStream(StreamingResponse):
    """Server-sent events of a process, which ends with the stream, also when the client disconnects."""

    def __init__(self, body: AsyncIterator[bytes], owned: contextlib.AsyncExitStack) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(body, 200, headers, "text/event-stream")
        self._owned = owned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._owned:
            await super().__call__(scope, receive, send)


async def _encode_events(first: ChildEvent, events: AsyncIterator[ChildEvent]) -> AsyncIterator[bytes]:
    try:
        yield _encode_event(first)
        async for event in _with_keep_alive(events):
            yield b": keep-alive\n\n" if event is None else _encode_event(event)
    except SvcError as error:
        body = {"type": "error", "error": {"code": error.code, "message": error.message}}
        yield _encode_event(ChildEvent("error", msgspec.Raw(msgspec.json.encode(body))))


async def _with_keep_alive(events: AsyncIterator[ChildEvent]) -> AsyncIterator[ChildEvent | None]:
    """Yield the events, and None after COMMENT_INTERVAL_SECONDS without one."""
    pending: asyncio.Future[ChildEvent | None] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(_next_event(events))
            done, _ = await asyncio.wait([pending], timeout=COMMENT_INTERVAL_SECONDS)
            if not done:
                yield None
                continue
            event, pending = pending.result(), None
            if event is None:
                return
            yield event
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.wait([pending])


async def _next_event(events: AsyncIterator[ChildEvent]) -> ChildEvent | None:
    return await anext(events, None)


def _encode_event(event: ChildEvent) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), bytes(event.line))
