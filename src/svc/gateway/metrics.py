"""What an operator watches: counters and histograms in Prometheus' text form. Names: docs/reference/metrics.md.

    note ── one look-up and a few additions for an ended answer
    Board ── each worker lays its numbers down once a second; whoever is asked adds them all up

Labels are bounded: providers and models come from the catalog, codes and statuses from our own lists; a series beyond
MAX_SERIES is counted under "other".
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from svc.gateway.attempt_counts import AttemptCount, AttemptCounts, bucket_of
from svc.gateway.healing.breaker import State, worst
from svc.gateway.record import Record
from svc.gateway.series import BUCKETS, AttemptSeries, Page, Series

MAX_SERIES: Final = 2000
LIMITS: Final = ("rpm", "tpm", "concurrency", "budget", "upstream")
STALE_SECONDS: Final = 5.0
HELP: Final = {
    "svc_requests_total": ("counter", "Ended requests, by provider, model, status and HTTP status."),
    "svc_errors_total": ("counter", "Answers and streams that ended with an error, by its code, whatever was asked."),
    "svc_request_seconds": ("histogram", "From the request's arrival to the answer's last byte; without live speech."),
    "svc_first_byte_seconds": ("histogram", "From the request's arrival to the answer's first byte."),
    "svc_prompt_tokens_total": ("counter", "Tokens of prompts."),
    "svc_completion_tokens_total": ("counter", "Tokens of completions."),
    "svc_cost_usd_total": ("counter", "USD, where the price is known."),
    "svc_attempts_total": ("counter", "Attempts at a provider, by provider, model, outcome and code."),
    "svc_attempt_seconds": ("histogram", "From an attempt's start to its end, by provider, model and outcome."),
    "svc_retries_total": ("counter", "Attempts after a request's first, under the target that they went to."),
    "svc_fallbacks_total": ("counter", "Requests that another model answered than the one asked for."),
    "svc_limits_reached_total": ("counter", "Requests refused by a limit: rpm, tpm, concurrency, budget, upstream."),
    "svc_cache_hits_total": ("counter", "Requests answered from the cache."),
    "svc_cache_misses_total": ("counter", "Requests whose answer was not in the cache."),
    "svc_cache_bytes": ("gauge", "Bytes that kept answers take in memory."),
    "svc_breaker_open": ("gauge", "1 while a target is left alone because it fails."),
    "svc_open_requests": ("gauge", "Requests that are being answered."),
    "svc_open_streams": ("gauge", "Streams of chats that are being sent."),
    "svc_open_connections": ("gauge", "Connections of clients."),
    "svc_upstream_connections": ("gauge", "Connections to providers."),
    "svc_tasks": ("gauge", "Tasks of the event loop; there is none per request."),
    "svc_journal_lag_seconds": ("gauge", "Since everything was last taken from the journal into the database."),
    "svc_journals_left_alone": ("gauge", "Journals in the folder that may not be opened: another user's."),
    "svc_journal_lost_total": ("counter", "Entries for which there was no room anywhere."),
    "svc_log_lines_dropped_total": ("counter", "Access-log lines for which the reader was too slow."),
    "svc_speech_sessions": ("gauge", "Live speech sessions that are open."),
    "svc_speech_requests_total": ("counter", "Speech that was begun, by kind: stream or upload."),
    "svc_speech_errors_total": ("counter", "Errors that speech clients were told, by code."),
    "svc_speech_audio_seconds_total": ("counter", "Seconds of audio that models were given."),
    "svc_speech_workers": ("gauge", "Speech worker processes that run."),
    "svc_speech_workers_lost_total": ("counter", "Speech workers that died under sessions."),
    "svc_degraded": ("gauge", "1 while something is not as it should be, by what."),
}


class Counts:
    """What is counted for one provider, model, status and HTTP status, while it is counted."""

    __slots__ = (
        "answered",
        "completion_tokens",
        "cost_usd",
        "fallbacks",
        "first",
        "first_seconds",
        "http_status",
        "latency",
        "model",
        "prompt_tokens",
        "provider",
        "requests",
        "seconds",
        "status",
    )

    def __init__(self, provider: str, model: str, status: str, http_status: int) -> None:
        self.provider = provider
        self.model = model
        self.status = status
        self.http_status = http_status
        self.requests = 0
        self.seconds = 0.0
        self.first_seconds = 0.0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cost_usd = 0.0
        self.fallbacks = 0
        self.latency = [0] * (len(BUCKETS) + 1)
        self.first = [0] * (len(BUCKETS) + 1)
        self.answered: AttemptCount | None = None
        """The attempts that answered these requests."""

    def are(self, provider: str, model: str, status: str, http_status: int) -> bool:
        """Of these."""
        return (
            self.http_status == http_status
            and self.status == status
            and self.model == model
            and self.provider == provider
        )

    def series(self) -> Series:
        """As others read it."""
        return Series(
            (self.provider, self.model, self.status, str(self.http_status)),
            self.requests,
            self.seconds,
            self.first_seconds,
            self.prompt_tokens,
            self.completion_tokens,
            self.cost_usd,
            self.fallbacks,
            self.latency,
            self.first,
        )


class Metrics:
    """Of this process."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str, int], Counts] = {}
        self._last: Counts | None = None
        """What was counted last, which is nearly always what comes next."""
        self.attempts = AttemptCounts()
        self.errors: dict[str, int] = {}
        """By code."""
        self.limits: dict[str, int] = dict.fromkeys(LIMITS, 0)
        """Requests that each limit refused."""

    def count_error(self, code: str | None) -> None:
        """Nothing for None."""
        if code is not None:
            self.errors[code] = self.errors.get(code, 0) + 1

    def count_limit(self, limit: str) -> None:
        """A request was refused by a limit of this name."""
        self.limits[limit] = self.limits.get(limit, 0) + 1

    def note(self, record: Record, timed: bool = True) -> None:
        """Counts an ended answer; without its times unless they tell how fast we are."""
        counts = self._of(record.provider or "", record.model or "", record.status, record.http_status)
        counts.requests += 1
        bucket = 0
        if timed:
            bucket = bucket_of(record.seconds)
            counts.seconds += record.seconds
            counts.latency[bucket] += 1
        if timed and record.first is not None:
            counts.first_seconds += record.first
            counts.first[bucket_of(record.first)] += 1
        if record.code is not None:
            self.count_error(record.code)
            if record.limit:
                self.count_limit(record.limit)
        attempts, usage = record.attempts, record.bill.usage
        if attempts:
            if usage is not None:
                counts.prompt_tokens += usage.prompt_tokens
                counts.completion_tokens += usage.completion_tokens
            counts.cost_usd += record.bill.usd or 0.0
            counts.fallbacks += record.model != record.asked
            if record.status == "ok":  # all other attempts are counted when they end, see `tries`
                answered = counts.answered
                if answered is None:
                    answered = counts.answered = self.attempts.of(counts.provider, counts.model, "ok")
                if not timed:
                    answered.attempts += 1
                elif attempts > 1:
                    answered.add(record.attempt_seconds)
                else:
                    answered.attempts += 1
                    answered.seconds += record.seconds
                    answered.latency[bucket] += 1

    def _of(self, provider: str, model: str, status: str, http_status: int) -> Counts:
        last = self._last
        if last is None or not last.are(provider, model, status, http_status):
            last = self._last = self._find((provider, model, status, http_status))
        return last

    def _find(self, at: tuple[str, str, str, int]) -> Counts:
        found = self._series.get(at)
        if found is not None:
            return found
        if len(self._series) >= MAX_SERIES:
            at = ("other", "other", at[2], at[3])
        return self._series.setdefault(at, Counts(*at))

    def page(self, values: dict[str, float], breakers: dict[str, State]) -> Page:
        """What is counted, with the numbers that others keep."""
        series = [counts.series() for counts in self._series.values()]
        retries = {
            f"svc_retries_total{{{_names(*target)}}}": float(count) for target, count in self.attempts.retries.items()
        }
        return Page(series, self.attempts.series(), {**values, **retries}, breakers)


