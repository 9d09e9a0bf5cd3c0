"""`GET /v1/models` and `GET /v1/models/{id}`: the models and aliases that the calling key may use.

A request with the header `anthropic-version` gets the format of the Anthropic API
(platform.claude.com/docs/en/api/models-list). Any other request gets that of the OpenAI API.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.errors import InvalidRequest, PermissionDenied
from svc.gateway.endpoints.asgi_responses import authenticate_request, json_response
from svc.gateway.local_model.runtime import LocalModelStatus
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.provider_entries import LOCAL_PROVIDER
from svc.telemetry import SCOPE_API_KEY
from svc.wire.key import ApiKey

MODEL_LIST_SCOPES: Final = frozenset(("chat", "speech"))
"""A key needs one of these scopes to list models."""
ANTHROPIC_CLIENT_HEADER: Final = "anthropic-version"
"""Clients of the Anthropic API send this header with every request."""
DEFAULT_PAGE_SIZE: Final = 20
"""Models on one page in the format of the Anthropic API."""
MAX_PAGE_SIZE: Final = 1000
UNKNOWN_RELEASE_DATE: Final = "1970-01-01T00:00:00Z"
"""The Anthropic API documents the epoch for an unknown release date."""
SPEECH_KIND: Final = "speech"
"""The kind of the models that need the scope of the same name."""


class Model(msgspec.Struct, kw_only=True):
    """A model, as in the OpenAI API, with further fields."""

    id: str
    """The id of the model."""
    object: str = "model"
    """Always `model`."""
    created: int
    """Unix seconds."""
    owned_by: str
    """The provider."""
    context_window: int
    """Tokens of prompt and response together."""
    max_output_tokens: int | None
    """Maximum tokens of a response. Null means unknown."""
    use_case: str | None
    """A description."""
    kind: str | msgspec.UnsetType = msgspec.UNSET
    """The purpose of the model. A chat model does not have this field."""
    state: str | msgspec.UnsetType = msgspec.UNSET
    """Only for a model of this machine: `loaded`, `loading`, `unloaded` or `failed`. The first request loads it."""
    size_bytes: int | msgspec.UnsetType = msgspec.UNSET
    """Only for a model of this machine: the bytes of its file."""


class SpeechModel(msgspec.Struct, kw_only=True):
    """A speech model of this machine. It cannot chat."""

    id: str
    """The id of the model."""
    object: str = "model"
    """Always `model`."""
    created: int
    """Unix seconds."""
    owned_by: str = "local"
    """Always `local`."""
    use_case: str = "speech to text"
    """Always `speech to text`."""
    kind: str = "transcription"
    """Always `transcription`."""


class ModelList(msgspec.Struct):
    """A list of models."""

    data: list[Model | SpeechModel]
    object: str = "list"


class AnthropicModel(msgspec.Struct, kw_only=True):
    """A model, as in the Anthropic API, with further fields."""

    type: str = "model"
    """Always `model`."""
    id: str
    """The id of the model."""
    display_name: str
    """The same as `id`."""
    created_at: str = UNKNOWN_RELEASE_DATE
    """Always the epoch: the release date is unknown."""
    lifecycle: str = "active"
    """Always `active`."""
    max_input_tokens: int | None = None
    """Tokens of prompt and response together. Null for a speech model."""
    max_tokens: int | None = None
    """Maximum tokens of a response. Null means unknown."""
    owned_by: str
    """The provider."""
    kind: str | msgspec.UnsetType = msgspec.UNSET
    """The purpose of the model. A chat model does not have this field."""


class AnthropicModelPage(msgspec.Struct, kw_only=True):
    """One page of models, as in the Anthropic API."""

    data: list[AnthropicModel]
    has_more: bool
    """Whether there are more models in the direction of the request."""
    first_id: str | None
    """The first id of the page, for `before_id` of the previous page. Null for an empty page."""
    last_id: str | None
    """The last id of the page, for `after_id` of the next page. Null for an empty page."""


def routes(
    context: GatewayContext,
    speech_models: Callable[[ApiKey], Awaitable[list[str]]],
    local_status: Callable[[str], LocalModelStatus | None] | None = None,
) -> list[BaseRoute]:
    """Return the routes. `speech_models` returns the ids of the speech models that a key may use.

    `local_status` returns the state of a model of this machine.
    """
    created = int(time.time())

    async def list_models(request: Request) -> list[Model | SpeechModel]:
        key = await authenticate_request(context, request)
        if not key.scopes & MODEL_LIST_SCOPES:
            raise PermissionDenied("This API key lacks the scopes 'chat' and 'speech': there are no models for it.")
        offered = context.router.offered_models(key)
        gateway_models = [
            _model_object(name, backend, created, _find_status(backend, local_status))
            for name, backend in offered.items()
            if backend.kind != SPEECH_KIND or SPEECH_KIND in key.scopes
        ]
        return [*gateway_models, *(SpeechModel(id=name, created=created) for name in await speech_models(key))]

    async def get_models(request: Request) -> Response:
        models = await list_models(request)
        if ANTHROPIC_CLIENT_HEADER in request.headers:
            return json_response(_anthropic_page(models, request.query_params))
        return json_response(ModelList(models))

    async def get_model(request: Request) -> Response:
        name = request.path_params["id"]
        for entry in await list_models(request):
            if entry.id == name:
                is_anthropic_client = ANTHROPIC_CLIENT_HEADER in request.headers
                return json_response(_anthropic_model(entry) if is_anthropic_client else entry)
        raise context.router.model_not_found_error(name, request.scope[SCOPE_API_KEY])

    return [
        Route("/v1/models", get_models, methods=["GET"]),
        Route("/v1/models/{id:path}", get_model, methods=["GET"]),
    ]


def _find_status(
    backend: Backend, local_status: Callable[[str], LocalModelStatus | None] | None
) -> LocalModelStatus | None:
    if local_status is None or backend.provider_name != LOCAL_PROVIDER:
        return None
    return local_status(backend.model_id)


def _model_object(name: str, backend: Backend, created: int, status: LocalModelStatus | None) -> Model:
    """Return the entry of a model. `name` is its id or an alias."""
    return Model(
        id=name,
        created=created,
        owned_by=backend.provider_name,
        context_window=backend.context_window,
        max_output_tokens=backend.profile.max_output_tokens,
        use_case=backend.model.use_case,
        kind=msgspec.UNSET if backend.kind == "chat" else backend.kind,
        state=status.state if status is not None else msgspec.UNSET,
        size_bytes=status.size_bytes if status is not None else msgspec.UNSET,
    )


def _anthropic_model(model: Model | SpeechModel) -> AnthropicModel:
    converted = AnthropicModel(id=model.id, display_name=model.id, owned_by=model.owned_by, kind=model.kind)
    if isinstance(model, Model):
        converted.max_input_tokens, converted.max_tokens = model.context_window, model.max_output_tokens
    return converted


def _anthropic_page(models: list[Model | SpeechModel], query: QueryParams) -> AnthropicModelPage:
    """Return the page after `after_id`, or before `before_id`. Raises InvalidRequest with the parameter."""
    limit = _parse_limit(query.get("limit"))
    after_id, before_id = query.get("after_id"), query.get("before_id")
    if after_id is not None and before_id is not None:
        raise InvalidRequest("`after_id` and `before_id` exclude each other.", param="before_id")
    if before_id is not None:
        end = _find_cursor(models, before_id, "before_id")
        start = max(0, end - limit)
        has_more = start > 0
    else:
        start = _find_cursor(models, after_id, "after_id") + 1 if after_id is not None else 0
        end = min(len(models), start + limit)
        has_more = end < len(models)
    data = [_anthropic_model(model) for model in models[start:end]]
    first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
    return AnthropicModelPage(data=data, has_more=has_more, first_id=first_id, last_id=last_id)


def _parse_limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_PAGE_SIZE
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PAGE_SIZE))
    if not is_number or not 1 <= int(text) <= MAX_PAGE_SIZE:
        raise InvalidRequest(f"`limit` must be an integer from 1 to {MAX_PAGE_SIZE}.", param="limit")
    return int(text)


def _find_cursor(models: list[Model | SpeechModel], model_id: str, parameter: str) -> int:
    """Return the index of a model. Raises InvalidRequest if it is not listed."""
    for index, model in enumerate(models):
        if model.id == model_id:
            return index
    raise InvalidRequest(f"`{parameter}` must be the id of a listed model.", param=parameter)
