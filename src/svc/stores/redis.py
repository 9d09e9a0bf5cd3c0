"""One connection to Redis that a process's questions go through, and which is made anew when it breaks.

    down ── connected, and a probe was written ──> up ── lost, late, or Redis says it cannot work ──> down
     └──────── every PAUSE s ────────┘

Commands leave at once and answers come in their order, so questions do not wait for each other. While it is down every
question fails at once: whoever asks goes on without. Nothing is repeated, since nobody can say what had been done.
Who moves large values takes a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote, urlsplit

from svc.errors import UsageError
from svc.stores.base import StoreDown
from svc.stores.resp import NotRedis, Reader, Reply, ReplyError, Word, packed

log = logging.getLogger("svc.stores")

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 2.0
"""An answer that takes longer breaks the connection: no request waits longer than this for Redis."""
LAST_CHANCE = 0.05
"""It may have come while this process itself was not running: time to read it, before it counts as late."""
PAUSE = 0.5
MAX_WAITING = 20_000
UNABLE = (
    "OOM",
    "READONLY",
    "MISCONF",
    "LOADING",
    "NOAUTH",
    "NOPERM",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "BUSY",
    "NOREPLICAS",
)
"""Errors that say something of the server, and not of the command."""
PROBE = ("SET", "svc:probe", "1", "EX", "60")

Then = Callable[[Reply | StoreDown], None]


@dataclass(frozen=True)
class Address:
    """Where Redis is, and as whom to speak to it."""

    host: str
    port: int
    path: str | None
    tls: bool
    user: str | None
    password: str | None
    database: int

    @property
    def shown(self) -> str:
        """For the log: no password."""
        return self.path or f"{self.host}:{self.port}"


class Script:
    """A Lua script, known to Redis by its SHA-1 once it has run."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Redis:
    """Belongs to one event loop, from `start` to `close`."""

    def __init__(self, url: str) -> None:
        """Raises UsageError for a URL that is none."""
        self._address = address_of(url)
        self._link: _Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._connected: list[Callable[[], None]] = []
        self._said = ""

    @property
    def down(self) -> bool:
        """Questions fail at the moment."""
        return self._link is None

    def on_connect(self, call: Callable[[], None]) -> None:
        """`call` is called each time that it has come up: what Redis knew may be gone, or old."""
        self._connected.append(call)

    async def start(self) -> None:
        """Returns when it is up, or after the first try."""
        tried = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(tried), name="redis")
        await tried.wait()

    async def check(self) -> None:
        """Connect, log in and write the probe once, without `start`. Raises StoreDown that says what failed."""
        link = _Link()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._open(link)
        except (OSError, ValueError) as error:
            raise StoreDown(_reason(error)) from error
        finally:
            link.abort("Redis is not there.")

    async def close(self) -> None:
        """Questions that wait fail."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def send(self, then: Then, *words: Word) -> None:
        """Sends a command; `then` gets the reply, or a StoreDown (a ReplyError: it is refused), at once or later."""
        if self._link is None:
            then(StoreDown("Redis is not there."))
        else:
            self._link.send(then, words)

    def run(self, then: Then, script: Script, keys: Sequence[Word], arguments: Sequence[Word]) -> None:
        """Runs a script, likewise: one command, two when Redis has forgotten it."""
        rest = (len(keys), *keys, *arguments)

        def told(reply: Reply | StoreDown) -> None:
            if isinstance(reply, ReplyError) and reply.kind == "NOSCRIPT":
                self.send(then, "EVAL", script.text, *rest)
            else:
                then(reply)

        self.send(told, "EVALSHA", script.sha, *rest)

    async def ask(self, *words: Word) -> Reply:
        """The reply to a command; raises StoreDown."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.send(lambda reply: _settle(answer, reply), *words)
        return await answer

    async def ask_script(self, script: Script, keys: Sequence[Word], arguments: Sequence[Word]) -> Reply:
        """What a script returns; raises StoreDown."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.run(lambda reply: _settle(answer, reply), script, keys, arguments)
        return await answer

    # the connection

    async def _run(self, tried: asyncio.Event) -> None:
        while True:
            link = _Link()
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._open(link)
                self._up(link)
                tried.set()
                await link.lost.wait()
                raise StoreDown(link.reason)
            except (OSError, StoreDown, ValueError) as error:  # ValueError: a host's name that no resolver can take
                self._down(error)
            finally:
                self._link = None
                link.abort("Redis is not there.")
                tried.set()
            await asyncio.sleep(PAUSE)

    async def _open(self, link: _Link) -> None:
        at, loop = self._address, asyncio.get_running_loop()
        if at.path is not None:
            await loop.create_unix_connection(lambda: link, at.path)
        else:
            tls = await asyncio.to_thread(ssl.create_default_context) if at.tls else None
            await loop.create_connection(lambda: link, at.host, at.port, ssl=tls)
        greeting: list[tuple[Word, ...]] = []
        if at.password is not None:
            greeting.append(("AUTH", at.user, at.password) if at.user else ("AUTH", at.password))
        if at.database:
            greeting.append(("SELECT", at.database))
        for words in (*greeting, PROBE):
            answer: asyncio.Future[Reply] = loop.create_future()
            link.send(lambda reply, answer=answer: _settle(answer, reply), words)  # type: ignore[misc]
            await answer

    def _up(self, link: _Link) -> None:
        self._link = link
        if self._said:
            log.warning("Redis at %s answers again", self._address.shown)
            self._said = ""
        for call in self._connected:
            call()

    def _down(self, error: Exception) -> None:
        reason = _reason(error)
        if reason != self._said:
            log.error("Redis at %s does not answer: %s", self._address.shown, reason)
        self._said = reason


class _Link(asyncio.Protocol):
    """A connection from its making to its loss."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.reason = "The connection is lost."
        self._transport: asyncio.Transport | None = None
        self._reader = Reader()
        self._waiting: deque[tuple[float, Then]] = deque()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._doubted: Then | None = None
        """Who waits too long, and gets a last chance."""

    def send(self, then: Then, words: Sequence[Word]) -> None:
        if self._transport is None or len(self._waiting) >= MAX_WAITING:
            then(StoreDown("Redis is not there, or too many wait for it."))
            return
        now = self._loop.time()
        self._waiting.append((now + ANSWER_SECONDS, then))
        if self._timer is None:
            self._timer = self._loop.call_at(now + ANSWER_SECONDS, self._look)
        self._transport.write(packed(words))

    def abort(self, reason: str) -> None:
        """Ends it; who waits is told."""
        if not self.lost.is_set():
            self.reason = reason
            self.lost.set()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, deque()
        for _, then in waiting:
            then(StoreDown(self.reason))

    def _look(self) -> None:
        """Whether the oldest question has waited too long."""
        self._timer = None
        if not self._waiting:
            return
        due, then = self._waiting[0]
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._look)
        elif self._doubted is not then:
            self._doubted = then
            self._timer = self._loop.call_later(LAST_CHANCE, self._look)
        else:
            self.abort(f"It did not answer within {ANSWER_SECONDS:g} s.")

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            replies = self._reader.feed(data)
        except NotRedis as error:
            self.abort(f"What it says is not of Redis: {error}.")
            return
        for reply in replies:
            if not self._waiting:
                self.abort("It answered what nobody had asked.")
                return
            _, then = self._waiting.popleft()
            then(reply)
            if isinstance(reply, ReplyError) and reply.kind in UNABLE:
                self.abort(reply.message)
                return

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(f"The connection is lost: {exc}." if exc else "Redis closed the connection.")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {CONNECT_SECONDS:g} s"
    return str(error) or type(error).__name__


