"""What is known of an answer when it has ended, and the line that it makes: in the ledger, and in the access log.

The line is an `Entry` in JSON, written here and not by msgspec: nearly all of it is text that was there before, so that
it takes two thirds of the instructions. tests/unit/gateway/test_record.py holds it to what an `Entry` reads.
"""

from __future__ import annotations

import functools
from typing import Final, Literal

import msgspec

from svc.gateway.bill import NOTHING, Bill
from svc.wire.key import Key
from svc.wire.usage import Usage

Status = Literal["ok", "error", "cut", "client_closed"]
NULL: Final = b"null"
NO_TOKENS: Final = b'"prompt_tokens":null,"cached_tokens":null,"completion_tokens":null,"reasoning_tokens":null'
_JSON: Final = (b"false", b"true")
_THREE: Final = tuple(b"%03d" % number for number in range(1000))
_FEW: Final = 1000
_SMALL: Final = tuple(b"%d" % number for number in range(_FEW))
"""Made once, since each line needs some."""
_WELL: Final = b',"attempts":1,"status":"ok","http_status":200'
_PLAIN: Final = b',"cache_write_tokens":0,"estimated":false,"from_cache":false,"resumed":0,"code":null'
"""What most lines say of how a request went, and how they end."""


class Record:
    """One request. Those that never reached for an upstream are logged, and not kept in the ledger."""

    __slots__ = (
        "asked",
        "attempt_seconds",
        "attempts",
        "bill",
        "client_request_id",
        "code",
        "endpoint",
        "first",
        "from_cache",
        "http_status",
        "key",
        "limit",
        "model",
        "provider",
        "request_id",
        "resumed",
        "seconds",
        "status",
        "time",
    )

    def __init__(
        self,
        key: Key,
        endpoint: str,
        asked: str | None,
        status: Status,
        http_status: int,
        *,
        time: str,
        request_id: str,
        client_request_id: str | None,
        model: str | None,
        provider: str | None,
        attempts: int,
        seconds: float,
        first: float | None,
        code: str | None,
        bill: Bill = NOTHING,
        from_cache: bool = False,
        resumed: int = 0,
        limit: str = "",
        attempt_seconds: float = 0.0,
    ) -> None:
        self.key = key
        self.endpoint = endpoint
        self.asked = asked
        """The model, by the client's name."""
        self.status = status
        self.http_status = http_status
        self.time = time
        self.request_id = request_id
        self.client_request_id = client_request_id
        self.model = model
        self.provider = provider
        self.attempts = attempts
        self.seconds = seconds
        """To its end, and to its first byte."""
        self.first = first
        self.code = code
        self.bill = bill
        self.from_cache = from_cache
        self.resumed = resumed
        self.attempt_seconds = attempt_seconds
        """Of the attempt that answered, where there were several."""
        self.limit = limit
        """The limit that refused it, see `RateLimited`; empty for all else."""

    @property
    def kept(self) -> bool:
        """In the ledger."""
        return self.attempts > 0 or self.from_cache


class Lines:
    """Writes records down. What one has in common with the last, nearly always much, is not made again."""

    __slots__ = ("_asked", "_common", "_endpoint", "_key", "_model", "_provider")

    def __init__(self) -> None:
        self._key: Key | None = None
        self._endpoint = ""
        self._asked: str | None = None
        self._model: str | None = None
        self._provider: str | None = None
        self._common = b""

    def line(self, record: Record) -> bytes:
        """Without its last brace: the access log has a field more. In the order of an `Entry`, which is read faster."""
        bill, usage = record.bill, record.bill.usage
        usual = usage is not None and not (usage.cache_write_tokens or bill.guessed or record.from_cache)
        return (
            b'{"time":"%b","request_id":"%b","client_request_id":%b%b%b,%b,"cost_usd":%b,"latency_ms":%b,"ttfb_ms":%b%b'
            % (
                record.time.encode(),
                record.request_id.encode(),
                _text(record.client_request_id),
                self._of(record),
                _WELL
                if record.http_status == 200 and record.attempts == 1 and record.status == "ok"
                else _outcome(record),
                NO_TOKENS if usage is None else _tokens(usage, bill.guessed),
                NULL if bill.usd is None else _dollars(bill.usd),
                _millis(record.seconds),
                NULL if record.first is None else _millis(record.first),
                _PLAIN if usual and not record.resumed and record.code is None else _rest(record),
            )
        )

    def _of(self, record: Record) -> bytes:
        """What the lines of a key's requests for a model have in common."""
        if (
            record.key is not self._key
            or record.asked != self._asked
            or record.model != self._model
            or record.provider != self._provider
            or record.endpoint != self._endpoint
        ):
            self._key, self._endpoint, self._asked = record.key, record.endpoint, record.asked
            self._model, self._provider = record.model, record.provider
            self._common = _common(record.key, record.endpoint, record.asked, record.model, record.provider)
        return self._common


@functools.lru_cache(maxsize=1024)
def _common(key: Key, endpoint: str, asked: str | None, model: str | None, provider: str | None) -> bytes:
    fields = {
        "key_id": key.id,
        "key_name": key.name,
        "tags": key.tags,
        "endpoint": endpoint,
        "model_asked": asked,
        "model": model,
        "provider": provider,
    }
    return b"," + escaped(msgspec.json.encode(fields))[1:-1]


def escaped(line: bytes) -> bytes:
    """JSON with an escape for each character that would not be seen, or would change how a terminal shows the rest."""
    text = line.decode()
    if text.isprintable():
        return line
    parts = [letter if letter.isprintable() else _escape(letter) for letter in text]
    return "".join(parts).encode()


def _escape(letter: str) -> str:
    units = letter.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _text(text: str | None) -> bytes:
    """Of text that is known to be printable."""
    return NULL if text is None else msgspec.json.encode(text)


def _outcome(record: Record) -> bytes:
    return b',"attempts":%d,"status":"%b","http_status":%d' % (
        record.attempts,
        record.status.encode(),
        record.http_status,
    )


def _rest(record: Record) -> bytes:
    bill, usage = record.bill, record.bill.usage
    return b',"cache_write_tokens":%b,"estimated":%b,"from_cache":%b,"resumed":%d,"code":%b' % (
        NULL if usage is None else b"%d" % usage.cache_write_tokens,
        _JSON[bill.guessed],
        _JSON[record.from_cache],
        record.resumed,
        _text(record.code),
    )


def _tokens(usage: Usage, guessed: bool) -> bytes:
    completion = usage.completion_tokens
    return b'"prompt_tokens":%b,"cached_tokens":%b,"completion_tokens":%b,"reasoning_tokens":%b' % (
        _number(usage.prompt_tokens),
        _number(usage.cached_tokens),
        NULL if guessed and not completion else _number(completion),
        _number(usage.reasoning_tokens),
    )


def _number(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < _FEW else b"%d" % number


def _dollars(usd: float) -> bytes:
    """To nine places."""
    nanos = int(usd * 1e9 + 0.5)
    micros, rest = nanos // 1000, nanos % 1000
    millis, whole = micros // 1000, micros // 1_000_000
    return b"%b.%b%b%b" % (_number(whole), _THREE[millis % 1000], _THREE[micros % 1000], _THREE[rest])


def _millis(seconds: float) -> bytes:
    """To three places."""
    micros = int(seconds * 1e6 + 0.5)
    return b"%b.%b" % (_number(micros // 1000), _THREE[micros % 1000])
