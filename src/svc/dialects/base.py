"""What a dialect is: a wire format, as clients speak it to us and as upstreams speak it with us. No I/O.

    client ── head/read_request ──> hub form ── write_request ──> upstream
    client <── write_answer ── hub form <── read_answer ── upstream            (JSON)
    client <── writer ── deltas <── reader ── events ── upstream               (stream)

The same dialect on both sides does not go through the hub: `pass_request`, `pass_answer` and `pass_stream` look at
the few fields that matter and hand the bytes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from svc.dialects.chunks import KnownChunks
from svc.dialects.flow import Pipe
from svc.errors import SvcError, UpstreamError
from svc.wire.chat import Answer, ChatRequest, Delta, FinishReason, Quirks
from svc.wire.usage import Usage


class Target:
    """What a dialect must know of the place a request goes to; `model` is the model's name at the upstream."""

    __slots__ = ("known", "max_output_tokens", "mends", "model", "quirks", "stream_usage")

    def __init__(self, model: str, *, max_output_tokens: int | None = None, quirks: Quirks | None = None) -> None:
        quirks = quirks or Quirks()
        self.model = model
        self.max_output_tokens = max_output_tokens
        """Tokens of the longest answer that the model gives; None if that is not known."""
        self.quirks = quirks
        self.stream_usage: bool = quirks.stream_usage
        """It takes `stream_options.include_usage`."""
        self.mends = bool(quirks.rejects or quirks.renames or quirks.min_temperature)
        """It has other quirks than that."""
        self.known: dict[bool, KnownChunks] = {}
        """What its streams have in common; those with usage for the client, and those without."""


class Head:
    """What routing needs of a request, read without looking at the rest."""

    __slots__ = (
        "answers",
        "endless",
        "include_usage",
        "least_reserved",
        "max_tokens",
        "model",
        "outline",
        "seen",
        "stream",
    )

    def __init__(
        self,
        model: str,
        *,
        stream: bool,
        include_usage: bool,
        max_tokens: int | None,
        answers: int = 1,
        outline: bytes = b"",
        least_reserved: int = 0,
        endless: str = "",
    ) -> None:
        self.model = model
        self.stream = stream
        self.include_usage = include_usage
        """The client asked for usage in the stream."""
        self.max_tokens = max_tokens
        """`max_tokens`, or what replaced it."""
        self.answers = answers
        """How many of these are asked for (`n`)."""
        self.least_reserved = least_reserved
        """The largest number of tokens under a name that only some upstreams know (`min_tokens`, …)."""
        self.endless = endless
        """The field that asks for an answer without an end (`n_predict: -1`), if there is one."""
        self.outline = outline
        """The body, without the insides of long strings (`dialects.outline`)."""
        self.seen: Seen | None = None
        """What `passing` has found out about the body, once it had to."""

    def again(self, outline: bytes) -> Head:
        """Of another body, in which routing reads the same."""
        head = Head(
            self.model,
            stream=self.stream,
            include_usage=self.include_usage,
            max_tokens=self.max_tokens,
            answers=self.answers,
            outline=outline,
            least_reserved=self.least_reserved,
            endless=self.endless,
        )
        head.seen = self.seen
        return head


class Seen:
    """Whether a body can be handed on as it is."""

    __slots__ = ("ambiguous", "options")

    def __init__(self, *, ambiguous: bool, options: bool) -> None:
        self.ambiguous = ambiguous
        """It could be read in several ways."""
        self.options = options
        """It has `stream_options`."""


class Built:
    """A request as the upstream takes it."""

    __slots__ = ("body", "dropped", "lines")

    def __init__(self, body: bytes, dropped: tuple[str, ...] = (), lines: tuple[bytes, ...] = ()) -> None:
        self.body = body
        self.dropped = dropped
        """Names of the client's fields that the upstream did not get as they were."""
        self.lines = lines
        """Header lines that the upstream needs for this request, without line ends."""


class Passed:
    """An answer for the client, and what the ledger wants to know of it."""

    __slots__ = ("body", "finish", "model", "usage")

    def __init__(self, body: bytes, usage: Usage | None, finish: FinishReason, model: str) -> None:
        self.body = body
        self.usage = usage
        self.finish = finish
        self.model = model


