"""The transform of speech: audio, events, and the usage of both."""

from __future__ import annotations

import pytest
from tests.fakes.openai_wire import speech_event

from svc.dialects.base import RequestBody
from svc.dialects.openai.speech_passthrough import SpeechPassthrough
from svc.dialects.openai.speech_request import decode_routing_info
from svc.errors import InvalidRequest, ProviderFailed
from svc.wire.usage import TokenUsage

USAGE = {"input_tokens": 3, "output_tokens": 40, "total_tokens": 43}
DELTA, DONE = speech_event("delta", audio="AAAA"), speech_event("done", usage=USAGE)


def transform(model: str = "tts-1", text: str = "Hello", content_type: bytes = b"audio/mpeg") -> SpeechPassthrough:
    body = RequestBody(b'{"model": "%b", "input": "%b"}' % (model.encode(), text.encode()))
    made = SpeechPassthrough(decode_routing_info(body), model)
    assert made.accept_head(content_type)
    return made


def test_speech_audio_passes_unchanged_and_starts_with_the_first_byte() -> None:
    audio = transform()
    assert (audio.feed(b""), audio.has_started) == (b"", False)
    assert audio.feed(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"
    assert (audio.has_started, audio.content_type, audio.can_encode_errors) == (True, "audio/mpeg", False)
    assert (audio.end(), audio.has_ended, audio.error) == (b"", True, None)
    assert (audio.usage, audio.usage_is_estimated) == (TokenUsage(5), False)


def test_speech_audio_failure_adds_no_byte() -> None:
    audio = transform()
    audio.feed(b"one")
    assert audio.fail(ProviderFailed("reset")) == b""
    assert (audio.has_ended, audio.error is None, audio.feed(b"two")) == (True, False, b"")


def test_speech_empty_audio_is_not_a_start() -> None:
    audio = transform()
    assert (audio.end(), audio.has_started, audio.has_ended) == (b"", False, False)


@pytest.mark.parametrize("content_type", [b"application/json", b"text/html; charset=utf-8", b"Application/JSON"])
def test_speech_other_content_type_is_rejected(content_type: bytes) -> None:
    body = RequestBody(b'{"model": "tts-1", "input": "Hi"}')
    assert not SpeechPassthrough(decode_routing_info(body), "tts-1").accept_head(content_type)


def test_speech_events_split_anywhere_pass_unchanged_with_usage() -> None:
    whole = DELTA + b": comment\n\n" + DONE
    for cut in range(len(whole) + 1):
        events = transform("gpt-4o-mini-tts", content_type=b"text/event-stream")
        out = events.feed(whole[:cut]) + events.feed(whole[cut:]) + events.end()
        assert (out, events.has_ended, events.error) == (whole, True, None)
        assert (events.usage, events.usage_is_estimated) == (TokenUsage(3, 40), False)


def test_speech_events_without_done_end_with_error() -> None:
    events = transform("gpt-4o-mini-tts", content_type=b"text/event-stream")
    assert events.feed(DELTA) == DELTA
    assert b'"code":"provider_error"' in events.end()
    assert events.can_encode_errors
    assert (events.usage, events.usage_is_estimated) == (TokenUsage(1, 7), True)


def test_speech_error_event_is_raised_before_the_start_and_ends_the_stream_after_it() -> None:
    failure = b'data: {"error": {"message": "No.", "type": "invalid_request_error"}}\n\n'
    with pytest.raises(InvalidRequest, match="No"):
        transform(content_type=b"text/event-stream").feed(failure)
    events = transform(content_type=b"text/event-stream")
    events.feed(DELTA)
    assert b"No." in events.feed(failure)
    assert events.has_ended
    assert events.error is not None


@pytest.mark.parametrize("usage", [None, [], {"input_tokens": -1, "output_tokens": 1}, {"input_tokens": True}])
def test_speech_events_with_invalid_usage_keep_the_estimate(usage: object) -> None:
    events = transform("gpt-4o-mini-tts", "x" * 100, b"text/event-stream")
    events.feed(speech_event("done", usage=usage))
    assert (events.usage, events.usage_is_estimated, events.error) == (TokenUsage(25, 140), True, None)
