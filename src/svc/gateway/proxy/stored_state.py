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


class StateResolution:
    """Finds the backends that can serve one request with a reference to earlier responses."""

    __slots__ = ("_backends", "_body", "_found", "_is_native", "_key", "_on_resolved", "_origins", "_reference")

    def __init__(
        self,
        origins: ResponseOrigins,
        reference: StateReference,
        body: RequestBody,
        key: ApiKey,
        backends: Backends,
        on_resolved: ResolvedCallback,
    ) -> None:
        """`on_resolved` gets the backends or an error. Before, `body.earlier_items` may be set."""
        self._origins = origins
        self._reference = reference
        self._body = body
        self._key = key
        self._backends = backends
        self._on_resolved = on_resolved
        self._is_native = backends[0].profile.has_responses
        self._found: FoundState | None = None
        """What the gateway has stored. None if it keeps no responses."""

    def start(self, store: ResponseStore | None) -> None:
        """Look in the store, then among the remembered origins. `store` is None if the gateway keeps no responses."""
        if store is None or (self._reference.has_conversation and not self._is_native):
            # Without a native backend, the decoder of the request rejects the field with a hint.
            self._find_origin()
        else:
            store.find(self._key.owner_id, self._reference, self._on_found)

    def _on_found(self, found: FoundState | SvcError) -> None:
        if isinstance(found, SvcError):
            self._on_resolved(found)
        elif found.is_denied:
            self._on_resolved(_not_found_error(self._reference, found))
        elif self._reference.has_conversation:
            self._on_resolved(_pin_first(self._backends))
        elif found.previous is None and not found.is_complete:
            self._found = found
            self._find_origin()
        else:
            self._on_resolved(self._apply(found))

    def _find_origin(self) -> None:
        if self._reference.previous_response_id is None:
            self._on_origin(None)
        else:
            self._origins.find(self._key.owner_id, self._reference.previous_response_id, self._on_origin)

    def _on_origin(self, origin: FoundOrigin) -> None:
        if origin == "another_key":
            self._on_resolved(_previous_not_found_error())
        elif origin is not None and (pinned := _pin_account(origin.provider, origin.account_name, 0, self._backends)):
            self._on_resolved(pinned)
        elif self._found is not None:
            self._on_resolved(self._apply(self._found))
        else:
            self._on_resolved(_pin_first(self._backends) if self._is_native else self._backends)

    def _apply(self, found: FoundState) -> Backends | SvcError:
        """Return the backend that made the previous response, or all with the stored items, or an error."""
        previous = found.previous
        if previous is not None and previous.is_native and (pinned := _pin_maker(previous, self._backends)):
            return pinned
        if found.is_complete:
            self._body.earlier_items = found.items
            items = (*found.items.conversation, *found.items.by_id.values())
            self._body.earlier_tokens = sum(estimate_prompt_tokens(item.encode()) for item in items)
            return self._backends
        if previous is None and self._is_native:
            return _pin_first(self._backends)
        return _not_found_error(self._reference, found)


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
