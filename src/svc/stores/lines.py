"""Lines of a journal (JSON, an Entry each): the batches that they make, what they come to, and entries again. Pure.

The lines of a stretch are decoded by one call, and those of one key and hour are kept as they are. What is not as we
write it (a broken line, a time or an id of another form) makes the stretch go the slow way, line by line.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from random import getrandbits
from typing import Annotated

import msgspec

from svc.stores.base import Entry
from svc.stores.batches import Amounts, Batch, Lines, Place, Stretch
from svc.stores.tally import TO_HOUR, Group, Tally

_STAMP = len("2026-01-01T00:00:00.000Z")
_ID = re.compile(r"(req_[0-9a-f]{16})([0-9a-f]{8})")
_ID_LENGTH, _PREFIX = 28, 20

Mend = Callable[[Entry], Entry]
"""A last look at an entry whose price was not known when it was noted; the same object where it is not known now."""


class _Line(Entry, frozen=True, kw_only=True, gc=False):
    """An entry as we write it. Without the garbage collector's part it is made in two thirds of the time."""

    time: Annotated[str, msgspec.Meta(min_length=_STAMP, max_length=_STAMP)]
    request_id: Annotated[str, msgspec.Meta(min_length=_ID_LENGTH, max_length=_ID_LENGTH)]


class _Packed(Entry, frozen=True, kw_only=True, array_like=True):
    """An entry without the names of its fields: half the size."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode
_decode_all = msgspec.json.Decoder(Entry).decode_lines
_decode_ours = msgspec.json.Decoder(_Line).decode_lines
_unpack = msgspec.json.Decoder(_Packed).decode


def read(data: bytes, mend: Mend | None = None) -> Stretch:
    """Of whole lines."""
    try:
        text = data.decode()
        entries: list[Entry] = [*_decode_ours(text)]
        if mend is not None:
            text = _mended(text, entries, mend)
        return _read_ours(text, entries)
    except (msgspec.MsgspecError, ValueError):
        return stretch(*read_entries(data, mend))


def read_tallied(data: bytes, tally: Tally) -> Stretch:
    """Of the lines that were summed up when they were written. Raises ValueError for what cannot be as it says."""
    if not tally.sound or len(data) != tally.end - tally.start or not data.endswith(b"\n"):
        raise ValueError("lines that have to be looked at")
    batches: dict[tuple[str, str], list[Group]] = defaultdict(list)
    hours: dict[Place, Amounts] = defaultdict(Amounts)
    for group in tally.groups:
        batches[group.key.id, group.hour].append(group)
        hours[_place_of(group)].add(
            group.key.name,
            group.requests,
            group.prompt_tokens,
            group.completion_tokens,
            group.cost_usd,
            group.priced,
        )
    if len(batches) == 1:
        found = [_tallied(data, tally.groups)]
    else:
        found = [
            _tallied(some, groups)
            for some, groups in zip(_sorted(data, tally, batches.values()), batches.values(), strict=True)
        ]
    return Stretch(batches=found, hours=hours, count=tally.count)


def read_entries(data: bytes, mend: Mend | None = None) -> tuple[list[Entry], int]:
    """Line by line; and how many lines are broken."""
    entries, lines = [], data.removesuffix(b"\n").split(b"\n")
    for line in lines:
        try:
            entry = _decode(line)
            millis(entry.time)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError):
            continue
        entries.append(mend(entry) if mend is not None and entry.cost_usd is None else entry)
    return entries, len(lines) - len(entries)


def stretch(entries: Sequence[Entry], broken: int = 0) -> Stretch:
    """Of entries in any form; raises ValueError for a time that is none."""
    ours = [entry for entry in entries if _ID.fullmatch(entry.request_id)]
    others = [entry for entry in entries if not _ID.fullmatch(entry.request_id)]
    batches = _split([line_of(entry) for entry in ours], ours, _stamps(ours))
    batches += [_alone(entry) for entry in others]
    return Stretch(batches=batches, hours=_summed(entries, _stamps(entries)), count=len(entries), broken=broken)


def entries_of(packed: str, lines: str | None) -> list[Entry]:
    """What lies in a batch."""
    return [Entry(**msgspec.structs.asdict(_unpack(packed)))] if lines is None else _decode_all(lines)


def timed_in(packed: str, lines: str | None, last: int) -> list[tuple[int, Entry]]:
    """What lies in a batch, whose newest is known, with the milliseconds since 1970."""
    entries = entries_of(packed, lines)
    return [(last, entries[0])] if lines is None else [(moment_of(entry, last), entry) for entry in entries]


def line_of(entry: Entry) -> str:
    return _encode(entry).decode()


def moment_of(entry: Entry, otherwise: int = 0) -> int:
    """Milliseconds since 1970; `otherwise` where a time is none, which would have to come from a damaged disk."""
    try:
        return millis(entry.time)
    except ValueError:
        return otherwise


def number_of(id: str) -> tuple[str, int] | None:
    """A request id's prefix and number; None for one that we did not make."""
    match = _ID.fullmatch(id)
    return None if match is None else (match[1], int(match[2], 16))


