"""Define responses of the Responses API that the gateway keeps. Data only."""

from __future__ import annotations

import msgspec


class StoredItem(msgspec.Struct, frozen=True):
    """An input or output item."""

    id: str
    body: str
    """The item as JSON."""
    is_input: bool


class ResponseParts(msgspec.Struct, frozen=True):
    """The id, body and items of a response to store."""

    id: str
    body: str
    items: list[StoredItem]


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response, the items of its own request, and its output. Times are Unix seconds."""

    id: str
    key_id: str
    """The key that made it. No other key can read it."""
    created_at: float
    expires_at: float
    previous_id: str | None
    """The response that it continues."""
    provider: str
    account: int
    """The number of the provider's account, or 0 if it has one account."""
    account_name: str = ""
    """The name of the provider's account, which survives another order. Empty in rows of older versions."""
    is_native: bool
    """Whether the provider knows the response, too."""
    body: str
    """The response as JSON."""
    items: list[StoredItem] = []


class StateReference(msgspec.Struct, frozen=True):
    """The stored responses and items that a request refers to."""

    previous_response_id: str | None = None
    item_ids: tuple[str, ...] = ()
    """Ids of `item_reference` items."""
    has_conversation: bool = False
    """Whether it refers to a conversation of the provider."""


class EarlierItems(msgspec.Struct, frozen=True):
    """The stored items that a request refers to, each as JSON."""

    conversation: list[str]
    """The items before the input, oldest first."""
    by_id: dict[str, str]
    """The items that the input refers to."""