def _settle(answer: asyncio.Future[Reply], reply: Reply | StoreDown) -> None:
    if answer.done():  # who asked has gone
        return
    if isinstance(reply, StoreDown):
        answer.set_exception(reply)
    else:
        answer.set_result(reply)


def address_of(url: str) -> Address:
    """`redis://[user:password@]host[:port][/database]`, `rediss://…` with TLS, `unix:///path`; raises UsageError."""
    wrong = UsageError("SVC_REDIS_URL is not like redis://user:password@host:6379/0 (rediss:// for TLS).")
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
        number = 0 if parts.scheme == "unix" else int(parts.path.strip("/") or 0)
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("redis", "rediss", "unix") or parts.query or not 0 <= number < 2**31:
        raise wrong
    if not (parts.path if parts.scheme == "unix" else parts.hostname):
        raise wrong
    return Address(
        host=parts.hostname or "",
        port=port,
        path=unquote(parts.path) if parts.scheme == "unix" else None,
        tls=parts.scheme == "rediss",
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        database=number,
    )


@contextlib.asynccontextmanager
async def connected(environ: Mapping[str, str]) -> AsyncIterator[Redis | None]:
    """The Redis of `SVC_REDIS_URL`, started; None where that is unset. Raises UsageError."""
    url = environ.get("SVC_REDIS_URL")
    if not url:
        yield None
        return
    redis = Redis(url)
    await redis.start()
    try:
        yield redis
    finally:
        await redis.close()
