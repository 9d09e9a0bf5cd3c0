"""Words from the tokens of sherpa-onnx."""

from svc.speech.engines._token_times import join_tokens
from svc.wire.speech import WordTime


def test_join_tokens_parts_of_a_word_are_joined():
    assert join_tokens([" he", "llo", "\u2581world"], [0.1, 0.2, 1.0]) == (
        WordTime("hello", 100, 500),
        WordTime("world", 1000, 1300),
    )


def test_join_tokens_word_ends_where_next_one_begins():
    assert join_tokens([" a", " b"], [0.0, 0.12]) == (WordTime("a", 0, 120), WordTime("b", 120, 420))


def test_join_tokens_script_without_spaces_has_a_word_per_letter():
    assert join_tokens(["角", "羽"], [0.0, 0.1]) == (WordTime("角", 0, 100), WordTime("羽", 100, 400))


def test_join_tokens_without_times_returns_none():
    assert join_tokens([" a"], []) is None
    assert join_tokens([], []) == ()
