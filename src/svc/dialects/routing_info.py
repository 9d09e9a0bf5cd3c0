"""Routing information: equal for all requests with the same routing and limits."""

from __future__ import annotations

from typing import Final

from svc.wire.stored_response import StateReference


class RoutingInfo:
    """The fields of a request that routing and limits read. Immutable, and without bytes of the request."""

    def __init__(
        self,
        *,
        model: str,
        stream: bool = False,
        include_usage: bool = False,
        max_tokens: int | None = None,
        max_tokens_field: str = "max_tokens",
        choice_count: int = 1,
        min_reserved_tokens: int = 0,
        unbounded_field: str = "",
        has_completion: bool = True,
        is_metered: bool = True,
        state: StateReference | None = None,
        can_store: bool = False,
        spoken_characters: int = 0,
        has_single_prompt: bool = True,
    ) -> None:
        self.model: Final = model
        self.stream: Final = stream
        self.include_usage: Final = include_usage
        """True if the client requested usage in the stream."""
        self.max_tokens: Final = max_tokens
        """`max_tokens`, or the field that replaced it."""
        self.max_tokens_field: Final = max_tokens_field
        """The name of that field in the client's dialect, for errors."""
        self.choice_count: Final = choice_count
        """The number of completions that the client requests (`n`)."""
        self.min_reserved_tokens: Final = min_reserved_tokens
        """The largest token limit under a name that only some upstreams support (`min_tokens`, …)."""
        self.unbounded_field: Final = unbounded_field
        """The field that requests an unlimited completion (`n_predict: -1`), if there is one."""
        self.has_completion: Final = has_completion
        """True if the model generates tokens. False for embeddings, for example."""
        self.is_metered: Final = is_metered
        """False if the request costs no tokens and no money, such as a token count. It counts for `rpm` only."""
        self.state: Final = state
        """The stored responses and items that the request refers to."""
        self.can_store: Final = can_store
        """True if the response may be kept for later requests."""
        self.spoken_characters: Final = spoken_characters
        """Characters of the text that a speech model speaks. 0 for other requests."""
        self.has_single_prompt: Final = has_single_prompt
        """True if the body is one prompt. False for a batch of inputs, each of which can fill the context window."""
