from time import thread_time

import pytest

from svc.dialects.upstream_errors import (
    MAX_UPSTREAM_MESSAGE_CHARS,
    decode_error_message,
    from_stream_error,
    map_upstream_error,
    sanitize_message,
    to_stream_error,
)
from svc.errors import RateLimited


@pytest.mark.parametrize(
    "secret",
    [
        "http://10.0.0.5:8000/v1",
        "grpc+unix://run/model.sock",
        "10.0.0.5:8000",
        "localhost:11434",
        "[fe80::1]:8080",
        "model-7.fleet:9000",
        "a.b.c.d.e.f.g.h:9000",
        "pod-3.chat.svc.cluster.local",
        "--db.internal",
        "sk-proj-abc_def*ghi",
        "Bearer abc.def",
    ],
)
def test_sanitize_message_addresses_and_keys_are_redacted(secret: str) -> None:
    for before, after in (("", ""), ("at ", " there"), ("(", "")):
        assert sanitize_message(f"{before}{secret}{after}") == f"{before}[…]{after}"


@pytest.mark.parametrize("part", ["a", "a-", "a.", "-a.-a", "[:", ":", "[::", "a+", "1.1.", "key-", "bearer ", "_.-"])
def test_sanitize_message_pathological_text_takes_linear_time(part: str) -> None:
    """A slow scan blocks the event loop for all other requests."""
    for words in (part * 4000, "[" + part * 4000, part * 1000 + ":/"):
        began = thread_time()
        assert len(sanitize_message(words)) <= MAX_UPSTREAM_MESSAGE_CHARS
        assert thread_time() - began < 0.04


def test_stream_error_rate_limit_is_attributed_to_upstream() -> None:
    error = from_stream_error(to_stream_error(map_upstream_error({"type": "rate_limit_error", "message": "slow down"})))
    assert isinstance(error, RateLimited)
    assert (error.message, error.limit) == ("slow down", "upstream")


def test_decode_error_message_of_validation_names_the_field() -> None:
    missing = b'{"type":"extra_forbidden","loc":["body","messages",0,"name"],"msg":"Extra inputs are not permitted"}'
    expected = "`messages.0.name`: Extra inputs are not permitted"
    assert decode_error_message(b'{"object":"error","message":{"detail":[%b]}}' % missing) == expected
    assert decode_error_message(b'{"detail":[%b]}' % missing) == expected
    assert decode_error_message(b'{"detail":[{"loc":["body"],"msg":"Invalid JSON"}]}') == "Invalid JSON"
