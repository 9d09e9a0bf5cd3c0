"""The record of a completed request, and its encoding as a line of the journal and of the access log.

The line is a `LedgerEntry` in JSON. This module encodes it without msgspec, because most of the text repeats from
line to line. `make ledger` generates the code between `begin` and `end` from `stores/database/ledger_fields.toml`.
To change a field, edit that table. A test fails while the generated code is outdated.
"""

from __future__ import annotations

import functools
from typing import Final, Literal

import msgspec

from svc.gateway.accounting.bill import EMPTY_BILL, Bill
from svc.wire.key import ApiKey
from svc.wire.limit_state import LimitState
from svc.wire.usage import TokenUsage

RequestStatus = Literal["ok", "error", "cut", "client_closed"]
AttemptOutcome = Literal["ok", "failed", "abandoned", "hedge_loss"]
ATTEMPT_OUTCOME_LABELS: Final = {"ok": "ok", "failed": "error", "abandoned": "cancelled", "hedge_loss": "cancelled"}
"""The names of outcomes in metrics and in the ledger."""
JSON_NULL: Final = b"null"
_JSON_BOOLEANS: Final = (b"false", b"true")
_SMALL_NUMBER_COUNT: Final = 1000
_SMALL_NUMBERS: Final = tuple(b"%d" % number for number in range(_SMALL_NUMBER_COUNT))
"""Precomputed, because each line needs some."""
_THOUSANDTHS: Final = tuple(b".%03d" % number for number in range(1000))
_MAX_TABLE_MICROSECONDS: Final = _SMALL_NUMBER_COUNT * 1000


class AttemptRecord:
    """One finished attempt of a request at a provider.

    `abandoned`: the gateway cancelled it, because the client disconnected or the request failed.
    `hedge_loss`: the other one of two parallel attempts responded first.
    """

    __slots__ = (
        "account",
        "code",
        "connect_seconds",
        "duration_ms",
        "ended_at",
        "http_status",
        "is_retry",
        "is_timed",
        "model",
        "outcome",
        "provider",
        "request_id",
    )

    account: int | None
    """The number of the provider's account, from 1, or None if the provider has one account."""
    code: str | None
    """The code of the error, if the attempt failed."""
    connect_seconds: float | None
    """Seconds until a new connection was open, or None if there was no new one."""
    ended_at: float
    """Loop time in seconds, or 0 if the attempt ended with the request."""
    http_status: int | None
    """The status of the provider's response, or None if there was none."""
    is_retry: bool
    """Whether the request had attempts before this one."""
    is_timed: bool
    """Whether the duration is a latency. The client determines the duration of live speech."""

    def __init__(
        self,
        request_id: str,
        provider: str,
        model: str,
        account: int | None,
        outcome: AttemptOutcome,
        code: str | None,
        http_status: int | None,
        duration_ms: float,
        *,
        is_retry: bool = False,
        is_timed: bool = True,
        ended_at: float = 0.0,
        connect_seconds: float | None = None,
    ) -> None:
        self.request_id = request_id
        self.provider = provider
        self.model = model
        self.account = account
        self.outcome = outcome
        self.code = code
        self.http_status = http_status
        self.duration_ms = duration_ms
        self.is_retry = is_retry
        self.is_timed = is_timed
        self.ended_at = ended_at
        self.connect_seconds = connect_seconds


class RequestRecord:
    """One completed request. The ledger keeps only requests with an upstream attempt or a cache hit."""

    # begin: request record, from ledger_fields.toml by `make ledger`
    __slots__ = (
        "attempt_count",
        "attempt_records",
        "bill",
        "client_field",
        "client_request_id",
        "code",
        "duration_seconds",
        "endpoint",
        "error_message",
        "first_byte_seconds",
        "from_cache",
        "http_status",
        "is_timed",
        "key",
        "last_attempt",
        "limit_name",
        "limit_state",
        "line",
        "model",
        "provider",
        "request_id",
        "requested_model",
        "resume_count",
        "status",
        "time",
        "trace_context",
        "upstream_request_id",
    )

    limit_name: str
    """The limit that rejected the request (see `RateLimited`), or empty."""
    limit_state: LimitState | None
    """The use of that limit of the key. None for other limits."""
    error_message: str
    """The message of the error that ended the request, or empty."""
    last_attempt: AttemptRecord | None
    """The last attempt that ended, if an observer needs attempts."""
    trace_context: bytes
    """The header lines of the client's trace, or empty."""
    client_field: bytes
    """The end of the access log line, see `encode_client_field`."""
    is_timed: bool
    """Whether the duration is a latency. The client determines the duration of live speech."""
    line: bytes
    """The encoded record, set by the first observer that needs it."""

    def __init__(
        self,
        key: ApiKey,
        endpoint: str,
        requested_model: str | None,
        status: RequestStatus,
        http_status: int,
        *,
        time: str,
        request_id: str,
        client_request_id: str | None,
        model: str | None,
        provider: str | None,
        attempt_count: int,
        duration_seconds: float,
        first_byte_seconds: float | None,
        bill: Bill = EMPTY_BILL,
        from_cache: bool = False,
        resume_count: int = 0,
        code: str | None = None,
        attempt_records: tuple[AttemptRecord, ...] = (),
        upstream_request_id: str | None = None,
        limit_name: str = "",
        limit_state: LimitState | None = None,
        error_message: str = "",
        last_attempt: AttemptRecord | None = None,
        trace_context: bytes = b"",
        client_field: bytes = b"",
        is_timed: bool = True,
    ) -> None:
        self.key = key
        self.endpoint = endpoint
        self.requested_model = requested_model
        self.status = status
        self.http_status = http_status
        self.time = time
        self.request_id = request_id
        self.client_request_id = client_request_id
        self.model = model
        self.provider = provider
        self.attempt_count = attempt_count
        self.duration_seconds = duration_seconds
        self.first_byte_seconds = first_byte_seconds
        self.bill = bill
        self.from_cache = from_cache
        self.resume_count = resume_count
        self.code = code
        self.attempt_records = attempt_records
        self.upstream_request_id = upstream_request_id
        self.limit_name = limit_name
        self.limit_state = limit_state
        self.error_message = error_message
        self.last_attempt = last_attempt
        self.trace_context = trace_context
        self.client_field = client_field
        self.is_timed = is_timed
        self.line = b""

    # end: request record


