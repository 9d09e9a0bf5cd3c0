"""The price of a model's tokens. Data only: `cost` computes costs."""

from __future__ import annotations

import msgspec


class Price(msgspec.Struct, frozen=True):
    """USD per million tokens. `tiers`: prices for all tokens of a request by minimum prompt length, ascending."""

    input: float
    output: float
    cached: float | None = None
    """The price of tokens read from the provider's cache. None means the input price."""
    written: float | None = None
    """The price of tokens written to the provider's cache. None means the input price."""
    tiers: tuple[tuple[int, Price], ...] = ()
    written_1h: float | None = None
    """The price of tokens written to the provider's cache for an hour. None means that of `written`."""
    input_audio: float | None = None
    """The price of audio in the prompt. None means the input price, as for the other kinds of tokens below."""
    cached_audio: float | None = None
    output_audio: float | None = None
    input_image: float | None = None
    cached_image: float | None = None
    output_image: float | None = None
    requests: float | None = None
    """USD per million requests, beside the price of their tokens. None means that a request has no price of its own."""
