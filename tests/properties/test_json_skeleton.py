"""Skeletons of long bodies: every JSON parser reads them like the body, and only the model changes on the way."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from svc.dialects.base import ModelProfile
from svc.dialects.json_skeleton import (
    MAX_SKELETON_STRING_BYTES,
    MIN_SKELETON_BODY_BYTES,
    WINDOW_BYTES,
    strip_long_strings,
)
from svc.dialects.openai import dialect
from tests.codecs import pass_through_request

STRING = re.compile(rb'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
PROFILE = ModelProfile("another-model")

lengths = st.sampled_from((0, 1, 40, MAX_SKELETON_STRING_BYTES, WINDOW_BYTES, 2 * WINDOW_BYTES)).flatmap(
    lambda length: st.integers(max(0, length - 4), length + 4)
)
fillers = st.sampled_from((b"a", rb"\\", rb"\"", rb"\n", b",", b":", b"{}", b"[]", "é".encode(), rb"\u0022"))
ends = st.sampled_from((b"", rb"\\", rb"\"", rb"\\\"", rb"\"\"", rb"\\\\", rb"\"model\":\"m\","))
texts = st.builds(
    lambda start, filler, length, end: b'"%b%b%b"' % (start, filler * (length // len(filler)), end),
    ends,
    fillers,
    lengths,
    ends,
)
spaces = st.sampled_from((b"", b" ", b"\r\n\t", b" " * WINDOW_BYTES))
short_strings = st.integers(0, 300).map(lambda count: b"[%b]" % b",".join([b'"aaaaaaaaaaaaaaaaaaaa"'] * count))
values = texts | short_strings | st.sampled_from((b"1", b"null", b"-1.5e3", b"{}"))
members = st.builds(
    lambda name, space, value: b'"%b"%b:%b%b' % (name, space, space, value),
    st.sampled_from((b"user", b"metadata", b"x", rb"\u0078", b"Model")),
    spaces,
    values,
)
repeated_models = st.sampled_from((b'"model":"a"', rb'"mod\u0065l":"b"', b'"model" : "c"'))
SHORT_PADDING = b'"pad":"short"'
"""Stands for the padding in the drawn body, so that Hypothesis prints short ones."""
PADDING = b'"pad":"%b"' % (b"p" * MIN_SKELETON_BODY_BYTES)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Draw a chat request with repeated and escaped names. `pad` makes it long."""
    message = b'"messages":[{"role":"user","content":%b}]' % draw(texts)
    model = b'"model"%b:"m"' % draw(spaces)
    others = [*draw(st.lists(members, max_size=4)), *draw(st.lists(repeated_models, max_size=1))]
    fields = draw(st.permutations([message, model, SHORT_PADDING, *others]))
    space = draw(spaces)
    return space + b"{" + (b"," + space).join(fields) + space + b"}" + space


def pad(short: bytes) -> bytes:
    """Return the body with at least MIN_SKELETON_BODY_BYTES."""
    return short.replace(SHORT_PADDING, PADDING)


def decode_pairs(raw: bytes) -> list[tuple[str, Any]]:
    """Decode an object to pairs, so that no repeated name is lost."""
    pairs: list[tuple[str, Any]] = json.loads(raw, object_pairs_hook=list)
    return pairs


@given(bodies())
def test_skeleton_differs_from_body_only_in_emptied_long_strings(short: bytes) -> None:
    raw = pad(short)
    skeleton = strip_long_strings(raw)
    assert STRING.sub(b"0", skeleton) == STRING.sub(b"0", raw)
    kept = [match[1] for match in STRING.finditer(skeleton)]
    texts_of_body = [match[1] for match in STRING.finditer(raw)]
    changed = [text for text, rest in zip(texts_of_body, kept, strict=True) if rest not in (text, b"")]
    emptied = [text for text, rest in zip(texts_of_body, kept, strict=True) if text != rest]
    assert not changed
    assert all(len(text) >= MAX_SKELETON_STRING_BYTES for text in emptied)


@given(bodies(), st.data())
def test_skeleton_of_malformed_body_has_the_same_strings(short: bytes, data: st.DataObject) -> None:
    raw = pad(short)
    index = data.draw(st.integers(0, len(raw) - 1))
    broken = raw[:index] + data.draw(st.sampled_from((b'"', b"\\", b"}", b"[", b'\\"', b""))) + raw[index + 1 :]
    broken = data.draw(st.sampled_from((broken, raw[:index])))
    assert STRING.sub(b"0", strip_long_strings(broken)) == STRING.sub(b"0", broken)


@given(bodies())
def test_passthrough_of_long_body_changes_only_the_model(short: bytes) -> None:
    raw = pad(short)
    fields = dict(decode_pairs(raw))
    sent = decode_pairs(pass_through_request(dialect, raw, PROFILE).body)
    assert len(sent) == len({name.lower() for name, _ in sent})
    kept = {name: value for name, value in fields.items() if name != "Model"}
    assert dict(sent) == kept | {"model": PROFILE.model}
