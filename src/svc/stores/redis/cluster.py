"""The connections of a process to a Redis Cluster: one to each primary.

    command ── slot of its key ──> primary ── MOVED ──> the new primary, and the slots are read again
                                        └──── ASK ────> the server that imports the slot, this time
                                        └──── TRYAGAIN ─> the same server, RETRY_SECONDS later

A redirected command was not executed, so it is sent again. Any other failure is the caller's.
https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Final

from redis.crc import key_slot

from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.address import RedisAddress
from svc.stores.redis.base import CommandArgument, OnReply, OnSlow, RedisClient, RedisReply, RedisReplyError
from svc.stores.redis.connection import PROBE_KEY, RedisConnection
from svc.stores.redis.discovery import Host, SlotRange, read_slots

log = logging.getLogger("svc.stores")

SLOTS: Final = 16_384
REFRESH_SECONDS: Final = 5.0
"""The interval at which the slots are read again."""
MIN_REFRESH_SECONDS: Final = 0.2
"""The interval while a server is down, or after a redirection."""
MAX_REDIRECTIONS: Final = 5
RETRY_SECONDS: Final = 0.01
MAX_PROBE_KEYS: Final = 100_000


class ClusterClient(RedisClient):
    """Commands go to the primary of their first key. All keys of a command must be in one slot."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._nodes: dict[Host, RedisConnection] = {}
        self._primaries: list[Host | None] = [None] * SLOTS
        """The primary of each slot."""
        self._connect_callbacks: list[Callable[[], None]] = []
        self._refresh_requested = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._start_tasks: set[asyncio.Task[None]] = set()
        self._reported_reason = ""

    @property
    def is_down(self) -> bool:
        return not self._nodes or None in self._primaries or any(node.is_down for node in self._nodes.values())

    @property
    def is_slow(self) -> bool:
        return any(node.is_slow for node in self._nodes.values())

    @property
    def has_key_slots(self) -> bool:
        return True

    def add_connect_callback(self, callback: Callable[[], None]) -> None:
        self._connect_callbacks.append(callback)
        for node in self._nodes.values():
            node.add_connect_callback(callback)

    async def start(self) -> None:
        await self._refresh()
        await asyncio.gather(*self._start_tasks)
        self._task = asyncio.get_running_loop().create_task(self._keep_current(), name="redis-cluster")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for task in self._start_tasks:
            task.cancel()
        await asyncio.gather(*self._start_tasks, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    async def check_connection(self) -> None:
        ranges = await read_slots(self._address, self._address.hosts)
        self._set_primaries(ranges)
        for host in dict.fromkeys(host for _, _, host in ranges):
            await self._create_node(host).check_connection()
        if None in self._primaries:
            raise StoreUnavailable("The cluster does not have all slots.")

    def send(self, on_reply: OnReply, arguments: tuple[CommandArgument, ...], on_slow: OnSlow | None = None) -> None:
        command = _ClusterCommand(self, on_reply, arguments, on_slow)
        self._send_command(command, self._primaries[_slot_of(arguments)])

    def flush(self) -> None:
        for node in self._nodes.values():
            node.flush()

    def _send_command(self, command: _ClusterCommand, host: Host | None) -> None:
        node = self._nodes.get(host) if host is not None else None
        if node is None:
            self._refresh_requested.set()
            command.on_reply(StoreUnavailable("No server of the cluster has this key."))
            return
        command.host = host
        node.send(command.on_node_reply, command.arguments, command.on_slow)

    def redirect_or_refresh(self, command: _ClusterCommand, error: StoreUnavailable) -> bool:
        """Send a failed command again, if its error says so. Return False if the error is the reply."""
        if type(error) is RedisReplyError and command.redirections_left > 0:
            return self._redirect(command, error)
        self._refresh_requested.set()
        return False

    def _redirect(self, command: _ClusterCommand, error: RedisReplyError) -> bool:
        """Send the command again as the error says. Returns False if it is another error."""
        command.redirections_left -= 1
        if error.kind == "TRYAGAIN":
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._send_command, command, command.host)
            return True
        if error.kind not in ("MOVED", "ASK"):
            return False
        slot, target = _parse_redirection(error.text, command.host)
        if target not in self._nodes:
            self._add_node(target)
        if error.kind == "MOVED":
            self._primaries[slot] = target
            self._refresh_requested.set()
        else:
            self._nodes[target].send(_ignore_reply, ("ASKING",))
        self._send_command(command, target)
        return True

    # the servers

    async def _keep_current(self) -> None:
        while True:
            try:
                await asyncio.wait_for(
                    self._refresh_requested.wait(), MIN_REFRESH_SECONDS if self.is_down else REFRESH_SECONDS
                )
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(MIN_REFRESH_SECONDS)
            self._refresh_requested.clear()
            await self._refresh()

    async def _refresh(self) -> None:
        """Read the slots, connect to new primaries, and close the connections to others."""
        try:
            ranges = await read_slots(self._address, dict.fromkeys((*self._nodes, *self._address.hosts)))
        except StoreUnavailable as error:
            if str(error) != self._reported_reason:
                log.error("Redis Cluster at %s does not respond: %s", self._address.display_name, error)
            self._reported_reason = str(error)
            return
        self._reported_reason = ""
        self._set_primaries(ranges)
        current = {host for _, _, host in ranges}
        for host in current - self._nodes.keys():
            self._add_node(host)
        for host in self._nodes.keys() - current:
            await self._nodes.pop(host).close()

    def _set_primaries(self, ranges: list[SlotRange]) -> None:
        self._primaries = [None] * SLOTS
        for first, last, host in ranges:
            self._primaries[first : last + 1] = [host] * (last + 1 - first)

    def _add_node(self, host: Host) -> None:
        """Create the connection to a server. Until it is connected, its commands fail."""
        node = self._nodes[host] = self._create_node(host)
        task = asyncio.get_running_loop().create_task(node.start())
        self._start_tasks.add(task)
        task.add_done_callback(self._start_tasks.discard)

    def _create_node(self, host: Host) -> RedisConnection:
        address = dataclasses.replace(self._address, kind="single", hosts=(host,))
        node = RedisConnection(address, find_probe_key=lambda: self._find_probe_key(host))
        for callback in self._connect_callbacks:
            node.add_connect_callback(callback)
        return node

    def _find_probe_key(self, host: Host) -> str:
        """Return a key in a slot of a server."""
        for number in range(MAX_PROBE_KEYS):
            key = f"{PROBE_KEY}:{number}"
            if self._primaries[key_slot(key.encode())] == host:
                return key
        return PROBE_KEY


