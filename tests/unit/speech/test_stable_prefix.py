import re

from hypothesis import given
from hypothesis import strategies as st

from svc.speech.stable_prefix import StablePrefix, collapse_repetitions, join_texts, split_words


def test_stable_prefix_after_600_ms_is_all_but_last_two_words():
    prefix = StablePrefix()
    prefix.add_hypothesis(0.5, "go forward ten")
    assert prefix.stable == ""
    prefix.add_hypothesis(0.9, "go forward ten meters")
    assert prefix.stable == ""  # 0.4 s of new audio only
    prefix.add_hypothesis(1.2, "go forward ten meters now")
    assert prefix.stable == "go forward ten"
    assert prefix.text == "go forward ten meters now"


def test_stable_prefix_later_hypothesis_is_appended_to_stable_words():
    prefix = StablePrefix()
    for end in (0.5, 1.0, 1.5):
        prefix.add_hypothesis(end, "ever tried ever failed no matter")
    assert prefix.stable == "ever tried ever failed"
    prefix.add_hypothesis(2.0, "Never tried, ever fail, no matter, try again")
    assert prefix.text == "ever tried ever failed no matter, try again"
    assert prefix.finish("Ever try. Ever failed. No matter. Try again.").endswith("failed no matter, Try again.")


def test_stable_prefix_contradicting_final_is_ignored():
    prefix = StablePrefix()
    for end in (0.5, 1.0, 1.5):
        prefix.add_hypothesis(end, "one, two, three, four, five, six, seven")
    assert prefix.finish("12345678") == "one, two, three, four, five, six, seven"


def test_stable_prefix_changing_punctuation_still_stabilizes():
    prefix = StablePrefix()
    for end, text in ((0.5, "Ask not, what you"), (1.0, "ask not what you can"), (1.5, "Ask not. what you can do")):
        prefix.add_hypothesis(end, text)
    assert prefix.stable == ""
    prefix.add_hypothesis(1.8, "Ask not what you can do for")
    assert prefix.stable == "Ask not what you"


def test_collapse_repetitions_repeated_phrase_is_kept_once():
    assert "".join(collapse_repetitions(split_words("go forward ten, ten, ten, ten"), 3)) == "go forward ten,"
    assert "".join(collapse_repetitions(split_words("of the pair of the pair of the pair"), 3)) == "of the pair"
    assert "".join(collapse_repetitions(split_words("no no"), 3)) == "no no"


def test_stable_prefix_words_after_segment_cut_are_not_repeated():
    prefix = StablePrefix()
    for end in (0.5, 1.0, 1.5):
        prefix.add_hypothesis(end, "for good or for evil in the end of")
    following_words = prefix.stable_words_after("for good or for evil")
    assert following_words == [" in"] or following_words == [" in", " the"]
    following = StablePrefix(following_words)
    following.add_hypothesis(0.5, "In the end of days")
    assert following.text == (" the end of days" if following_words == [" in"] else " end of days")


def test_split_words_script_without_spaces_splits_by_character():
    assert split_words("今天天气") == ["今", "天", "天", "气"]
    assert join_texts("今天", "天气") == "今天天气"
    assert join_texts("one", "two") == "one two"
    assert join_texts("", "two") == "two"


TEXTS = st.lists(st.sampled_from(["go", "on", "ten", "meters", "no,", "No.", "-", "天", "気", ",", "..."])).map(
    " ".join
)


@given(st.lists(st.tuples(st.floats(0.01, 1.0), TEXTS)), TEXTS)
def test_stable_prefix_any_hypotheses_never_shrinks_stable_text(steps, last):
    prefix, end, stable = StablePrefix(), 0.0, ""
    for step, text in steps:
        end += step
        prefix.add_hypothesis(end, text)
        assert prefix.stable.startswith(stable)
        assert prefix.text.startswith(prefix.stable)
        stable = prefix.stable
    assert prefix.finish(last).startswith(stable)


@given(TEXTS)
def test_split_words_any_text_keeps_all_letters(text):
    assert re.sub(r"[\W]+", "", "".join(split_words(text))) == re.sub(r"[\W]+", "", text)
