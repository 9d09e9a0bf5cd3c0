"""The description of a response that is stored."""

from __future__ import annotations

import time

from svc.dialects.endpoint import Endpoint
from svc.gateway.routing.backends import Backend
from svc.gateway.stored_responses.store import expiry_of
from svc.settings import ResponsesSettings
from svc.wire.key import ApiKey
from svc.wire.stored_response import StateReference, StoredResponse


def build_stored_response(
    endpoint: Endpoint,
    request: bytes,
    response: bytes,
    *,
    key: ApiKey,
    backend: Backend,
    state: StateReference | None,
    settings: ResponsesSettings,
) -> StoredResponse:
    """Return the stored form of `response`, which `backend` made for `request`. Decodes both, so use a thread."""
    parts, now = endpoint.describe_response(request, response), time.time()
    return StoredResponse(
        id=parts.id,
        key_id=key.owner_id,
        created_at=now,
        expires_at=expiry_of(settings, now),
        previous_id=state.previous_response_id if state is not None else None,
        provider=backend.provider_name,
        account=backend.account_number,
        account_name=backend.provider.account_name,
        is_native=backend.profile.has_responses,
        body=parts.body,
        items=parts.items,
    )