class StreamReader(Protocol):
    """Events of an upstream -> deltas."""

    def read(self, event: bytes) -> list[Delta]:
        """Deltas of one server-sent event; raises ProviderFailed for what cannot be understood."""

    @property
    def complete(self) -> bool:
        """The upstream's own end mark has been seen."""


class StreamWriter(Protocol):
    """Deltas -> events for a client."""

    def write(self, delta: Delta) -> bytes:
        """The events of one delta (perhaps none); Finish is held back until `end`, since usage may follow it."""

    def end(self) -> bytes:
        """The closing events of a complete answer."""

    def fail(self, error: SvcError) -> bytes:
        """The closing events of an answer that broke."""


class Dialect(ABC):
    """One wire format, as clients speak it to us and as upstreams speak it with us."""

    __slots__ = ("chat_path", "endpoint", "forwarded_headers", "models_path", "name", "request_id_header")

    def __init__(
        self,
        name: str,
        *,
        endpoint: str,
        chat_path: str,
        models_path: str,
        forwarded_headers: frozenset[bytes] = frozenset(),
        request_id_header: str = "",
    ) -> None:
        self.name = name
        self.forwarded_headers = forwarded_headers
        """Names of request headers that the gateway forwards, with the query, within the dialect; lower case."""
        self.request_id_header = request_id_header
        """The response header, beside `x-request-id`, in which clients of this dialect look for the request's id."""
        self.endpoint = endpoint
        """Where clients ask here."""
        self.chat_path = chat_path
        """What follows a provider's base address."""
        self.models_path = models_path

    # spoken by a client
    @abstractmethod
    def head(self, raw: bytes) -> Head:
        """Check a request as far as every upstream would refuse it, and read the few fields; raises InvalidRequest."""

    @abstractmethod
    def read_request(self, raw: bytes) -> ChatRequest:
        """The whole request in the hub form; raises InvalidRequest that names the field."""

    @abstractmethod
    def write_answer(self, answer: Answer) -> bytes:
        """Of the hub form, as a client of this dialect reads it."""

    @abstractmethod
    def writer(self, *, include_usage: bool) -> StreamWriter:
        """Of a stream for a client; `include_usage`: it has asked to be told."""

    @abstractmethod
    def write_error(self, error: SvcError, request_id: str) -> bytes:
        """The JSON body of an error answer."""

    # spoken by an upstream
    @abstractmethod
    def credentials(self, key: str) -> tuple[tuple[str, str], ...]:
        """Request headers that carry the provider's key and what else the dialect demands."""

    def model_quirks(self, model: str, quirks: Quirks) -> Quirks:
        """Add the quirks of a model, known by its name at the provider, to those of the provider."""
        return quirks

    @abstractmethod
    def write_request(self, request: ChatRequest, target: Target) -> Built:
        """Raises InvalidRequest for a field whose loss would change the answer's form."""

    @abstractmethod
    def read_answer(self, raw: bytes) -> Answer:
        """Raises ProviderFailed when it is not understandable."""

    @abstractmethod
    def reader(self) -> StreamReader:
        """Of a stream of an upstream's."""

    @abstractmethod
    def read_error(self, raw: bytes) -> str | None:
        """The upstream's own message in an error body, if one can be found."""

    def relayed_error(self, status: int, headers: Mapping[bytes, bytes], raw: bytes) -> UpstreamError | None:
        """What a client of the same dialect gets of an upstream's error; None for the gateway's own error."""
        return None

    # both sides the same
    @abstractmethod
    def pass_request(self, raw: bytes, head: Head, target: Target) -> Built:
        """The client's own bytes where they can be read in one way only, else rebuilt."""

    @abstractmethod
    def pass_answer(self, raw: bytes) -> Passed:
        """Raises ProviderFailed when it is not understandable."""

    @abstractmethod
    def pass_stream(self, *, include_usage: bool, target: Target | None = None) -> Pipe:
        """Of a stream whose client and upstream both speak it; `include_usage` as above."""
