"""Prepares a request that refers to earlier responses: it gets their items, or goes to the provider that made them.

the provider made the response and knows it ──> the request unchanged, to this provider and account only
the gateway has stored it                   ──> its items, to any backend of the model
only the origin is remembered               ──> the request unchanged, to this provider and account only
deleted, expired, or made by another key    ──> NotFound: a provider's account does not tell the keys apart
unknown, with a native backend              ──> the request unchanged, to the first provider only
"""

from __future__ import annotations

from collections.abc import Callable

from svc.dialects.base import RequestBody
from svc.dialects.token_estimate import estimate_prompt_tokens
from svc.errors import NotFound, SvcError
from svc.gateway.routing.backends import Backend
from svc.gateway.stored_responses.origins import FoundOrigin, ResponseOrigins
from svc.gateway.stored_responses.store import FoundState, ResponseStore
from svc.wire.key import ApiKey
from svc.wire.stored_response import StateReference, StoredResponse

Backends = tuple[Backend, ...]
ResolvedCallback = Callable[[Backends | SvcError], None]


def resolve_state(
    store: ResponseStore | None,
    origins: ResponseOrigins,
    reference: StateReference,
    body: RequestBody,
    key: ApiKey,
    backends: Backends,
    on_resolved: ResolvedCallback,
) -> None:
    """Call `on_resolved` with the backends that can serve the request, or with an error.

    `store` is None if the gateway keeps no responses. May set `body.earlier_items`.
    """

    is_native = backends[0].profile.has_responses

    def pin_origin(on_unknown: Callable[[], None]) -> None:
        def on_origin(origin: FoundOrigin) -> None:
            if origin == "another_key":
                on_resolved(_previous_not_found_error())
            elif origin is not None and (pinned := _pin_account(origin.provider, origin.account_name, 0, backends)):
                on_resolved(pinned)
            else:
                on_unknown()

        if reference.previous_response_id is None:
            on_unknown()
        else:
            origins.find(key.owner_id, reference.previous_response_id, on_origin)

    if store is None or (reference.has_conversation and not is_native):
        # Without a native backend, the decoder of the request rejects the field with a hint.
        pin_origin(lambda: on_resolved(_pin_first(backends) if is_native else backends))
        return

    def on_found(found: FoundState | SvcError) -> None:
        if isinstance(found, SvcError):
            on_resolved(found)
        elif found.is_denied:
            on_resolved(_not_found_error(reference, found))
        elif reference.has_conversation:
            on_resolved(_pin_first(backends))
        elif found.previous is None and not found.is_complete:
            pin_origin(lambda: on_resolved(_apply_state(found, reference, body, backends)))
        else:
            on_resolved(_apply_state(found, reference, body, backends))

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
    return _pin_account(response.provider, response.account_name, response.account, backends)


def _pin_account(provider: str, account_name: str, number: int, backends: Backends) -> Backends:
    """Return the account of a provider. Rows of older versions have only its number, from 1."""
    for backend in backends:
        if backend.provider_name == provider and backend.profile.has_responses:
            accounts = backend.account_backends
            named = [account for account in accounts if account.provider.account_name == account_name]
            if named:
                return (named[0],)
            if not account_name and 0 < number <= len(accounts):
                return (accounts[number - 1],)
            return (backend,)
    return ()


def _not_found_error(reference: StateReference, found: FoundState) -> NotFound:
    if reference.previous_response_id is not None and not found.items.conversation:
        return _previous_not_found_error()
    if all(item_id in found.items.by_id for item_id in reference.item_ids):
        message = "A response that this one continues refers to an item that this key has not stored."
        return NotFound(message, param="previous_response_id")
    return NotFound("`input` refers to an item that this key has not stored.", param="input")


def _previous_not_found_error() -> NotFound:
    message = "There is no such response for this key, or it, or one that it continues, was deleted or has expired."
    return NotFound(message, param="previous_response_id")
