"""The stream of an OpenAI upstream on its way to an OpenAI client: handed on as it is where it is right, else mended.

            template fits      known, from the stream before     parsed, clean      parsed, mended
feed ─ take ──────┬──────── split ─ event ────┬───────────────────────┬──────────────────┬────> bytes for the client
                  └> the block itself         └> the event itself     └> itself, too     └> encoded anew
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from svc.dialects.chunks import KnownChunks, before_usage, opened, rest_of, stamped
from svc.dialects.failures import cut_short, failure_of
from svc.dialects.flow import HandedOn
from svc.dialects.openai.mending import Choice, first_is_clean, typed
from svc.dialects.openai.shapes import FINISH, ChunkChoice, ChunkShape, ToolDelta, UsageShape, mend_usage
from svc.dialects.openai.usage import usage_of
from svc.dialects.reading import upstream_object
from svc.dialects.template import MAX_LEARNED, learn
from svc.dialects.values import new_id, text_or, whole_or_now
from svc.errors import ProviderFailed, SvcError
from svc.wire.chat import FinishReason
from svc.wire.problem import encode_problem
from svc.wire.sse import event_data, event_name, is_bare

DONE: Final = b"data: [DONE]"
_OBJECT: Final = 0x7B
_END: Final = 0x7D
_CHUNK: Final = msgspec.json.Decoder(ChunkShape)
_USAGE: Final = msgspec.json.Decoder(UsageShape)
_FAULTS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class PassedStream(HandedOn):
    """`Pipe` from an OpenAI upstream to an OpenAI client."""

    __slots__ = (
        "_asked",
        "_choices",
        "_created",
        "_id",
        "_known",
        "_known_by",
        "_learned",
        "_stamp",
        "_usage_due",
        "_usage_sent",
    )

    def __init__(self, *, include_usage: bool, known: dict[bool, KnownChunks] | None = None) -> None:
        """`known`: where what the target's streams have in common is kept, by `include_usage`."""
        super().__init__()
        self._asked = include_usage
        self._known_by = known
        self._known: KnownChunks | None = None
        """What this stream shares with others, from its first chunk on."""
        self._stamp = b""
        self._learned = 0
        self._id = ""
        self._created = 0
        self._choices: dict[int, Choice] = {}
        self._usage_due: dict[str, Any] | None = None
        self._usage_sent = False

    @property
    def _complete(self) -> bool:
        return bool(self._choices) and all(choice.finish is not None for choice in self._choices.values())

    def _mark(self) -> bytes:
        return self._due_usage() + DONE + b"\n\n"

    def _error(self, error: SvcError) -> bytes:
        return b"data: " + encode_problem(error) + b"\n\n"

    def _event(self, event: bytes) -> bytes:
        if is_bare(event):
            if len(event) > 6 and event[6] == _OBJECT:
                made = self._known_chunk(event)
                return made if made is not None else self._chunk(event, event[6:], bare=True)
            if event == DONE:
                return self._done(event)
        data = event_data(event)
        name = event_name(event)
        if data is None or name == b"ping" or not data.strip():
            return b""
        if data.strip() == b"[DONE]":
            return self._done(event)
        if name == b"error":
            body = upstream_object(data)
            raise failure_of(body.get("error") or body)
        return self._chunk(event, data, bare=False)

    def _done(self, event: bytes) -> bytes:
        if not self._complete:
            raise cut_short()
        self.ended = True
        usage = self._due_usage()
        return usage + DONE if usage or event != DONE else event

    def _chunk(self, event: bytes, data: bytes, *, bare: bool) -> bytes:
        """One chunk as the client gets it; empty when it has nothing for the client."""
        if self._stamp and not self._id:  # known until now
            self._id, self._created = stamped(self._stamp)
        try:
            if not data.isascii():
                data.decode()
            chunk = _CHUNK.decode(data)
        except _FAULTS:
            chunk = None
        if chunk is not None and self._takes_unasked_usage(chunk):
            self._know_usage(event)
            return b""
        begun = set(self._choices)
        if chunk is not None and self._is_clean(chunk):
            if bare:
                self._know(event, chunk)
            self._note(chunk)
            made = event if bare else b"data: " + data.replace(b"\n", b" ")
            pieces = chunk.choices
        else:
            body, pieces = self._mend(upstream_object(data))
            if body is None:
                return b""
            made = b"data: " + msgspec.json.encode(body)
        self.started = True
        self._learn(event, made, pieces, begun)
        return made

    def _learn(self, event: bytes, made: bytes, pieces: list[ChunkChoice], begun: set[int]) -> None:
        """A chunk of text that changed nothing in what is known makes a template; any other ends the one there is."""
        self._template = None
        if len(pieces) != 1 or pieces[0].index not in begun or self._learned >= MAX_LEARNED:
            return
        name = _only_text(pieces[0])
        if name is not None:
            self._learned += 1
            self._template = learn(event, made, name)
            if self._known is not None and self._learned == 1 and pieces[0].delta.tool_calls is UNSET:
                self._know_text(self._known, pieces[0].index)

    # what streams have in common

    def _known_chunk(self, event: bytes) -> bytes | None:
        """What the client gets for a chunk that streams before this one had, too; None for any other."""
        if not self.started:
            return self._open(event)
        known, at = self._known, len(self._stamp)
        if known is None or not event.startswith(self._stamp):
            return None
        if known.reason is not None and event[at:] == known.finish:
            return self._end_choice(event, known, known.reason)
        if known.usage and not self._asked and event[at : at + len(known.usage)] == known.usage:
            return self._take_known_usage(event, at + len(known.usage))
        return None

    def _open(self, event: bytes) -> bytes | None:
        known = self._known_by.get(self._asked) if self._known_by is not None else None
        stamp = known.stamp(event) if known is not None else b""
        if known is None or not stamp:
            return None
        self.started = True
        self._known, self._stamp = known, stamp
        self.model = known.model
        self._choices[known.index] = Choice()
        self._template = known.template(stamp)
        return event

    def _end_choice(self, event: bytes, known: KnownChunks, reason: FinishReason) -> bytes | None:
        choice = self._choices.get(known.index)
        if choice is None or choice.finish is not None:
            return None
        self._template = None
        choice.finish = reason
        self.model = known.model
        if self.finish is None:
            self.finish = reason
        return event

    def _take_known_usage(self, event: bytes, at: int) -> bytes | None:
        usage = _usage_in(event[at:-1]) if event[-1] == _END else None
        if usage is None:
            return None
        self.usage = usage_of(usage)
        return b""

    def _know(self, event: bytes, chunk: ChunkShape) -> None:
        """A right chunk, which is not noted yet: the next stream may begin, or end, with such a one."""
        if self._known_by is None or len(chunk.choices) != 1 or type(chunk.usage) is UsageShape:
            return
        choice, known = chunk.choices[0], self._known
        if choice.delta.tool_calls is not UNSET:
            return
        if not self.started:
            found = opened(event, chunk.id, chunk.created, choice.index, chunk.model)
            if found is not None and choice.finish_reason is None:
                self._known, self._stamp = found
                self._known_by[self._asked] = found[0]
        elif known is not None and choice.finish_reason is not None:
            rest = rest_of(event, self._stamp)
            if rest and choice.index == known.index and chunk.model == known.model:
                known.finish, known.reason = rest, FINISH[choice.finish_reason]

    def _know_text(self, known: KnownChunks, index: int) -> None:
        """A template has been learned."""
        template = self._template
        if template is None or not template.plain or index != known.index or self.model != known.model:
            return
        if template.prefix.startswith(self._stamp) and rest_of(template.prefix + template.suffix, self._stamp):
            known.text = (template.prefix[len(self._stamp) :], template.suffix)

    def _know_usage(self, event: bytes) -> None:
        """The chunk of usage was for us alone."""
        if self._known is not None:
            begin = before_usage(rest_of(event, self._stamp))
            if begin and event[-1] == _END and _usage_in(event[len(self._stamp) + len(begin) : -1]) is not None:
                self._known.usage = begin

    # parsed

    def _is_clean(self, chunk: ChunkShape) -> bool:
        if self.started and (chunk.id != self._id or chunk.created != self._created):
            return False
        if chunk.x_groq is not None and chunk.x_groq.usage is not None:
            return False
        choices = chunk.choices
        if not choices:
            return self._is_clean_usage(chunk.usage)
        if chunk.usage is not None and (self._asked or chunk.usage is not UNSET):
            return False
        if len(choices) > 1 and len({choice.index for choice in choices}) < len(choices):
            return False
        for choice in choices:
            known = self._choices.get(choice.index)
            if not (known.is_clean(choice) if known is not None else first_is_clean(choice)):
                return False
        return True

    def _is_clean_usage(self, usage: Any) -> bool:
        return self._asked and self._complete and not self._usage_sent and isinstance(usage, UsageShape)

    def _takes_unasked_usage(self, chunk: ChunkShape) -> bool:
        """Whether it is for us alone: the client did not want it."""
        usage = chunk.usage
        if self._asked or chunk.choices or not self.started or not isinstance(usage, UsageShape):
            return False
        if chunk.x_groq is not None:
            return False
        self.usage = usage_of(usage)
        return True

    def _note(self, chunk: ChunkShape) -> None:
        if not self.started:
            self._id, self._created = chunk.id, chunk.created
        self.model = chunk.model
        if isinstance(chunk.usage, UsageShape):
            self.usage = usage_of(chunk.usage)
            self._usage_sent, self._usage_due = True, None
        for choice in chunk.choices:
            self._note_choice(choice)

    def _note_choice(self, choice: ChunkChoice) -> None:
        known = self._choices.get(choice.index)
        if known is None:
            known = self._choices[choice.index] = Choice()
        known.note(choice)
        if self.finish is None and choice.finish_reason is not None:
            self.finish = FINISH[choice.finish_reason]

    def _mend(self, body: dict[str, Any]) -> tuple[dict[str, Any] | None, list[ChunkChoice]]:
        """The chunk in the published shape and its choices; None when it has nothing for the client."""
        choices = body.get("choices")
        if body.get("error"):
            raise failure_of(body["error"])
        if body.get("object") == "error":
            raise failure_of(body)
        self._take_usage(body)
        if not choices:
            if not self.started and "choices" not in body and self.usage is None:
                raise ProviderFailed("The provider's answer was not understandable.")
            return None, []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise ProviderFailed("The provider sent an event that was not understandable.")
        mended, pieces = self._mend_choices(choices)
        if not mended:
            return None, []
        if not self.started:
            self._id = text_or(body.get("id"), new_id("chatcmpl-"))
            self._created = whole_or_now(body.get("created"))
        self.model = text_or(body.get("model"), self.model or "unknown")
        return {**body, **self._frame(), "choices": mended}, pieces

    def _mend_choices(self, choices: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[ChunkChoice]]:
        mended: list[dict[str, Any]] = []
        pieces: list[ChunkChoice] = []
        for position, choice in enumerate(choices):
            index = choice.get("index")
            index = index if type(index) is int and index >= 0 else position
            first = index not in self._choices
            made = self._choices.setdefault(index, Choice()).mend({**choice, "index": index}, first=first)
            if made is not None:
                mended.append(made)
                pieces.append(typed(made))
                self._note_choice(pieces[-1])
        return mended, pieces

    def _take_usage(self, body: dict[str, Any]) -> None:
        """Takes the usage out of a chunk, wherever the vendor has put it; a later one replaces an earlier one."""
        body.pop("error", None)
        found = mend_usage(body.pop("usage", None))
        vendor = body.get("x_groq")
        if isinstance(vendor, dict) and "usage" in vendor:
            found = found or mend_usage(vendor["usage"])
            body["x_groq"] = {name: value for name, value in vendor.items() if name != "usage"}
        if self._asked:
            body["usage"] = None
        if found is not None:
            self.usage = usage_of(msgspec.convert(found, UsageShape))
            self._usage_due = found

    def _frame(self) -> dict[str, Any]:
        return {"id": self._id, "object": "chat.completion.chunk", "created": self._created, "model": self.model}

    def _due_usage(self) -> bytes:
        """The usage chunk, when it was asked for and has not been sent."""
        if not self._asked or self._usage_sent or self._usage_due is None:
            return b""
        self._usage_sent = True
        return b"data: " + msgspec.json.encode({**self._frame(), "choices": [], "usage": self._usage_due}) + b"\n\n"


def _usage_in(data: bytes) -> UsageShape | None:
    """None where it is anything else."""
    try:
        return _USAGE.decode(data) if data.isascii() else None
    except _FAULTS:
        return None


def _only_text(choice: ChunkChoice) -> bytes | None:
    """The name of the one field that holds text in an ordinary chunk."""
    delta = choice.delta
    if choice.finish_reason is not None or delta.role is not UNSET:
        return None
    if delta.tool_calls is not UNSET:
        pieces = delta.tool_calls
        alone = len(pieces) == 1 and not pieces[0].id and not delta.content and not delta.reasoning_content
        return _text_of_call(pieces[0]) if alone else None
    if delta.content:
        return None if delta.reasoning_content else b"content"
    return b"reasoning_content" if delta.reasoning_content else None


def _text_of_call(piece: ToolDelta) -> bytes | None:
    function, custom = piece.function, piece.custom
    if function is not UNSET:
        return b"arguments" if custom is UNSET and not function.name else None
    return b"input" if custom is not UNSET and not custom.name else None
