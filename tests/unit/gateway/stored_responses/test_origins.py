"""The memory of native responses is bounded, and separate for each key."""

from __future__ import annotations

from svc.gateway.stored_responses.origins import (
    MAX_REMEMBERED_ORIGINS,
    MAX_RESPONSE_ID_CHARS,
    FoundOrigin,
    ResponseOrigin,
    ResponseOrigins,
)

ORIGIN = ResponseOrigin("vendor", "default")


def find(origins: ResponseOrigins, key_id: str, response_id: str) -> FoundOrigin:
    found: list[FoundOrigin] = []
    origins.find(key_id, response_id, found.append)
    return found[0]


def test_origins_other_key_is_told_apart_from_unknown_id() -> None:
    origins = ResponseOrigins()
    origins.remember("k1", "resp_1", ORIGIN)
    assert find(origins, "k1", "resp_1") == ORIGIN
    assert find(origins, "k2", "resp_1") == "another_key"
    assert find(origins, "k2", "resp_2") is None


def test_origins_above_maximum_forgets_the_oldest() -> None:
    origins = ResponseOrigins()
    for number in range(MAX_REMEMBERED_ORIGINS + 1):
        origins.remember("k1", f"resp_{number}", ORIGIN)
    assert find(origins, "k1", "resp_0") is None
    assert find(origins, "k2", "resp_0") is None
    assert find(origins, "k1", "resp_1") == ORIGIN


def test_origins_too_long_id_is_skipped() -> None:
    origins, name = ResponseOrigins(), "r" * (MAX_RESPONSE_ID_CHARS + 1)
    origins.remember("k1", name, ORIGIN)
    assert find(origins, "k1", name) is None
