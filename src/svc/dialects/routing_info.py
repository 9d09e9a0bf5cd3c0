"""Routing information: equal for all requests with the same routing and limits."""

from __future__ import annotations

import msgspec

from svc.wire.stored_response import StateReference


class RoutingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request that routing and limits read."""

    model: str
    stream: bool = False
    include_usage: bool = False
    """True if the client requested usage in the stream."""
    max_tokens: int | None = None
    """`max_tokens`, or the field that replaced it."""
    max_tokens_field: str = "max_tokens"
    """The name of that field in the client's dialect, for errors."""
    choice_count: int = 1
    """The number of completions that the client requests (`n`)."""
    min_reserved_tokens: int = 0
    """The largest token limit under a name that only some upstreams support (`min_tokens`, …)."""
    unbounded_field: str = ""
    """The field that requests an unlimited completion (`n_predict: -1`), if there is one."""
    has_completion: bool = True
    """True if the model generates tokens. False for embeddings, for example."""
    is_metered: bool = True
    """False if the request costs no tokens and no money, such as a token count. It counts for `rpm` only."""
    state: StateReference | None = None
    """The stored responses and items that the request refers to."""
    can_store: bool = False
    """True if the response may be kept for later requests."""
    spoken_characters: int = 0
    """Characters of the text that a speech model speaks. 0 for other requests."""
    has_single_prompt: bool = True
    """True if the body is one prompt. False for a batch of inputs, each of which can fill the context window."""
