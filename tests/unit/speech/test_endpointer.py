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


def run(pointer: Endpointer, marks: list[bool], loudness: float = 1.0) -> list[str]:
    return [pointer.push(mark, loudness if mark else 0.0) for mark in marks]


def test_silence_is_skipped_and_speech_begins_a_segment():
    pointer = Endpointer()
    assert run(pointer, [False] * 5 + [True]) == ["skip"] * 5 + ["begin"]
    pointer.add_pre_roll(5)
    assert (pointer.length, pointer.speech_windows, pointer.trailing_silence) == (6, 1, 0)


def test_a_short_segment_waits_longer_for_more_than_a_long_one():
    for length, patience in (
        (10, SHORT_SEGMENT_SILENCE_WINDOWS),
        (LONG_SEGMENT_WINDOWS + 1, LONG_SEGMENT_SILENCE_WINDOWS),
    ):
        pointer = Endpointer()
        run(pointer, [True] * length)
        verdicts = run(pointer, [False] * patience)
        assert verdicts == ["go on"] * (patience - 1) + ["end"]
        assert pointer.cut_length == length + patience
        assert pointer.restart() == 0
        assert pointer.length == 0


def test_the_cap_cuts_at_the_quietest_place():
    pointer = Endpointer()
    quiet = MAX_SEGMENT_WINDOWS - 40
    verdicts = [pointer.push(True, 0.01 if abs(number - quiet) <= 3 else 1.0) for number in range(MAX_SEGMENT_WINDOWS)]
    assert verdicts[-1] == "end"
    assert abs(pointer.cut_length - quiet) <= 3
    rest = MAX_SEGMENT_WINDOWS - pointer.cut_length
    assert pointer.restart() == rest
    assert (pointer.length, pointer.speech_windows) == (rest, rest)


def test_without_skipping_only_the_cap_ends_a_segment():
    pointer = Endpointer(skip_silence=False)
    verdicts = run(pointer, [False] * MAX_SEGMENT_WINDOWS)
    assert verdicts == ["begin"] + ["go on"] * (MAX_SEGMENT_WINDOWS - 2) + ["end"]
    assert pointer.speech_windows == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200)), max_size=12), st.booleans())
def test_no_window_of_speech_is_lost_and_no_segment_is_longer_than_the_cap(runs, skip):
    pointer, pushed, kept, closed = Endpointer(skip_silence=skip), 0, 0, 0
    for mark, count in runs:
        for _ in range(count):
            pushed += mark
            verdict = pointer.push(mark, float(mark))
            if verdict == "begin":
                pointer.add_pre_roll(PRE_ROLL_WINDOWS)
            kept += mark and verdict != "skip"
            assert pointer.length <= MAX_SEGMENT_WINDOWS + PRE_ROLL_WINDOWS
            if verdict == "end":
                assert 0 < pointer.cut_length <= pointer.length
                before = pointer.speech_windows
                pointer.restart()
                closed += before - pointer.speech_windows
    assert kept == pushed == closed + pointer.speech_windows
