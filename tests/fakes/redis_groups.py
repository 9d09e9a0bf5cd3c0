"""Several real Redis servers on loopback: replicas with Sentinel, and a cluster. A test can kill the primary."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.fakes.ports import closed_cluster_port, closed_port
from tests.fakes.redis_server import RedisServer, send_command, server_binary

READY_SECONDS = 20.0
MEET_SECONDS = 3.0
"""Between two invitations of the nodes of a cluster."""
SLOTS = 16_384


class RedisSentinels:
    """A primary, two replicas and three Sentinels, which replace a lost primary within about two seconds."""

    def __init__(self, folder: Path) -> None:
        # A replica writes the data of its primary to a file.
        self.primary = RedisServer("--dir", str(folder))
        replica_options = ("--dir", str(folder), "--replicaof", "127.0.0.1", str(self.primary.port))
        self.replicas = [RedisServer(*replica_options) for _ in range(2)]
        self._folder = folder
        self._stack = ExitStack()
        self._sentinels: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def sentinel_ports(self) -> list[int]:
        return list(self._sentinels)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._sentinels)
        return f"redis+sentinel://{hosts}/mymaster/0"

    def __enter__(self) -> Self:
        for server in (self.primary, *self.replicas):
            self._stack.enter_context(server)
        for _ in range(3):
            self._start_sentinel(closed_port())
        for port in self._sentinels:
            _wait(lambda port=port: self._is_complete(port), "Sentinel does not know all servers")  # type: ignore[misc]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._sentinels.values():
            process.kill()
            process.wait(5)
        self._stack.close()

    def _start_sentinel(self, port: int) -> None:
        file = self._folder / f"sentinel-{port}.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self._folder}\n"
            f"sentinel monitor mymaster 127.0.0.1 {self.primary.port} 2\n"
            "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n"
        )
        command = [str(server_binary()), str(file), "--sentinel"]
        self._sentinels[port] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def _is_complete(self, port: int) -> bool:
        try:
            found = send_command(port, "SENTINEL MASTER mymaster").split()
        except OSError:
            return False
        return [found[found.index(name) + 2] for name in (b"num-slaves", b"num-other-sentinels") if name in found] == [
            b"2",
            b"2",
        ]


class RedisCluster:
    """Three primaries, each with a third of the slots, and one replica for each."""

    def __init__(self, folder: Path) -> None:
        servers = []
        for number in range(6):
            server_folder = folder / f"node{number}"
            server_folder.mkdir()
            options = ("--dir", str(server_folder), "--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
            servers.append(RedisServer(*options, port=closed_cluster_port()))
        self.primaries, self.replicas = servers[:3], servers[3:]
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.primaries[:2])

    def __enter__(self) -> Self:
        servers = [*self.primaries, *self.replicas]
        for server in servers:
            self._stack.enter_context(server)
        for number, server in enumerate(self.primaries):
            slots = range(number * SLOTS // 3, (number + 1) * SLOTS // 3)
            server.tell(f"CLUSTER ADDSLOTS {' '.join(map(str, slots))}")
        first_port, met_at = servers[0].port, 0.0

        def is_complete() -> bool:
            nonlocal met_at
            if time.monotonic() > met_at + MEET_SECONDS:  # a busy node can miss the handshake, and forgets it then
                met_at = time.monotonic()
                for server in servers[1:]:
                    server.tell(f"CLUSTER MEET 127.0.0.1 {first_port}")
            return all(server.tell("CLUSTER NODES").count(b"connected") == len(servers) for server in servers)

        _wait(is_complete, "nodes are missing")
        for primary, replica in zip(self.primaries, self.replicas, strict=True):
            name = self.node_id(primary)
            _wait(
                lambda name=name, replica=replica: replica.tell(f"CLUSTER REPLICATE {name}").startswith(b"+OK"),  # type: ignore[misc]
                "a replica does not know its primary",
            )
        for server in servers:
            _wait(lambda server=server: b"cluster_state:ok" in server.tell("CLUSTER INFO"), "the cluster is not ready")  # type: ignore[misc]
        for replica in self.replicas:
            _wait(
                lambda replica=replica: b"master_link_status:up" in replica.tell("INFO replication"),  # type: ignore[misc]
                "a replica is not connected",
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def node_id(self, server: RedisServer) -> str:
        return server.tell("CLUSTER MYID").split()[1].decode()

    def primary_of(self, slot: int) -> RedisServer:
        """Return the first primary of a slot, before any change."""
        return next(server for number, server in enumerate(self.primaries) if slot < (number + 1) * SLOTS // 3)


def _wait(condition: object, failure: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(failure)
        time.sleep(0.05)
