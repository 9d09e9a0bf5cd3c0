"""The tokens of an answer. Data only."""

from __future__ import annotations

from typing import Final

MOST_TOKENS: Final = 10**9
"""A provider that says more has lost count. Sums of these are always numbers that a database takes."""


class Usage:
    """Tokens. `prompt_tokens` counts cached ones too; `completion_tokens` counts reasoning too. Never changed."""

    __slots__ = ("cache_write_tokens", "cached_tokens", "completion_tokens", "prompt_tokens", "reasoning_tokens")

    def __init__(
        self,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cached_tokens: int = 0,
        cache_write_tokens: int = 0,
        reasoning_tokens: int = 0,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens
        self.cache_write_tokens = cache_write_tokens
        self.reasoning_tokens = reasoning_tokens

    def numbers(self) -> tuple[int, int, int, int, int]:
        """In the order of the constructor."""
        return (
            self.prompt_tokens,
            self.completion_tokens,
            self.cached_tokens,
            self.cache_write_tokens,
            self.reasoning_tokens,
        )

    def plus(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(*[a + b for a, b in zip(self.numbers(), other.numbers(), strict=True)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Usage) and self.numbers() == other.numbers()

    def __hash__(self) -> int:
        return hash(self.numbers())

    def __repr__(self) -> str:
        return f"Usage{self.numbers()}"
