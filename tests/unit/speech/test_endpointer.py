from hypothesis import given
from hypothesis import strategies as st

from svc.speech.endpointer import CAP, LONG, PATIENCE_LONG, PATIENCE_SHORT, PRE_ROLL, Endpointer


def run(pointer: Endpointer, marks: list[bool], loudness: float = 1.0) -> list[str]:
    return [pointer.push(mark, loudness if mark else 0.0) for mark in marks]


def test_silence_is_skipped_and_speech_begins_a_segment():
    pointer = Endpointer()
    assert run(pointer, [False] * 5 + [True]) == ["skip"] * 5 + ["begin"]
    pointer.begun(5)
    assert (pointer.length, pointer.speech, pointer.silence) == (6, 1, 0)


def test_a_short_segment_waits_longer_for_more_than_a_long_one():
    for length, patience in ((10, PATIENCE_SHORT), (LONG + 1, PATIENCE_LONG)):
        pointer = Endpointer()
        run(pointer, [True] * length)
        verdicts = run(pointer, [False] * patience)
        assert verdicts == ["go on"] * (patience - 1) + ["end"]
        assert pointer.cut == length + patience
        assert pointer.restart() == 0
        assert pointer.length == 0


def test_the_cap_cuts_at_the_quietest_place():
    pointer = Endpointer()
    quiet = CAP - 40
    verdicts = [pointer.push(True, 0.01 if abs(number - quiet) <= 3 else 1.0) for number in range(CAP)]
    assert verdicts[-1] == "end"
    assert abs(pointer.cut - quiet) <= 3
    rest = CAP - pointer.cut
    assert pointer.restart() == rest
    assert (pointer.length, pointer.speech) == (rest, rest)


def test_without_skipping_only_the_cap_ends_a_segment():
    pointer = Endpointer(skip_silence=False)
    verdicts = run(pointer, [False] * CAP)
    assert verdicts == ["begin"] + ["go on"] * (CAP - 2) + ["end"]
    assert pointer.speech == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200)), max_size=12), st.booleans())
def test_no_window_of_speech_is_lost_and_no_segment_is_longer_than_the_cap(runs, skip):
    pointer, pushed, kept, closed = Endpointer(skip_silence=skip), 0, 0, 0
    for mark, count in runs:
        for _ in range(count):
            pushed += mark
            verdict = pointer.push(mark, float(mark))
            if verdict == "begin":
                pointer.begun(PRE_ROLL)
            kept += mark and verdict != "skip"
            assert pointer.length <= CAP + PRE_ROLL
            if verdict == "end":
                assert 0 < pointer.cut <= pointer.length
                before = pointer.speech
                pointer.restart()
                closed += before - pointer.speech
    assert kept == pushed == closed + pointer.speech