class Board:
    """A folder in which each worker lays down its page; None: there is one process alone."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"metrics-{name}.json" if folder else None

    def put(self, page: Page) -> None:
        """Blocking, but short: some kilobytes, once a second."""
        if self._path is not None:
            part = self._path.with_suffix(".part")
            with contextlib.suppress(OSError):
                part.write_bytes(msgspec.json.encode(page))
                part.replace(self._path)

    def total(self, own: Page) -> Page:
        """The sum over all workers."""
        pages = [own, *self._others()]
        series: dict[tuple[str, str, str, str], Series] = {}
        attempts: dict[tuple[str, str, str, str], AttemptSeries] = {}
        values: dict[str, float] = {}
        breakers: dict[str, State] = {}
        for page in pages:
            for name, state in page.breakers.items():
                breakers[name] = worst((state, breakers.get(name, "closed")))
            for each in page.series:
                if each.labels in series:
                    series[each.labels].add(each)
                else:
                    series[each.labels] = msgspec.convert(msgspec.to_builtins(each), Series)
            for one in page.attempts:
                attempts.setdefault(one.labels, AttemptSeries(one.labels)).add(one)
            for name, value in page.values.items():
                most = any(part in name for part in ("_lag_", "_degraded", "_breaker_"))
                values[name] = max(values.get(name, 0.0), value) if most else values.get(name, 0.0) + value
        return Page(list(series.values()), list(attempts.values()), values, breakers)

    def _others(self) -> Iterable[Page]:
        if self._folder is None:
            return
        for path in self._folder.glob("metrics-*.json"):
            if path != self._path:
                with contextlib.suppress(OSError, msgspec.MsgspecError):
                    page = msgspec.json.decode(path.read_bytes(), type=Page)
                    if time.time() - path.stat().st_mtime > STALE_SECONDS:  # it has left: its counters stay
                        page.values = {name: value for name, value in page.values.items() if "_total" in name}
                        page.breakers = {}
                    yield page


def text(page: Page) -> str:
    """Prometheus' text form, version 0.0.4."""
    lines: list[str] = []
    for name, (kind, what) in HELP.items():
        rows = list(_rows(name, page))
        if rows:
            lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}", *rows]
    return "\n".join(lines) + "\n"