def millis(stamp: str) -> int:
    """Milliseconds since 1970 of an entry's `time`; raises ValueError."""
    if len(stamp) != _STAMP or not stamp.endswith("Z"):
        return round(datetime.fromisoformat(stamp).timestamp() * 1000)
    return _second(stamp[:-5]) + int(stamp[-4:-1])


@lru_cache(maxsize=64)
def _second(stamp: str) -> int:
    """Of a whole second, to which many entries belong."""
    return round(datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()) * 1000


def _stamps(entries: Sequence[Entry]) -> list[str]:
    """Their times as we write them."""
    moments = [millis(entry.time) for entry in entries]
    return [f"{datetime.fromtimestamp(at // 1000, UTC).isoformat()[:-6]}.{at % 1000:03d}Z" for at in moments]


def _read_ours(text: str, entries: Sequence[Entry]) -> Stretch:
    """Raises ValueError for what is not of our form."""
    stamps = [entry.time for entry in entries]
    if {stamp[-1] for stamp in stamps} != {"Z"}:
        raise ValueError("a time that is not in UTC")
    hours = _summed(entries, stamps)
    together = _together(text, entries, stamps) if len({place[:2] for place in hours}) == 1 else None
    batches = _split(_apart(text, entries), entries, stamps) if together is None else [together]
    return Stretch(batches=batches, hours=hours, count=len(entries))


def _apart(text: str, entries: Sequence[Entry]) -> list[str]:
    """Its lines; raises ValueError if they are not an entry each."""
    lines = text.split("\n")[:-1]
    if len(lines) != len(entries) or not all(lines):
        raise ValueError("a line that is not an entry")
    return lines


def _mended(text: str, entries: list[Entry], mend: Mend) -> str:
    """The lines, with prices that are known by now; their entries are put in their places. Raises ValueError."""
    changed = {
        number: mended
        for number, entry in enumerate(entries)
        if entry.cost_usd is None and (mended := mend(entry)) is not entry
    }
    if not changed:
        return text
    lines = _apart(text, entries)
    for number, mended in changed.items():
        entries[number], lines[number] = mended, line_of(mended)
    return "\n".join(lines) + "\n"


