import pytest

from svc.recipes.makers import concat, moonshine_tokens


def test_tokens():
    long = bytes(range(200))
    made = moonshine_tokens.make(b"\x02hi" + bytes([128 + 200 % 128, 200 // 128]) + long + b"\x00")
    first, second, third = made.splitlines()
    assert first == b"aGk= 0"
    assert second.endswith(b" 1")
    assert third == b" 2"


@pytest.mark.parametrize("data", [b"\x05hi", b"\x81"])
def test_tokens_that_are_cut(data):
    with pytest.raises((ValueError, IndexError)):
        moonshine_tokens.make(data)


def test_parts():
    assert concat.make(b"one", b"", b"two") == b"onetwo"