# begin: encoder, from ledger_fields.toml by `make ledger`
_USUAL_ATTEMPTS_TO_HTTP_STATUS: Final = b',"attempts":1,"status":"ok","http_status":200'
_NULL_PROMPT_TOKENS_TO_REASONING_TOKENS: Final = (
    b',"prompt_tokens":null,"cached_tokens":null,"completion_tokens":null,"reasoning_tokens":null'
)
_USUAL_CACHE_WRITE_TOKENS_TO_EPHEMERAL_ID: Final = (
    b',"cache_write_tokens":0,"estimated":false,"from_cache":false,"resumed":0,"code":null,"attempts_detail":null'
    b',"ephemeral_id":null'
)
_USUAL_CACHE_WRITE_1H_TOKENS_TO_COMPLETION_IMAGE_TOKENS: Final = (
    b',"cache_write_1h_tokens":0,"prompt_audio_tokens":0,"prompt_image_tokens":0,"completion_audio_tokens":0'
    b',"completion_image_tokens":0'
)


def encode_record(record: RequestRecord) -> bytes:
    """Return the JSON object without its closing brace, because the access log appends fields.

    Fields are in the order of LedgerEntry, which makes decoding faster.
    """
    bill, usage = record.bill, record.bill.usage
    return (
        b'{"time":"%b"'
        b',"request_id":"%b"'
        b',"client_request_id":%b'
        b"%b"
        b"%b"
        b"%b"
        b',"cost_usd":%b'
        b',"latency_ms":%b'
        b',"ttfb_ms":%b'
        b"%b"
        b',"upstream_request_id":%b'
        b"%b"
    ) % (
        record.time.encode(),
        record.request_id.encode(),
        _encode_text(record.client_request_id),
        _encode_shared_fields(record.key, record.endpoint, record.requested_model, record.model, record.provider),
        _USUAL_ATTEMPTS_TO_HTTP_STATUS
        if record.attempt_count == 1 and record.status == "ok" and record.http_status == 200
        else _encode_attempts_to_http_status(record),
        _NULL_PROMPT_TOKENS_TO_REASONING_TOKENS
        if usage is None
        else _encode_prompt_tokens_to_reasoning_tokens(usage, bill),
        JSON_NULL if bill.cost_usd is None else _encode_usd(bill.cost_usd),
        _encode_milliseconds(record.duration_seconds),
        JSON_NULL if record.first_byte_seconds is None else _encode_milliseconds(record.first_byte_seconds),
        _USUAL_CACHE_WRITE_TOKENS_TO_EPHEMERAL_ID
        if usage is not None
        and not usage.cache_write_tokens
        and not bill.is_estimated
        and not record.from_cache
        and not record.resume_count
        and record.code is None
        and not record.attempt_records
        and record.key.ephemeral_id is None
        else _encode_cache_write_tokens_to_ephemeral_id(record),
        _encode_text(record.upstream_request_id),
        _USUAL_CACHE_WRITE_1H_TOKENS_TO_COMPLETION_IMAGE_TOKENS
        if usage is not None and not usage.special_tokens
        else _encode_cache_write_1h_tokens_to_completion_image_tokens(record),
    )


def _encode_attempts_to_http_status(record: RequestRecord) -> bytes:
    return b',"attempts":%d,"status":"%b","http_status":%d' % (
        record.attempt_count,
        record.status.encode(),
        record.http_status,
    )


