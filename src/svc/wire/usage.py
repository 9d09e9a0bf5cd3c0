"""Define the token usage of a response. Data only."""

from __future__ import annotations

from typing import ClassVar, Final

MAX_USAGE_TOKENS: Final = 10**9
"""Upper bound of a plausible count. It keeps sums within the integer range of databases."""


def format_usd(amount: float) -> str:
    """Format an amount with as many of 9 decimals as it needs, and without an exponent: `50`, `0.0000001`."""
    return f"{amount:.9f}".rstrip("0").rstrip(".")


class TokenUsage:
    """Token counts. `prompt_tokens` includes cached tokens, `completion_tokens` reasoning tokens. Immutable."""

    # begin: token usage, from ledger_fields.toml by `make ledger`
    __slots__ = (
        "cache_write_1h_tokens",
        "cache_write_tokens",
        "cached_tokens",
        "completion_audio_tokens",
        "completion_image_tokens",
        "completion_tokens",
        "prompt_audio_tokens",
        "prompt_image_tokens",
        "prompt_tokens",
        "reasoning_tokens",
    )

    count_names: ClassVar[tuple[str, ...]] = (
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "cache_write_1h_tokens",
        "prompt_audio_tokens",
        "prompt_image_tokens",
        "completion_audio_tokens",
        "completion_image_tokens",
    )
    """The names of the counts, in the order of the constructor. A compiled class has no `__slots__`."""

    def __init__(
        self,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cached_tokens: int = 0,
        cache_write_tokens: int = 0,
        reasoning_tokens: int = 0,
        cache_write_1h_tokens: int = 0,
        prompt_audio_tokens: int = 0,
        prompt_image_tokens: int = 0,
        completion_audio_tokens: int = 0,
        completion_image_tokens: int = 0,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens
        self.cache_write_tokens = cache_write_tokens
        self.reasoning_tokens = reasoning_tokens
        self.cache_write_1h_tokens = cache_write_1h_tokens
        self.prompt_audio_tokens = prompt_audio_tokens
        self.prompt_image_tokens = prompt_image_tokens
        self.completion_audio_tokens = completion_audio_tokens
        self.completion_image_tokens = completion_image_tokens

    def as_tuple(self) -> tuple[int, int, int, int, int, int, int, int, int, int]:
        """Return the counts in the order of the constructor."""
        return (
            self.prompt_tokens,
            self.completion_tokens,
            self.cached_tokens,
            self.cache_write_tokens,
            self.reasoning_tokens,
            self.cache_write_1h_tokens,
            self.prompt_audio_tokens,
            self.prompt_image_tokens,
            self.completion_audio_tokens,
            self.completion_image_tokens,
        )

    # end: token usage

    @property
    def special_tokens(self) -> int:
        """The number of tokens that only some models price differently."""
        writes, audio = self.cache_write_1h_tokens, self.prompt_audio_tokens + self.completion_audio_tokens
        return writes + audio + self.prompt_image_tokens + self.completion_image_tokens

    def add(self, other: TokenUsage) -> TokenUsage:
        """Return the sum of both."""
        return TokenUsage(*[a + b for a, b in zip(self.as_tuple(), other.as_tuple(), strict=True)])

    def with_completion_tokens(self, completion_tokens: int) -> TokenUsage:
        """Return the usage with another number of completion tokens."""
        prompt_tokens, _, *others = self.as_tuple()
        return TokenUsage(prompt_tokens, completion_tokens, *others)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenUsage) and self.as_tuple() == other.as_tuple()

    def __hash__(self) -> int:
        return hash(self.as_tuple())

    def __repr__(self) -> str:
        return f"TokenUsage{self.as_tuple()}"