class _ClusterCommand:
    """A command without a reply. `host` is the server that has it."""

    __slots__ = ("_client", "arguments", "host", "on_reply", "on_slow", "redirections_left")

    def __init__(
        self,
        client: ClusterClient,
        on_reply: OnReply,
        arguments: tuple[CommandArgument, ...],
        on_slow: OnSlow | None,
    ) -> None:
        self._client = client
        self.on_reply = on_reply
        self.arguments = arguments
        self.on_slow = on_slow
        self.host: Host | None = None
        self.redirections_left = MAX_REDIRECTIONS

    def on_node_reply(self, reply: RedisReply | StoreUnavailable) -> None:
        if not (isinstance(reply, StoreUnavailable) and self._client.redirect_or_refresh(self, reply)):
            self.on_reply(reply)


def _slot_of(arguments: tuple[CommandArgument, ...]) -> int:
    """Return the slot of the first key of a command."""
    if len(arguments) < 2:
        return 0
    key = arguments[3] if arguments[0] in ("EVALSHA", "EVAL") else arguments[1]
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def _parse_redirection(text: str, sender: Host | None) -> tuple[int, Host]:
    """Parse `MOVED 3999 127.0.0.1:6381`. An empty host is that of the sender."""
    _, slot, target = text.split(" ")[:3]
    host, _, port = target.rpartition(":")
    return int(slot), (host or (sender[0] if sender else ""), int(port))


def _ignore_reply(reply: RedisReply | StoreUnavailable) -> None:
    """Do nothing: the reply to the next command shows whether ASKING worked."""