def _encode_prompt_tokens_to_reasoning_tokens(usage: TokenUsage, bill: Bill) -> bytes:
    return b',"prompt_tokens":%b,"cached_tokens":%b,"completion_tokens":%b,"reasoning_tokens":%b' % (
        _encode_number(usage.prompt_tokens),
        _encode_number(usage.cached_tokens),
        JSON_NULL if bill.is_estimated and not usage.completion_tokens else _encode_number(usage.completion_tokens),
        _encode_number(usage.reasoning_tokens),
    )


def _encode_cache_write_tokens_to_ephemeral_id(record: RequestRecord) -> bytes:
    bill = record.bill
    usage = record.bill.usage
    return (
        b',"cache_write_tokens":%b'
        b',"estimated":%b'
        b',"from_cache":%b'
        b',"resumed":%d'
        b',"code":%b'
        b',"attempts_detail":%b'
        b',"ephemeral_id":%b'
        % (
            JSON_NULL if usage is None else _encode_number(usage.cache_write_tokens),
            _JSON_BOOLEANS[bill.is_estimated],
            _JSON_BOOLEANS[record.from_cache],
            record.resume_count,
            _encode_text(record.code),
            _encode_attempts(record.attempt_records),
            _encode_text(record.key.ephemeral_id),
        )
    )


def _encode_cache_write_1h_tokens_to_completion_image_tokens(record: RequestRecord) -> bytes:
    usage = record.bill.usage
    return (
        b',"cache_write_1h_tokens":%b'
        b',"prompt_audio_tokens":%b'
        b',"prompt_image_tokens":%b'
        b',"completion_audio_tokens":%b'
        b',"completion_image_tokens":%b'
        % (
            JSON_NULL if usage is None else _encode_number(usage.cache_write_1h_tokens),
            JSON_NULL if usage is None else _encode_number(usage.prompt_audio_tokens),
            JSON_NULL if usage is None else _encode_number(usage.prompt_image_tokens),
            JSON_NULL if usage is None else _encode_number(usage.completion_audio_tokens),
            JSON_NULL if usage is None else _encode_number(usage.completion_image_tokens),
        )
    )


@functools.lru_cache(maxsize=1024)
def _encode_shared_fields(
    key: ApiKey, endpoint: str, requested_model: str | None, model: str | None, provider: str | None
) -> bytes:
    fields = {
        "key_id": key.id,
        "key_name": key.name,
        "tags": key.tags,
        "endpoint": endpoint,
        "model_asked": requested_model,
        "model": model,
        "provider": provider,
    }
    return b"," + escape_unprintable(msgspec.json.encode(fields))[1:-1]


# end: encoder


def escape_unprintable(line: bytes) -> bytes:
    """Escape unprintable characters in a line of JSON, such as terminal control characters."""
    text = line.decode()
    if text.isprintable():
        return line
    parts = [character if character.isprintable() else _unicode_escape(character) for character in text]
    return "".join(parts).encode()


def _unicode_escape(character: str) -> str:
    hex_units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{hex_units[start : start + 4]}" for start in range(0, len(hex_units), 4))


def _encode_text(text: str | None) -> bytes:
    """Encode printable text as JSON, and None as null."""
    return JSON_NULL if text is None else msgspec.json.encode(text)


def _encode_attempts(records: tuple[AttemptRecord, ...]) -> bytes:
    """Encode attempts as a JSON array, or null for none: other fields describe a single successful attempt."""
    if not records:
        return JSON_NULL
    return escape_unprintable(b"[%b]" % b",".join([_encode_attempt(record) for record in records]))


# begin: attempt encoder, from ledger_fields.toml by `make ledger`
def _encode_attempt(record: AttemptRecord) -> bytes:
    return b'{"provider":%b,"model":%b,"outcome":"%b","code":%b,"ms":%b,"connect_ms":%b}' % (
        _encode_text(record.provider),
        _encode_text(record.model),
        ATTEMPT_OUTCOME_LABELS[record.outcome].encode(),
        _encode_text(record.code),
        _encode_milliseconds(record.duration_ms / 1000),
        JSON_NULL if record.connect_seconds is None else _encode_milliseconds(record.connect_seconds),
    )


# end: attempt encoder


def _encode_number(number: int) -> bytes:
    return _SMALL_NUMBERS[number] if 0 <= number < _SMALL_NUMBER_COUNT else b"%d" % number


def _encode_usd(usd: float) -> bytes:
    """Encode USD with nine decimal places."""
    return b"%.9f" % usd


def _encode_milliseconds(seconds: float) -> bytes:
    """Encode seconds as milliseconds with three decimal places."""
    microseconds = int(seconds * 1_000_000 + 0.5)
    if not 0 <= microseconds < _MAX_TABLE_MICROSECONDS:
        return b"%.3f" % (seconds * 1000)
    return _SMALL_NUMBERS[microseconds // 1000] + _THOUSANDTHS[microseconds % 1000]
