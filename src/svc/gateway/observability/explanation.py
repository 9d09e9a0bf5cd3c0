"""Explains in sentences why a request was refused, failed or was slow, and what to do. No I/O.

`explanation_facts` and `svc.ledger_queries.explanation_facts` read what is needed. The API, the console and `svc why`
show the same sentences.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, Literal

import msgspec

from svc.gateway.observability.genai_names import operation_of
from svc.gateway.observability.refusals import RefusedRequest
from svc.ledger_queries.explanation_facts import LimitConsumer, ProviderPace, tokens_per_second
from svc.stores.database.base import AttemptDetail, LedgerEntry
from svc.wire.limit_state import LimitState
from svc.wire.usage import format_usd

SLOW_FACTOR: Final = 1.5
"""A request that took this many times the provider's median is called slow."""
REFUSED_GUIDE: Final = "how-to/find-out-why-a-request-got-429"
SLOW_GUIDE: Final = "how-to/find-out-why-a-request-is-slow"
ERRORS_GUIDE: Final = "reference/errors"

PhaseName = Literal["before_attempts", "earlier_attempts", "first_byte", "output"]


class TimePhase(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the time of a request. The phases follow each other."""

    name: PhaseName
    """`before_attempts`: limits, cache and other work before the first attempt, and pauses between attempts.
    `earlier_attempts`: attempts that did not give the response. `first_byte`: from the start of the last attempt to its
    first byte. `output`: the rest of the response."""
    ms: float
    """Milliseconds."""


class RequestTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a request went."""

    latency_ms: float
    """From the request's arrival to the end of the response."""
    ttfb_ms: float | None
    """From the request's arrival to the first byte of the response."""
    phases: list[TimePhase]
    """The parts of `latency_ms`."""
    attempts: list[AttemptDetail]
    """The attempts in the order of their ends."""
    tokens_per_second: float | None
    """Completion tokens divided by the time of the output. Null without tokens."""
    provider_p50: ProviderPace | None
    """The usual times at this provider. Null if there were too few other requests."""
    is_slow: bool
    """Whether a successful request took more than 1.5 times `latency_ms` of `provider_p50`."""


class RequestExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request ended as it did, or took that long."""

    object: str = "request.explanation"
    """Always `request.explanation`."""
    request_id: str
    """The gateway's request id."""
    status: str
    """`refused`, or the status in the ledger."""
    http_status: int
    """The HTTP status of the response."""
    code: str | None
    """The code of the error."""
    why: str
    """The reason in a sentence."""
    action: str
    """The action that solves the problem."""
    command: str | None
    """A command that does it. Null if none can."""
    limit: LimitState | None
    """The limit of the gateway that refused the request."""
    consumers: list[LimitConsumer]
    """The models whose requests used the limit, the largest use first."""
    other_refusals: int
    """Requests of the key that were refused in the same period. They count for `rpm`."""
    timing: RequestTiming | None
    """Null for a refused request."""
    guide: str
    """The page of the documentation."""


class LimitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The known facts about a limit that refused a request."""

    consumers: list[LimitConsumer] = []
    other_refusals: int = 0
    is_issued: bool = True
    """Whether the key is in the database, so that `svc keys change` can change it."""
    is_own: bool = True
    """Whether the key has the limit, and not `[limits]`."""


def explain_refused(refused: RefusedRequest, facts: LimitFacts) -> RequestExplanation:
    """Explain a request that reached no provider."""
    state = refused.limit_state
    if state is None:
        why, action, command = refused.message, _advise_refusal(refused.limit, refused.code), None
    else:
        why, action, command = _describe_limit(state, facts), _advise_limit(state, facts), _limit_command(state, facts)
    return RequestExplanation(
        request_id=refused.request_id,
        status=refused.status,
        http_status=refused.http_status,
        code=refused.code,
        why=why,
        action=action,
        command=command,
        limit=state,
        consumers=facts.consumers,
        other_refusals=facts.other_refusals,
        timing=None,
        guide=REFUSED_GUIDE if refused.http_status == 429 else ERRORS_GUIDE,
    )


# limits


def _describe_limit(state: LimitState, facts: LimitFacts) -> str:
    name = f"{'key' if state.scope == 'key' else 'ephemeral key'} {state.scope_id}"
    origin = "" if facts.is_own else ", from [limits] in svc.toml,"
    size, used = _amount(state.size, state.unit), _amount(state.used, state.unit)
    match state.name:
        case "concurrency":
            text = f"The limit of {name}{origin} is {size} (concurrency), and {state.running} were running."
        case "budget":
            period = "in total" if state.period == "total" else f"a {state.period}"
            text = f"The budget of {name} is {size} {period}. {used} were spent"
            text += f", and running requests reserved {_amount(state.reserved, 'USD')}." if state.reserved else "."
            text += f" This request could have cost {_amount(state.requested, 'USD')}." if state.requested else ""
        case "tpm":
            text = f"The limit of {name}{origin} is {size} per minute (tpm). {used} were used or reserved"
            text += f", {state.running} requests were running." if state.running else "."
            text += f" This request needed {_amount(state.requested, state.unit)}."
        case _:
            text = f"The limit of {name}{origin} is {size} per minute (rpm), and all of it was used."
    return f"{text} {_describe_refill(state)}"


def _describe_refill(state: LimitState) -> str:
    if state.name == "concurrency":
        return "There is room when a running request ends."
    if state.refill_seconds is not None:
        return f"There was room again after {_duration(state.refill_seconds)}."
    if state.name == "budget" and state.reserved and state.used + state.requested <= state.size:
        return "There is room when running requests cost less than they reserve."
    return "The budget does not refill."


def _advise_limit(state: LimitState, facts: LimitFacts) -> str:
    if state.scope == "ephemeral_key":
        return "Wait, or create the ephemeral key with a larger limit: it cannot be changed."
    match state.name:
        case "rpm":
            return f"Wait, send fewer requests, or raise {_limit_name('rpm', facts)}."
        case "tpm":
            name = _limit_name("tpm", facts)
            return f"Wait, set a smaller max_tokens, which running requests reserve, or raise {name}."
        case "concurrency":
            return f"Send fewer requests at the same time, or raise {_limit_name('concurrency', facts)}."
        case _:
            wait = "" if state.period == "total" else " wait for its next period,"
            return f"Raise {_limit_name('budget', facts)},{wait} or set a smaller max_tokens."


def _limit_name(name: str, facts: LimitFacts) -> str:
    return f"the key's {name}" if facts.is_issued else f"{name} in [limits] of svc.toml"


def _limit_command(state: LimitState, facts: LimitFacts) -> str | None:
    """Return a command that doubles the limit, or sets it to what would have sufficed if that is more."""
    if state.scope == "ephemeral_key" or not facts.is_issued:
        return None
    needed = max(2 * state.size, state.used + state.reserved + state.requested)
    value = f"{needed:.2f}" if state.name == "budget" else str(round(needed))
    return f"svc keys change {state.scope_id} --{'budget-usd' if state.name == 'budget' else state.name} {value}"


def _amount(value: float, unit: str) -> str:
    if unit == "USD":
        return f"${format_usd(value)}"
    return f"{value:g} {unit[:-1] if value == 1 else unit}" if value < 1e6 else f"{value:.0f} {unit}"


_REFUSAL_ACTIONS: Final = {
    "rate_limit_exceeded": "Wait for the seconds of the response header retry-after.",
    "authentication_error": "Send a valid key as bearer token or in x-api-key. `svc keys create` creates one.",
    "permission_denied": "Use a key with the scope that the message names, or change the key.",
    "model_not_found": "Choose a model of GET /v1/models, or allow it for the key.",
    "not_found": "Check the path, such as /v1 in the base URL.",
    "method_not_allowed": "Use a method of the response header allow.",
    "invalid_request": "Correct the field that the message names.",
    "insufficient_storage": "Free space on the disk of the gateway.",
    "internal_error": "Look in the log of the gateway for the request id, and for errors of Redis or the database.",
}
_UPSTREAM_ACTION: Final = "Wait, add another account of the provider, or configure routing.fallbacks."
_OTHER_ACTION: Final = "Look up the request id in the log of the gateway."


_QUEUE_ACTION: Final = "Wait, send fewer requests at the same time, or raise max_queue in [local] or [speech]."


def _advise_refusal(limit: str | None, code: str | None) -> str:
    if limit == "queue":
        return _QUEUE_ACTION
    return _UPSTREAM_ACTION if limit == "upstream" else _REFUSAL_ACTIONS.get(code or "", _OTHER_ACTION)


# requests with an entry


def explain_entry(
    entry: LedgerEntry, attempts: list[AttemptDetail], provider_p50: ProviderPace | None
) -> RequestExplanation:
    """Explain a request that is in the ledger. `attempts` has an object for each attempt."""
    timing = measure(entry, attempts, provider_p50)
    why, action = _explain_end(entry)
    if entry.status == "ok":
        slow_why, slow_action = _explain_time(entry, timing)
        why, action = (f"{why} {slow_why}", slow_action or action) if why else (slow_why, slow_action)
    return RequestExplanation(
        request_id=entry.request_id,
        status=entry.status,
        http_status=entry.http_status,
        code=entry.code,
        why=why,
        action=action,
        command=None,
        limit=None,
        consumers=[],
        other_refusals=0,
        timing=timing,
        guide=REFUSED_GUIDE if entry.http_status == 429 else SLOW_GUIDE,
    )


def measure(entry: LedgerEntry, attempts: list[AttemptDetail], provider_p50: ProviderPace | None) -> RequestTiming:
    """Return where the time went."""
    total = entry.latency_ms
    first_byte = total if entry.ttfb_ms is None else entry.ttfb_ms
    last = attempts[-1].ms if attempts else 0.0
    last_start = max(0.0, total - last)
    if len(attempts) > 1:
        before = max(0.0, last_start - sum(attempt.ms for attempt in attempts[:-1]))
        earlier = last_start - before
    else:
        before, earlier = last_start, 0.0
    phases = [
        TimePhase(name="before_attempts", ms=round(before, 3)),
        TimePhase(name="earlier_attempts", ms=round(earlier, 3)),
        TimePhase(name="first_byte", ms=round(max(0.0, first_byte - last_start), 3)),
        TimePhase(name="output", ms=round(max(0.0, total - max(first_byte, last_start)), 3)),
    ]
    is_slow = (
        provider_p50 is not None
        and entry.status == "ok"
        and not entry.from_cache
        and not _is_session(entry)
        and total > SLOW_FACTOR * provider_p50.latency_ms
    )
    return RequestTiming(
        latency_ms=total,
        ttfb_ms=entry.ttfb_ms,
        phases=phases,
        attempts=attempts,
        tokens_per_second=tokens_per_second(entry),
        provider_p50=provider_p50,
        is_slow=is_slow,
    )


def _explain_time(entry: LedgerEntry, timing: RequestTiming) -> tuple[str, str]:
    """Return the reason for the duration of a complete response, and the action."""
    if _is_session(entry):
        return f"The live session lasted {_milliseconds(timing.latency_ms)}.", ""
    usual = timing.provider_p50
    text = f"The request took {_milliseconds(timing.latency_ms)}"
    if usual is None:
        text += "."
    else:
        text += (
            f". The median of {usual.requests} other requests for {entry.model} at {entry.provider} in that hour is "
            f"{_milliseconds(usual.latency_ms)}."
        )
    if entry.from_cache or not timing.attempts:
        return text, ""
    largest = max(timing.phases, key=lambda phase: phase.ms)
    shown = _milliseconds(largest.ms)
    match largest.name:
        case "before_attempts":
            if len(timing.attempts) > 1:
                text += f" {shown} of it passed before and between the attempts."
                action = "Retries pause before the next attempt: lower routing.retries, or configure routing.fallbacks."
                return text, action
            text += f" {shown} of it passed before the first attempt."
            action = "Check Redis and the database that hold the limits, and the load of the gateway: svc doctor."
        case "earlier_attempts":
            failed = [f"{each.provider} ({each.code or each.outcome})" for each in timing.attempts[:-1]]
            text += f" {shown} of it went to earlier attempts: {', '.join(failed[:5])}."
            action = "Lower first_byte_timeout or connect_timeout, set hedge_after, or put this provider last."
        case "first_byte":
            more, action = _explain_first_byte(entry, timing, largest.ms)
            text += more
        case _ if not _has_text(entry):
            text += f" {shown} of it was the response."
            action = "Send less at once, choose a faster model, or check that the client reads fast enough."
        case _:
            text += f" {shown} of it was output: {entry.completion_tokens or 0} tokens"
            pace = timing.tokens_per_second
            text += f" at {pace:g} tokens/s." if pace is not None else "."
            if usual is not None and usual.tokens_per_second is not None and pace is not None:
                text += f" The median is {usual.tokens_per_second:g} tokens/s."
            action = "Set a smaller max_tokens, choose a faster model, or check that the client reads fast enough."
    return text, action if timing.is_slow or usual is None else f"{action} It is not slower than usual."


def _explain_first_byte(entry: LedgerEntry, timing: RequestTiming, ms: float) -> tuple[str, str]:
    usual = timing.provider_p50
    text = f" {_milliseconds(ms)} of it passed until the first byte of {entry.provider}."
    if usual is not None and ms > SLOW_FACTOR * usual.ttfb_ms:
        text += " That is late for this provider."
    action = "Send less at once, or choose a faster model."
    if _has_text(entry):
        action = "Stream the response, shorten the prompt, or set hedge_after for another provider."
    if _has_text(entry) and entry.completion_tokens and ms > 0.95 * timing.latency_ms:
        text += f" Without a stream, that includes the output: {entry.completion_tokens} tokens."
        action = "Stream the response, set a smaller max_tokens, or choose a faster model."
    connect_ms = timing.attempts[-1].connect_ms or 0.0
    if connect_ms > ms / 2:
        text += f" A new connection took {_milliseconds(connect_ms)} of that."
        action = "Check DNS, the proxy and the network on the way to the provider: svc doctor."
    return text, action


def _has_text(entry: LedgerEntry) -> bool:
    """Return whether the response is text of a model, whose length and stream the client chooses."""
    return operation_of(entry.endpoint) == "chat"


def _is_session(entry: LedgerEntry) -> bool:
    """Return whether it is a live speech session. The client decides how long it lasts."""
    return entry.http_status == HTTPStatus.SWITCHING_PROTOCOLS


def _explain_end(entry: LedgerEntry) -> tuple[str, str]:
    provider = entry.provider or "the provider"
    match entry.status:
        case "cut":
            return (
                f"The stream from {provider} was interrupted after its first part had been sent to the client.",
                "Send the request again. With [routing] resume, another backend continues interrupted streams.",
            )
        case "client_closed":
            return (
                f"The client closed the connection after {_milliseconds(entry.latency_ms)}, "
                "before the response was complete.",
                "If this was not intended, raise the client's timeout, and check proxies before the gateway.",
            )
        case "ok":
            if entry.from_cache:
                return "The response came from the gateway's cache.", "It cost no tokens."
            if entry.resumed:
                return "The stream was interrupted, and another backend continued it.", ""
            return (f"The request needed {entry.attempts} attempts.", "") if entry.attempts > 1 else ("", "")
        case _:
            return _explain_error(entry, provider)


def _explain_error(entry: LedgerEntry, provider: str) -> tuple[str, str]:
    if not entry.attempts:
        code = f" ({entry.code})" if entry.code else ""
        return (
            f"The gateway refused the request with status {entry.http_status}{code}.",
            _advise_refusal(None, entry.code),
        )
    attempts = "The only attempt" if entry.attempts == 1 else f"All {entry.attempts} attempts"
    match entry.code:
        case "rate_limit_exceeded":
            return f"{attempts} failed: the rate limit of {provider} is reached (upstream).", _UPSTREAM_ACTION
        case "invalid_request":
            return (
                f"{provider} rejected the request as invalid.",
                "Correct the request: the response's error message names the field.",
            )
        case "model_not_found":
            return f"{provider} does not know the model.", "Choose a model of GET /v1/models."
        case "authentication_error" | "permission_denied":
            return f"{provider} rejected the gateway's own key.", "Check the provider's key: svc doctor."
        case _:
            return (
                f"{attempts} failed: {provider} could not be reached, timed out, or failed.",
                "Retry later, or configure routing.fallbacks. The log of the gateway names the cause.",
            )


def _milliseconds(ms: float) -> str:
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms:.0f} ms"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
