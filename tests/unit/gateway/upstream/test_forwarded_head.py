"""The part of a client's request head that is forwarded, and the merged upstream head."""

from __future__ import annotations

import pytest

from svc.gateway.cache.response_cache import ResponseCache
from svc.gateway.upstream.forwarded_head import extract_forwarded_head
from svc.settings import CacheSettings
from svc.wire.key import ApiKey

NAMES = frozenset((b"anthropic-beta", b"anthropic-version"))
HEAD = b"POST /v1/messages HTTP/1.1\r\nhost: a\r\nx-api-key: k\r\nanthropic-version: 2023-06-01\r\ncontent-length: "


def test_forwarded_head_without_query_and_headers_is_none() -> None:
    assert extract_forwarded_head(b"/v1/messages", [(b"x-api-key", b"mine"), (b"anthropic-beta", b"")], NAMES) is None


def test_forwarded_head_merge_replaces_same_names_and_keeps_order() -> None:
    given = [(b"anthropic-beta", b"a"), (b"cookie", b"c"), (b"anthropic-version", b"2"), (b"anthropic-beta", b"b")]
    found = extract_forwarded_head(b"/v1/messages?beta=true&x=%0a", given, NAMES)
    assert found is not None
    assert found.merge_into(HEAD) == (
        b"POST /v1/messages?beta=true&x=%0a HTTP/1.1\r\nhost: a\r\nx-api-key: k\r\n"
        b"anthropic-beta: a\r\nanthropic-version: 2\r\nanthropic-beta: b\r\ncontent-length: "
    )


def test_forwarded_head_merge_appends_to_the_query_of_the_provider() -> None:
    found = extract_forwarded_head(b"/v1/messages?beta=true", [], NAMES)
    assert found is not None
    head = HEAD.replace(b" HTTP/1.1", b"?api-version=1 HTTP/1.1")
    assert found.merge_into(head).startswith(b"POST /v1/messages?api-version=1&beta=true HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "url", [b"/v1/messages?a b", b"/v1/messages?\xc3\xa4", b"/v1/messages?\x01", b"/v1/messages#?a"]
)
def test_forwarded_head_invalid_query_is_dropped(url: bytes) -> None:
    assert extract_forwarded_head(url, [], NAMES) is None


def test_cache_key_differs_by_forwarded_head() -> None:
    cache, key = ResponseCache(CacheSettings()), ApiKey(id="k", name="n")
    first, second = (extract_forwarded_head(b"/", [(b"anthropic-beta", beta)], NAMES) for beta in (b"a", b"b"))
    names = [cache.cache_key(key, "anthropic", b"{}", forwarded) for forwarded in (None, first, second)]
    assert len(set(names)) == 3
