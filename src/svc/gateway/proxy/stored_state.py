"""Prepares a request that refers to earlier responses: it gets their items, or goes to the provider that made them.

the provider made the response and knows it ──> the request unchanged, to this provider and account only
the gateway has stored it                   ──> its items, to any backend of the model
unknown, with a native backend              ──> the request unchanged, to the first provider only
"""

from __future__ import annotations

from collections.abc import Callable

from svc.dialects.base import RequestBody
from svc.dialects.token_estimate import estimate_prompt_tokens
from svc.errors import NotFound, SvcError
from svc.gateway.routing.backends import Backend
from svc.gateway.stored_responses.store import FoundState, ResponseStore
from svc.wire.key import ApiKey
from svc.wire.stored_response import StateReference, StoredResponse

Backends = tuple[Backend, ...]
ResolvedCallback = Callable[[Backends | SvcError], None]


def resolve_state(
    store: ResponseStore | None,
    reference: StateReference,
    body: RequestBody,
    key: ApiKey,
    backends: Backends,
    on_resolved: ResolvedCallback,
) -> None:
    """Call `on_resolved` with the backends that can serve the request, or with an error.

    `store` is None if the gateway keeps no responses. May set `body.earlier_items`.
    """
    if store is None or reference.conversation:
        # Without a native backend, the decoder of the request rejects the field with a hint.
        on_resolved(_pin_first(backends) if backends[0].profile.has_responses else backends)
        return

    def on_found(found: FoundState | SvcError) -> None:
        on_resolved(found if isinstance(found, SvcError) else _apply_state(found, reference, body, backends))

    store.find(key.owner_id, reference, on_found)


def _apply_state(
    found: FoundState, reference: StateReference, body: RequestBody, backends: Backends
) -> Backends | SvcError:
    previous = found.previous
    if previous is not None and previous.is_native and (pinned := _pin_maker(previous, backends)):
        return pinned
    if found.is_complete:
        body.earlier_items = found.items
        items = (*found.items.conversation, *found.items.by_id.values())
        body.earlier_tokens = sum(estimate_prompt_tokens(item.encode()) for item in items)
        return backends
    if previous is None and backends[0].profile.has_responses:
        return _pin_first(backends)
    return _not_found_error(reference, found)


def _pin_first(backends: Backends) -> Backends:
    first = backends[0]
    return first.account_backends[:1] or (first,)


def _pin_maker(response: StoredResponse, backends: Backends) -> Backends:
    """Return the account that made a response. Empty if it is not among the backends."""
    for backend in backends:
        if backend.provider_name == response.provider and backend.profile.has_responses:
            accounts = backend.account_backends
            if response.account and len(accounts) >= response.account:
                return (accounts[response.account - 1],)
            return (backend,)
    return ()


def _not_found_error(reference: StateReference, found: FoundState) -> NotFound:
    if reference.previous_response_id is not None and not found.items.conversation:
        message = "There is no such response for this key, or it, or one that it continues, was deleted or has expired."
        return NotFound(message, param="previous_response_id")
    return NotFound("`input` refers to an item that this key has not stored.", param="input")