_FIELDS: Final = {
    "svc_prompt_tokens_total": "prompt_tokens",
    "svc_completion_tokens_total": "completion_tokens",
    "svc_cost_usd_total": "cost_usd",
    "svc_fallbacks_total": "fallbacks",
}


def _rows(name: str, page: Page) -> Iterable[str]:
    if name == "svc_requests_total":
        for each in page.series:
            provider, model, status, http = each.labels
            labels = f'{_names(provider, model)},status="{status}",http_status="{http}"'
            yield f"{name}{{{labels}}} {each.requests}"
    elif name in ("svc_request_seconds", "svc_first_byte_seconds"):
        for (provider, model), each in _by_target(page).items():
            first = name == "svc_first_byte_seconds"
            counts, total = (each.first, each.first_seconds) if first else (each.latency, each.seconds)
            yield from _histogram(name, _names(provider, model), counts, total)
    elif name in ("svc_attempts_total", "svc_attempt_seconds"):
        yield from _attempt_rows(name, page)
    elif name in _FIELDS:
        for (provider, model), each in _by_target(page).items():
            if provider:
                yield f"{name}{{{_names(provider, model)}}} {getattr(each, _FIELDS[name]):.10g}"
    else:
        for full, value in page.values.items():
            if full.partition("{")[0] == name:
                yield f"{full} {value:.10g}"


def _attempt_rows(name: str, page: Page) -> Iterable[str]:
    if name == "svc_attempts_total":
        for each in page.attempts:
            provider, model, outcome, code = each.labels
            labels = f'{_names(provider, model)},outcome="{outcome}"' + (f',code="{code}"' if code else "")
            yield f"{name}{{{labels}}} {each.attempts}"
        return
    found: dict[tuple[str, str, str], AttemptSeries] = {}
    for each in page.attempts:
        found.setdefault(each.labels[:3], AttemptSeries(each.labels)).add(each)
    for (provider, model, outcome), each in found.items():
        labels = f'{_names(provider, model)},outcome="{outcome}"'
        yield from _histogram(name, labels, each.latency, each.seconds)


def _by_target(page: Page) -> dict[tuple[str, str], Series]:
    found: dict[tuple[str, str], Series] = {}
    for each in page.series:
        at = each.labels[:2]
        found.setdefault(at, Series((*at, "", ""))).add(each)
    return found


def _histogram(name: str, labels: str, counts: list[int], total: float) -> Iterable[str]:
    running = 0
    for limit, count in zip((*BUCKETS, None), counts, strict=True):
        running += count
        mark = "+Inf" if limit is None else f"{limit:g}"
        yield f'{name}_bucket{{{labels},le="{mark}"}} {running}'
    yield f"{name}_sum{{{labels}}} {total:.10g}"
    yield f"{name}_count{{{labels}}} {running}"


def _names(provider: str, model: str) -> str:
    return f'provider="{_escaped(provider)}",model="{_escaped(model)}"'


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
