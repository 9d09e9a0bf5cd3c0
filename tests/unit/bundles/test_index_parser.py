"""The index is parsed entry by entry, so that a damaged entry does not affect the others."""

import contextlib
import random

import msgspec
import pytest

from svc.bundles import index_parser

GOOD = b'{"model_id":"m","version":"1","target":"any","size_bytes":1,"path":"x \\"}]{","more":{"a":[1,{"b":2}]}}'
DEEP = b"[" * 100_000 + b"]" * 100_000
DAMAGED = {
    "invalid UTF-8 in a key": b'"a\xff":%s' % GOOD,
    "deep nesting": b'"a":' + DEEP,
    "deep nesting of objects": b'"a":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a lone surrogate": b'"a":"\\ud800"',
    "a lone surrogate in a key": b'"\\ud800":1',
    "a control character": b'"a":"\x01"',
    "no JSON value": b'"a":{"x":nope}',
}


@pytest.mark.parametrize("member", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("index", [b'{%s,"m/1/any":%s}', b'{"m/1/any":%s,%s}', b' {"m/1/any" : %s\n, %s } '])
def test_split_index_damaged_entry_keeps_others(member, index):
    parts = (member, GOOD) if index.startswith(b"{%") else (GOOD, member)
    found = index_parser.split_index(index % parts)
    assert index_parser.parse_entry("m/1/any", found.entries["m/1/any"]).size_bytes == 1
    assert len(found.errors) == 1
    assert len(found.entries) == 1


@pytest.mark.parametrize("value", [b'{"x":"\xff\xfe"}', b'{"model_id":' + b"[" * 900 + b"]" * 900 + b"}", b"7", DEEP])
def test_parse_entry_invalid_entry_raises_value_error(value):
    with pytest.raises(ValueError, match=r"missing|Expected|deeply|decode"):
        index_parser.parse_entry("m/1/any", value)


def test_parse_entry_oversized_integer_raises_value_error():
    with pytest.raises(ValueError, match="Expected `int`"):
        index_parser.parse_entry("m/1/any", GOOD.replace(b'"size_bytes":1', b'"size_bytes":9999999999999999999999'))


@pytest.mark.parametrize("data", [b"", b"[]", b"[1]", b"x", b'{"a":1', b'{"a":1}}', b'{"a"}', b'{:1,"a":x}'])
def test_split_index_not_an_object_raises_value_error(data):
    with pytest.raises(ValueError, match="not a JSON object"):
        index_parser.split_index(data)


def test_split_tolerantly_any_object_agrees_with_parser():
    """For seeded random objects, the scanner finds the same members as the JSON parser."""
    rng = random.Random(20)
    texts = ["", "a", '"', "\\", "}{", "][", ":,", "\u202e", "é", "\n", '\\"', "{" * 9]

    def value(depth):
        kind = rng.randrange(7 if depth < 4 else 4)
        if kind < 4:
            return [1.5, None, True, rng.choice(texts)][kind]
        size = range(rng.randrange(4))
        return [value(depth + 1) for _ in size] if kind < 5 else {rng.choice(texts): value(depth + 1) for _ in size}

    for _ in range(500):
        expected = {f"{rng.choice(texts)}{number}": value(0) for number in range(rng.randrange(5))}
        data = msgspec.json.encode(expected)
        data = msgspec.json.format(data, indent=rng.choice([-1, 0, 2]))
        found = index_parser._split_tolerantly(data)
        assert {key: msgspec.json.decode(raw) for key, raw in found.entries.items()} == expected
        assert not found.errors


@pytest.mark.slow
@pytest.mark.parametrize("unit", [b"[", b"{", b'{"', b'{"a', b"]", b'"', b"\\", b",", b'{"a":', b'"a":{"b":1},{'])
def test_split_index_hostile_megabytes_take_linear_time(unit):
    data = b"{" + unit * ((2 << 20) // len(unit))
    with contextlib.suppress(ValueError):
        index_parser.split_index(data)


def test_describe_skipped_many_entries_is_one_line():
    text = index_parser.describe_skipped({f"\n{number}": "x" * 1000 for number in range(100)})
    assert "\n" not in text
    assert text.endswith("and 95 more")
