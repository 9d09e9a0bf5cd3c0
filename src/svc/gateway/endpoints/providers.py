"""`/v1/admin/providers`: lists all providers, those without a key too, and tests one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.dialects.endpoint import Endpoint
from svc.errors import InvalidRequest, NotFound, RateLimited
from svc.gateway.endpoints.asgi_responses import authenticate_request, json_response, read_body
from svc.gateway.endpoints.metrics import MetricsPublisher
from svc.gateway.endpoints.provider_states import ProviderList, show_provider, show_unconfigured
from svc.gateway.observability.access_log import encode_client_field
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.proxy.provider_test import TEST_REQUESTS, ProviderTest
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.model_errors import quote_name
from svc.gateway.routing.unconfigured_providers import unconfigured_providers
from svc.wire.form import parse_form
from svc.wire.key import ApiKey
from svc.wire.request_identity import SCOPE_IDENTITY, RequestIdentity

MAX_TESTS_PER_MINUTE: Final = 10
"""Tests of providers that each worker sends."""


class ProviderTestRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model and the account of a test."""

    model: str | None = None
    """The model. Null means the first one that can be tested."""
    account: int | None = None
    """The number of the account, from 1. Null means the first."""


class ProviderTestResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a test."""

    object: str = "provider_test"
    """Always `provider_test`."""
    ok: bool
    """Whether the provider responded as expected."""
    provider: str
    """The provider."""
    model: str
    """The model."""
    account: int | None
    """The number of the account. Null if the provider has one."""
    latency_ms: float
    """Milliseconds until the end of the response or the failure."""
    http_status: int | None
    """The status of the provider's response. Null if there was none."""
    code: str | None
    """The code of the error. Null if the test succeeded."""
    message: str | None
    """The error, for people."""
    prompt_tokens: int | None
    """The tokens of the request, from the provider."""
    completion_tokens: int | None
    """The tokens of the response, from the provider."""
    cost_usd: float | None
    """The cost in USD. Null if it is unknown."""
    request_id: str
    """The id of the ledger entry."""


class ProviderApi:
    """The handlers, for keys with the scope `admin`."""

    def __init__(
        self, context: GatewayContext, metrics_publisher: MetricsPublisher, endpoints: Iterable[Endpoint]
    ) -> None:
        self._context = context
        self._metrics_publisher = metrics_publisher
        self._endpoints: dict[str, Endpoint] = {}
        for endpoint in endpoints:
            if endpoint.path in ("/v1/chat/completions", "/v1/embeddings"):
                self._endpoints[endpoint.model_kind] = endpoint
        self._test_times: deque[float] = deque(maxlen=MAX_TESTS_PER_MINUTE)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/v1/admin/providers", self._list, methods=["GET"]),
            Route("/v1/admin/providers/{name}/test", self._test, methods=["POST"]),
        ]

    async def _authenticate(self, request: Request) -> ApiKey:
        key = await authenticate_request(self._context, request)
        key.require_scope("admin")
        return key

    async def _list(self, request: Request) -> Response:
        await self._authenticate(request)
        metrics = await self._metrics_publisher.aggregate()
        prices = self._context.ledger.prices
        data = [show_provider(backends, metrics, prices) for backends in self._backends_by_provider().values()]
        settings = self._context.config.current.settings
        missing = unconfigured_providers(settings, {state.name for state in data})
        data += [show_unconfigured(provider, metrics) for provider in missing]
        return json_response(ProviderList(data=data))

    def _backends_by_provider(self) -> dict[str, list[Backend]]:
        found: dict[str, list[Backend]] = {}
        for backend in self._context.router.backends():
            found.setdefault(backend.provider_name, []).append(backend)
        return found

    async def _test(self, request: Request) -> Response:
        key = await self._authenticate(request)
        test_request = parse_form(ProviderTestRequest, await read_body(request) or b"{}")
        backend = self._select_backend(request.path_params["name"], test_request)
        self._check_rate()
        identity: RequestIdentity = request.scope[SCOPE_IDENTITY]
        test = ProviderTest(self._context, backend, key, identity.request_id)
        await test.run(self._endpoints[backend.kind], encode_client_field(identity.client_address))
        usage = test.bill.usage
        return json_response(
            ProviderTestResult(
                ok=test.error is None,
                provider=backend.provider_name,
                model=backend.model_id,
                account=backend.account_number or None,
                latency_ms=round(test.duration_ms, 3),
                http_status=test.http_status or None,
                code=test.error.code if test.error else None,
                message=test.error.message if test.error else None,
                prompt_tokens=usage.prompt_tokens if usage else None,
                completion_tokens=usage.completion_tokens if usage else None,
                cost_usd=test.bill.cost_usd,
                request_id=identity.request_id,
            )
        )

    def _select_backend(self, name: str, test_request: ProviderTestRequest) -> Backend:
        """Return the backend to test. Raises NotFound and InvalidRequest."""
        backends = self._backends_by_provider().get(name)
        if backends is None:
            settings = self._context.config.current.settings
            for provider in unconfigured_providers(settings, ()):
                if provider.name == name:
                    raise InvalidRequest(f"The provider {name} has no API key: set {' or '.join(provider.variables)}.")
            raise NotFound(f"There is no provider {quote_name(name)}.", param="name")
        if test_request.model is None:
            backend = next((each for each in backends if each.kind in TEST_REQUESTS), None)
        else:
            backend = next((each for each in backends if each.model_id == test_request.model), None)
            if backend is None:
                raise InvalidRequest(
                    f"The provider {name} has no model {quote_name(test_request.model)}.", param="model"
                )
        if backend is None or backend.kind not in TEST_REQUESTS:
            raise InvalidRequest("Only models for chats and embeddings can be tested.", param="model")
        accounts = backend.account_backends or (backend,)
        if test_request.account is not None and not 1 <= test_request.account <= len(accounts):
            raise InvalidRequest(f"account must be from 1 to {len(accounts)}.", param="account")
        return accounts[(test_request.account or 1) - 1]

    def _check_rate(self) -> None:
        now = time.monotonic()
        if len(self._test_times) == MAX_TESTS_PER_MINUTE and now - self._test_times[0] < 60:
            raise RateLimited(
                f"There were {MAX_TESTS_PER_MINUTE} tests in the last minute.",
                retry_after=60 - (now - self._test_times[0]),
            )
        self._test_times.append(now)
