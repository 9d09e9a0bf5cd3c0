"""How deeply JSON may be nested here: the limit depends on the version of Python, and on the calls that are active."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

MAX_TRIED_DEPTH = 100_000


def depths_near_limit() -> Iterator[int]:
    """Yield the depths around the deepest nesting that msgspec decodes, from below to above."""
    decodable, rejected = 0, MAX_TRIED_DEPTH
    while rejected - decodable > 1:
        depth = (decodable + rejected) // 2
        if _can_decode(depth):
            decodable = depth
        else:
            rejected = depth
    yield from range(decodable - 50, decodable + 10)


def _can_decode(depth: int) -> bool:
    try:
        msgspec.json.decode(b"[" * depth + b"]" * depth)
    except RecursionError:
        return False
    return True
