"""`GET /v1/models` and `GET /v1/models/{id}`: the models that the calling key may use."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.errors import PermissionDenied
from svc.gateway.endpoints.responses import authenticate_request, json_response
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.backends import Backend
from svc.telemetry import SCOPE_API_KEY
from svc.wire.key import ApiKey

MODEL_LIST_SCOPES: Final = frozenset(("chat", "speech"))
"""A key needs one of these scopes to list models."""


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


class ModelList(msgspec.Struct):
    """A list of models."""

    data: list[Model | SpeechModel]
    object: str = "list"


def routes(context: GatewayContext, speech_models: Callable[[ApiKey], Awaitable[list[str]]]) -> list[BaseRoute]:
    """Return the routes. `speech_models` returns the ids of the speech models that a key may use."""
    created = int(time.time())

    async def list_models(request: Request) -> list[Model | SpeechModel]:
        key = await authenticate_request(context, request)
        if not key.scopes & MODEL_LIST_SCOPES:
            raise PermissionDenied("This API key lacks the scopes 'chat' and 'speech': there are no models for it.")
        gateway_models = [
            _model_object(backend, created)
            for backend in context.router.first_backends()
            if key.may_use(backend.model_id)
        ]
        return [*gateway_models, *(SpeechModel(id=name, created=created) for name in await speech_models(key))]

    async def get_models(request: Request) -> Response:
        return json_response(ModelList(await list_models(request)))

    async def get_model(request: Request) -> Response:
        name = request.path_params["id"]
        for entry in await list_models(request):
            if entry.id == name:
                return json_response(entry)
        raise context.router.model_not_found_error(name, request.scope[SCOPE_API_KEY])

    return [
        Route("/v1/models", get_models, methods=["GET"]),
        Route("/v1/models/{id:path}", get_model, methods=["GET"]),
    ]


def _model_object(backend: Backend, created: int) -> Model:
    return Model(
        id=backend.model_id,
        created=created,
        owned_by=backend.provider_name,
        context_window=backend.context_window,
        max_output_tokens=backend.profile.max_output_tokens,
        use_case=backend.model.use_case,
        kind=msgspec.UNSET if backend.kind == "chat" else backend.kind,
    )
