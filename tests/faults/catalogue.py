"""Every fault of the matrix: what the upstream does, and what the client has to receive. Data only.

The model name at the fake provider is `<upstream>/<fault>/<alone|chained>/<JSON|stream>/<client>`, so that all faults
run at once against one gateway. Each fault has its own provider: the failures of one do not count for another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tests.fakes import anthropic_wire, openai_wire, responses_wire
from tests.fakes.script import Script, answer, body, end, fin, head, pause, raw, reset, sse, stall

Letter = Literal["A", "B", "R"]
UPSTREAMS: dict[Letter, str] = {"A": "openai", "B": "anthropic", "R": "responses"}
"""The upstreams by their API: chat completions, Anthropic's, and Responses."""
TEXT = "eins zwei drei vier"

WHOLE = "complete response"
FAILED = "502 provider_error"
CUT = "200, then error provider_error"
EVENTS = "text/event-stream"


@dataclass(frozen=True)
class Fault:
    """`json`, `stream`: what a client receives without a fallback. `moves_…`: whether the fallback responds instead."""

    name: str
    plays: Callable[[Letter, bool], Script] | None
    """None: the fault is that of the address (see `address`)."""
    json: str = FAILED
    stream: str = FAILED
    moves_json: bool = True
    moves_stream: bool = True
    tries: int = 2
    """Attempts at the backend, retries included, when the response fails before its first byte."""
    seconds: float = 1.0
    """The longest time until the client has the response or the error, with or without a fallback."""
    address: Literal["fake", "always new", "closed", "silent", "wrong scheme"] = "fake"
    """With "always new" a connection serves one request. Closing a reused idle connection is not a fault."""

    def sees(self, stream: bool, chained: bool) -> str:
        """What the client receives in one cell of the matrix."""
        moves = self.moves_stream if stream else self.moves_json
        return WHOLE if chained and moves else (self.stream if stream else self.json)

    def attempts(self, stream: bool, chained: bool) -> int:
        """The value of `x-svc-attempts`."""
        alone = self.stream if stream else self.json
        tries = self.tries if alone.startswith(("5", "4")) else 1
        moves = self.moves_stream if stream else self.moves_json
        return tries + (chained and moves)


def events(letter: Letter, text: str = TEXT) -> list[bytes]:
    if letter == "R":
        return responses_wire.stream(text)
    return anthropic_wire.stream(text) if letter == "B" else openai_wire.stream(text)


def first_events(letter: Letter) -> list[bytes]:
    """The first events, up to and with some text."""
    return events(letter)[: {"A": 3, "B": 5, "R": 5}[letter]]


def response_body(letter: Letter, text: str = TEXT) -> dict[str, Any]:
    if letter == "R":
        return responses_wire.response(text)
    return anthropic_wire.message(text) if letter == "B" else openai_wire.chat(text)


def refusal(letter: Letter) -> dict[str, Any]:
    return anthropic_wire.error() if letter == "B" else openai_wire.error()


def breaks(after: Script) -> Callable[[Letter, bool], Script]:
    """The start of a response, then `after`."""

    def plays(letter: Letter, stream: bool) -> Script:
        if stream:
            return sse(first_events(letter), end=after)
        return head(framing="length", length=5000) + body(b'{"id": "x", "choi') + after

    return plays


def always(script: Script) -> Callable[[Letter, bool], Script]:
    return lambda letter, stream: script


def status(number: int, **headers: str) -> Callable[[Letter, bool], Script]:
    return lambda letter, stream: answer(number, refusal(letter), headers=headers)


