from hypothesis import given
from hypothesis import strategies as st

from svc.speech.endpointer import (
    LONG_SEGMENT_SILENCE_WINDOWS,
    LONG_SEGMENT_WINDOWS,
    MAX_SEGMENT_WINDOWS,
    PRE_ROLL_WINDOWS,
    SHORT_SEGMENT_SILENCE_WINDOWS,
    Endpointer,
)


def run(endpointer: Endpointer, speech_flags: list[bool], loudness: float = 1.0) -> list[str]:
    return [endpointer.push(is_speech, loudness if is_speech else 0.0) for is_speech in speech_flags]


def test_endpointer_skips_silence_and_speech_begins_segment():
    endpointer = Endpointer()
    assert run(endpointer, [False] * 5 + [True]) == ["skip"] * 5 + ["begin"]
    endpointer.add_pre_roll(5)
    assert (endpointer.length, endpointer.speech_windows, endpointer.trailing_silence) == (6, 1, 0)


def test_endpointer_short_segment_needs_more_silence_than_long_one():
    for length, silence_windows in (
        (10, SHORT_SEGMENT_SILENCE_WINDOWS),
        (LONG_SEGMENT_WINDOWS + 1, LONG_SEGMENT_SILENCE_WINDOWS),
    ):
        endpointer = Endpointer()
        run(endpointer, [True] * length)
        verdicts = run(endpointer, [False] * silence_windows)
        assert verdicts == ["go on"] * (silence_windows - 1) + ["end"]
        assert endpointer.cut_length == length + silence_windows
        assert endpointer.restart() == 0
        assert endpointer.length == 0


def test_endpointer_maximum_length_cuts_at_quietest_window():
    endpointer = Endpointer()
    quiet = MAX_SEGMENT_WINDOWS - 40
    verdicts = [
        endpointer.push(True, 0.01 if abs(number - quiet) <= 3 else 1.0) for number in range(MAX_SEGMENT_WINDOWS)
    ]
    assert verdicts[-1] == "end"
    assert abs(endpointer.cut_length - quiet) <= 3
    rest = MAX_SEGMENT_WINDOWS - endpointer.cut_length
    assert endpointer.restart() == rest
    assert (endpointer.length, endpointer.speech_windows) == (rest, rest)


def test_endpointer_without_skip_silence_ends_only_at_maximum_length():
    endpointer = Endpointer(skip_silence=False)
    verdicts = run(endpointer, [False] * MAX_SEGMENT_WINDOWS)
    assert verdicts == ["begin"] + ["go on"] * (MAX_SEGMENT_WINDOWS - 2) + ["end"]
    assert endpointer.speech_windows == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200)), max_size=12), st.booleans())
def test_endpointer_any_input_keeps_all_speech_within_maximum_length(runs, skip):
    endpointer, pushed, kept, closed = Endpointer(skip_silence=skip), 0, 0, 0
    for is_speech, count in runs:
        for _ in range(count):
            pushed += is_speech
            verdict = endpointer.push(is_speech, float(is_speech))
            if verdict == "begin":
                endpointer.add_pre_roll(PRE_ROLL_WINDOWS)
            kept += is_speech and verdict != "skip"
            assert endpointer.length <= MAX_SEGMENT_WINDOWS + PRE_ROLL_WINDOWS
            if verdict == "end":
                assert 0 < endpointer.cut_length <= endpointer.length
                before = endpointer.speech_windows
                endpointer.restart()
                closed += before - endpointer.speech_windows
    assert kept == pushed == closed + endpointer.speech_windows
