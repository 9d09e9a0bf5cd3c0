"""What lines of a journal come to, summed up by who writes them: who takes them in then need not decode them. Pure.

note ── a line ──> Tally ── no more come ──> `lines.read_tallied`, with the lines
"""

from __future__ import annotations

from typing import Final

from svc.wire.key import Key
from svc.wire.usage import Usage

TO_HOUR: Final = len("2026-01-01T00")


class Group:
    """The lines of one key, hour (UTC), model and provider."""

    __slots__ = (
        "completion_tokens",
        "cost_usd",
        "first",
        "high",
        "hour",
        "key",
        "last",
        "low",
        "model",
        "number",
        "priced",
        "prompt_tokens",
        "provider",
        "requests",
    )

    def __init__(
        self, number: int, key: Key, model: str | None, provider: str | None, time: str, request_id: str
    ) -> None:
        """With the time and the request of its first line."""
        self.number = number
        self.key = key
        self.model = model
        self.provider = provider
        self.hour = time[:TO_HOUR]
        self.first = self.last = time
        """The oldest and the newest."""
        self.low = self.high = request_id
        """The least and the greatest."""
        self.requests = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cost_usd = 0.0
        self.priced = 0
        """Requests whose cost is known."""

    def has(self, key: Key, model: str | None, provider: str | None, time: str) -> bool:
        """A line belongs here."""
        return key is self.key and model == self.model and provider == self.provider and time.startswith(self.hour)


class Tally:
    """Of the lines from `start` to `end` (bytes) of the journal `name`, which are `count`."""

    __slots__ = ("_found", "_last", "count", "end", "groups", "held", "name", "order", "sound", "start")

    def __init__(self, name: str, start: int, held: object = None) -> None:
        self.name = name
        self.held = held
        """Keeps others from the file while this is there."""
        self.start = start
        self.end = start
        self.count = 0
        self.groups: list[Group] = []
        self.order: list[int] = []
        """Which group each line is of, where there are several."""
        self.sound = True
        """False when a price is to be looked for that was not known."""
        self._last: Group | None = None
        self._found: dict[tuple[Key, str | None, str | None, str], Group] = {}

    def note(
        self,
        size: int,
        key: Key,
        model: str | None,
        provider: str | None,
        time: str,
        request_id: str,
        usage: Usage | None,
        usd: float | None,
    ) -> None:
        """One more line, of `size` bytes; `time` and the rest as an `Entry` has them."""
        group = self._last
        if group is None or not group.has(key, model, provider, time):
            group = self._last = self._find(key, model, provider, time, request_id)
        self.end += size
        self.count += 1
        if len(self.groups) > 1:
            self.order.append(group.number)
        group.requests += 1
        if time > group.last:
            group.last = time
        elif time < group.first:  # the clock was put back
            group.first = time
        if request_id > group.high:
            group.high = request_id
        elif request_id < group.low:
            group.low = request_id
        if usage is not None:
            group.prompt_tokens += usage.prompt_tokens
            group.completion_tokens += usage.completion_tokens
        if usd is not None:
            group.cost_usd += usd
            group.priced += 1
        elif usage is not None:
            self.sound = False

    def _find(self, key: Key, model: str | None, provider: str | None, time: str, request_id: str) -> Group:
        spot = (key, model, provider, time[:TO_HOUR])
        found = self._found.get(spot)
        if found is None:
            found = self._found[spot] = Group(len(self.groups), key, model, provider, time, request_id)
            if found.number == 1:
                self.order = [0] * self.count
            self.groups.append(found)
        return found