def _summed(entries: Sequence[Entry], stamps: Sequence[str]) -> dict[Place, Amounts]:
    groups: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    for entry, stamp in zip(entries, stamps, strict=True):
        tags = tuple(entry.tags.items()) if entry.tags else ()
        groups[stamp[:TO_HOUR], entry.key_id, entry.model, entry.provider, tags].append(entry)
    hours: dict[Place, Amounts] = {}
    for (hour, *_), some in groups.items():
        place = place_of(some[0], _second(f"{hour}:00:00") // 1000)
        known = hours.get(place)
        if known is None:
            hours[place] = amounts_of(some)
        else:  # the same tags in another order
            known.add(*msgspec.structs.astuple(amounts_of(some)))
    return hours


def amounts_of(entries: Sequence[Entry]) -> Amounts:
    if len(entries) == 1:
        (entry,) = entries
        cost = entry.cost_usd
        tokens = (entry.prompt_tokens or 0, entry.completion_tokens or 0)
        return Amounts(entry.key_name, 1, *tokens, cost or 0.0, int(cost is not None))
    costs = [entry.cost_usd for entry in entries if entry.cost_usd is not None]
    return Amounts(
        next((entry.key_name for entry in reversed(entries) if entry.key_name), ""),
        len(entries),
        sum([entry.prompt_tokens or 0 for entry in entries]),
        sum([entry.completion_tokens or 0 for entry in entries]),
        sum(costs),
        len(costs),
    )


def _sorted(data: bytes, tally: Tally, batches: Iterable[list[Group]]) -> Iterable[bytes]:
    """The lines of each batch."""
    to: dict[int, list[bytes]] = {}
    parts: list[list[bytes]] = []
    for groups in batches:
        parts.append([])
        to.update({group.number: parts[-1] for group in groups})
    for number, line in zip(tally.order, data.splitlines(keepends=True), strict=True):
        to[number].append(line)
    return map(b"".join, parts)


def _tallied(data: bytes, groups: Sequence[Group]) -> Batch:
    """Of one key, hour and process."""
    count = sum(group.requests for group in groups)
    if count == 1:
        return _alone(_decode(data))
    low, high = number_of(min(group.low for group in groups)), number_of(max(group.high for group in groups))
    if low is None or high is None or low[0] != high[0]:
        raise ValueError("requests that are not of one process")
    first, last = millis(min(group.first for group in groups)), millis(max(group.last for group in groups))
    return _batch(groups[0].key.id, count, (first, last), low[0], (low[1], high[1]), data)


def _place_of(group: Group) -> Place:
    tags = _shown(tuple(group.key.tags.items())) if group.key.tags else "{}"
    start = _second(f"{group.hour}:00:00") // 1000
    return Place(start, group.key.id, group.model or "", group.provider or "", tags)


def place_of(entry: Entry, start: int) -> Place:
    """In the hour that begins then."""
    tags = _shown(tuple(entry.tags.items())) if entry.tags else "{}"
    return Place(start, entry.key_id, entry.model or "", entry.provider or "", tags)


@lru_cache(maxsize=256)
def _shown(tags: tuple[tuple[str, str], ...]) -> str:
    """A key's requests all have the same."""
    return _encode(dict(sorted(tags))).decode()


def _split(lines: Sequence[str], entries: Sequence[Entry], stamps: Sequence[str]) -> list[Batch]:
    """By key, hour and process."""
    spots: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, (entry, stamp) in enumerate(zip(entries, stamps, strict=True)):
        spots[stamp[:TO_HOUR], entry.key_id, entry.request_id[:_PREFIX]].append(number)
    found = []
    for numbers in spots.values():
        if len(numbers) == 1:
            found.append(_alone(entries[numbers[0]]))
            continue
        some = [entries[number] for number in numbers]
        text = "\n".join([lines[number] for number in numbers]) + "\n"
        together = _together(text, some, [stamps[number] for number in numbers])
        found += [_alone(entry) for entry in some] if together is None else [together]
    return found


def _together(text: str, entries: Sequence[Entry], stamps: Sequence[str]) -> Batch | None:
    """Several entries of one key and hour as one batch; None if they are not of one process."""
    if len(entries) == 1:
        return None
    ids = [entry.request_id for entry in entries]
    low, high = number_of(min(ids)), number_of(max(ids))
    if low is None or high is None or low[0] != high[0]:
        return None
    first, last = millis(min(stamps)), millis(max(stamps))
    return _batch(entries[0].key_id, len(entries), (first, last), low[0], (low[1], high[1]), text.encode())


def _batch(
    key_id: str, count: int, times: tuple[int, int], prefix: str, numbers: tuple[int, int], lines: bytes
) -> Batch:
    first, last = times
    low, high = numbers
    return Batch(
        id=f"{last:012x}{getrandbits(48):012x}",  # no secret
        key_id=key_id,
        first=first,
        last=last,
        count=count,
        prefix=prefix,
        low=low,
        high=high,
        lines=Lines.of(lines),
    )


def _alone(entry: Entry) -> Batch:
    when = millis(entry.time)
    packed = _encode(msgspec.structs.astuple(entry)).decode()
    return Batch(id=entry.request_id, key_id=entry.key_id, first=when, last=when, packed=packed)