def drip(seconds: float) -> Callable[[Letter, bool], Script]:
    """The complete response in 20 chunks, over about `seconds`."""

    def plays(letter: Letter, stream: bool) -> Script:
        if stream:
            whole = b"".join(events(letter))
            return sse([whole], split_at=-(-len(whole) // 20), every=seconds / 20)
        content = openai_wire.json.dumps(response_body(letter)).encode()
        script = head(framing="length", length=len(content))
        size = -(-len(content) // 20)
        for at in range(0, len(content), size):
            script += body(content[at : at + size]) + pause(seconds / 20)
        return script

    return plays


def endless(letter: Letter, stream: bool) -> Script:
    """A response that continues and never completes."""
    script = sse(first_events(letter), end=Script()) if stream else head() + body(b'{"id": "x"')
    for number in range(5, 45):
        delta = first_events(letter)[-1].replace(b'"sequence_number": 4,', f'"sequence_number": {number},'.encode())
        script += body(delta if stream else b" ") + pause(0.25)
    return script


def wrong_type(letter: Letter, stream: bool) -> Script:
    if stream:
        return sse(events(letter), content_type="application/octet-stream")
    return answer(200, response_body(letter), content_type="text/plain")


def half(letter: Letter, stream: bool) -> Script:
    if stream:
        return sse(first_events(letter), end=body(b'data: {"id": "x", "cho') + end())
    return answer(200, b'{"id": "x", "choi')


def garbage_inside(letter: Letter, stream: bool) -> Script:
    if stream:
        return sse(first_events(letter), end=body(b'event: content_block_delta\ndata: {"\xff": \n\n') + pause(5))
    return answer(200, b'{"id": "\xff\xfe"}')


def error_inside(letter: Letter, stream: bool) -> Script:
    if not stream:
        kind = anthropic_wire.error("api_error") if letter == "B" else openai_wire.error("Sorry", "server_error")
        return answer(200, kind)
    failures = {
        "A": openai_wire.event(openai_wire.error("The server had an error", "server_error")),
        "B": anthropic_wire.error_event(),
        "R": responses_wire.event(len(first_events("R")), "error", **responses_wire.error()),
    }
    return sse([*first_events(letter), failures[letter]])


def error_first(letter: Letter, stream: bool) -> Script:
    if not stream:
        return error_inside(letter, stream)
    return sse([error_inside(letter, True).steps[-3].data])  # type: ignore[union-attr]


def no_finish(letter: Letter, stream: bool) -> Script:
    if stream:
        return sse(first_events(letter))
    whole = response_body(letter)
    if letter == "B":
        return answer(200, {**whole, "content": None, "stop_reason": None})
    return answer(200, {**whole, "choices": [], "status": None})


def after_finish(ending: Script) -> Callable[[Letter, bool], Script]:
    """A stream up to its finish reason, then `ending` in place of the usage and the end mark.

    A Responses stream has the finish reason in its last event. JSON is complete.
    """

    def plays(letter: Letter, stream: bool) -> Script:
        if stream:
            kept = {"A": openai_wire.stream(TEXT, usage=False, done=False), "B": events("B")[:-1], "R": events("R")}
            return sse(kept[letter], end=ending)
        return answer(200, response_body(letter))

    return plays


def repeated(letter: Letter, stream: bool) -> Script:
    """Role, tool id and tool name in every chunk; a repeated key in JSON."""
    if not stream:
        content = openai_wire.json.dumps(response_body(letter)).replace('"role"', '"role": "assistant", "role"')
        return answer(200, content.encode())
    if letter == "R":
        return sse([event.replace(b'{"type"', b'{"item_id": "", "type"') for event in events(letter)])
    if letter == "B":
        first, *rest = events(letter)
        return sse([first, first, *rest])
    words = [openai_wire.chunk({"role": "assistant", "content": word}) for word in ("eins ", "zwei ", "drei ", "vier")]
    return sse([*words, openai_wire.chunk({"role": "assistant"}, "stop"), openai_wire.DONE])


def long_line(letter: Letter, stream: bool) -> Script:
    if stream:
        return sse(first_events(letter), end=body(b"data: " + b"x" * 10_000_000) + pause(5))
    return answer(200, b'{"id": "' + b"x" * 10_000_000)


_MOVES_JSON: dict[str, Any] = {"stream": CUT, "moves_stream": False}
_FOR_GOOD: dict[str, Any] = {"moves_json": False, "moves_stream": False, "tries": 1}
_LATE: dict[str, Any] = {"tries": 1, "seconds": 3.0}
_BAD_REQUEST: dict[str, Any] = {"json": "400 invalid_request", "stream": "400 invalid_request", **_FOR_GOOD}

FAULTS = [
    Fault("connection refused", None, address="closed"),
    Fault("connect timeout", None, address="silent", **_LATE),
    Fault("TLS handshake fails", None, address="wrong scheme"),
    Fault("reset before the first byte", always(reset()), address="always new"),
    Fault("closed before the first byte", always(fin()), address="always new"),
    Fault("reset after the headers", lambda letter, stream: head(content_type=EVENTS if stream else None) + reset()),
    Fault("reset in the body", breaks(pause(0.2) + reset()), **_MOVES_JSON),
    Fault("closed in the body", breaks(fin()), **_MOVES_JSON),
    Fault("stall before the first byte", always(stall()), **_LATE),
    Fault("stall after the headers", lambda letter, stream: head(content_type=EVENTS) + stall(), **_LATE),
    Fault("stall in the body", breaks(stall()), **_LATE, **_MOVES_JSON),
    Fault("slow body", drip(1.5), WHOLE, WHOLE, False, False, seconds=4.0),
    Fault("endless body", endless, stream=CUT, **{**_FOR_GOOD, "seconds": 4.0}),
    Fault("truncated event", half, tries=1, **_MOVES_JSON),
    Fault("not HTTP", always(raw(b"\x16\x03\x01\x02\x00\x01\xfc\x03\x03garbage\r\n\r\n") + fin())),
    Fault("invalid JSON in the body", garbage_inside, tries=1, **_MOVES_JSON),
    Fault("HTML page", always(answer(200, b"<html><body>Welcome</body></html>", content_type="text/html")), tries=1),
    Fault("wrong content type", wrong_type, json=WHOLE, moves_json=False, tries=1),
    Fault("status 200 without a body", always(answer(200, b"")), tries=1),
    Fault("redirect", always(answer(302, b"", headers={"location": "http://127.0.0.1:1/"})), tries=1),
    Fault("status 400", status(400), **_BAD_REQUEST),
    Fault("status 401", status(401), tries=1),
    Fault("status 403", status(403), tries=1),
    Fault("status 404", status(404), "404 model_not_found", "404 model_not_found", **_FOR_GOOD),
    Fault("status 408", status(408)),
    Fault("status 409", status(409), **_FOR_GOOD),
    Fault("status 413", status(413), **_BAD_REQUEST),
    Fault("status 422", status(422), **_BAD_REQUEST),
    Fault("status 429", status(429), "429 rate_limit_exceeded", "429 rate_limit_exceeded"),
    Fault(
        "status 429, retry after 60 s",
        status(429, **{"retry-after": "60"}),
        "429 rate_limit_exceeded",
        "429 rate_limit_exceeded",
        tries=1,
    ),
    *(Fault(f"status {number}", status(number)) for number in (500, 502, 503, 504, 529)),
    Fault("error event first", error_first),
    Fault("error event in the stream", error_inside, **_MOVES_JSON),
    Fault("end without a finish reason", no_finish, tries=1, **_MOVES_JSON),
    Fault("reset after the finish reason", after_finish(pause(0.2) + reset()), WHOLE, WHOLE, False, False),
    Fault("closed after the finish reason", after_finish(fin()), WHOLE, WHOLE, False, False),
    Fault("stall after the finish reason", after_finish(stall()), WHOLE, WHOLE, False, False, seconds=3.0),
    Fault("repeated fields", repeated, WHOLE, WHOLE, False, False),
    Fault("line of 10 MB", long_line, **_MOVES_JSON, tries=1, seconds=4.0),
]
