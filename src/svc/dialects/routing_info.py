"""The facts of a request that routing and limits go by, apart from its bytes."""

from __future__ import annotations

import msgspec


class RoutingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Equal for all requests that are routed and limited alike."""

    model: str
    stream: bool = False
    include_usage: bool = False
    """The client asked for usage in the stream."""
    max_tokens: int | None = None
    """`max_tokens`, or what replaced it."""
    choice_count: int = 1
    """The number of completions that the client asks for (`n`)."""
    min_reserved_tokens: int = 0
    """The largest number of tokens under a name that only some upstreams know (`min_tokens`, …)."""
    unbounded_field: str = ""
    """The field that asks for a completion without an end (`n_predict: -1`), if there is one."""
    has_completion: bool = True
    """The model generates tokens; False for endpoints that only read, such as embeddings."""
    has_single_prompt: bool = True
    """The body is one prompt; False for a batch of inputs, each of which may fill the context window."""
