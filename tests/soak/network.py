"""Hosts of a cluster as Linux network namespaces, with two networks that a test can cut. Needs root and `ip`.

front  10.77.1.0/24   clients, provider, nodes
back   10.77.2.0/24   nodes, PostgreSQL, Redis

No packet leaves the namespaces: the bridges have no other port.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNET = 0x40000000
NETWORKS = {"front": "10.77.1", "back": "10.77.2"}


def ip(*arguments: str) -> None:
    """Run `ip`. Raises CalledProcessError with its message in the output."""
    subprocess.run(["ip", *arguments], check=True, timeout=10)


class Host:
    """A namespace with an address in one or both networks."""

    def __init__(self, network: Network, name: str, number: int, networks: tuple[str, ...]) -> None:
        self.name = name
        self.namespace = f"{network.prefix}-{name}"
        self._bridges = network.namespace
        self._number = number
        ip("netns", "add", self.namespace)
        self.command("ip", "link", "set", "lo", "up")
        for each in networks:
            port, link = self._port(each), f"{each}0"
            ip(
                "link",
                "add",
                port,
                "netns",
                self._bridges,
                "type",
                "veth",
                "peer",
                "name",
                link,
                "netns",
                self.namespace,
            )
            self._on_bridges("ip", "link", "set", port, "master", each, "up")
            self.command("ip", "address", "add", f"{self.address(each)}/24", "dev", link)
            self.command("ip", "link", "set", link, "up")

    def address(self, network: str) -> str:
        """Return the address in a network."""
        return f"{NETWORKS[network]}.{self._number}"

    def arguments(self, *command: str) -> list[str]:
        """Return the arguments that run a command on this host. It keeps its process id."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def command(self, *command: str) -> None:
        """Run a short command on this host."""
        subprocess.run(self.arguments(*command), check=True, timeout=10)

    @contextlib.contextmanager
    def disconnected(self, network: str) -> Iterator[None]:
        """Cut the host from a network, without a message to its peers."""
        self._on_bridges("ip", "link", "set", self._port(network), "down")
        try:
            yield
        finally:
            self._on_bridges("ip", "link", "set", self._port(network), "up")

    def enter(self) -> None:
        """Move this thread, and those that it starts, to this host. Raises OSError."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", self.namespace).open() as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def _port(self, network: str) -> str:
        return f"{network[0]}-{self.name}"

    def _on_bridges(self, *command: str) -> None:
        subprocess.run(["ip", "netns", "exec", self._bridges, *command], check=True, timeout=10)


class Network:
    """Two bridges in a namespace of their own, and the hosts at them."""

    def __init__(self) -> None:
        self.prefix = f"svc{os.getpid()}"
        self.namespace = f"{self.prefix}-bridges"
        self._hosts: list[Host] = []

    def __enter__(self) -> Network:
        ip("netns", "add", self.namespace)
        for name in NETWORKS:
            subprocess.run(["ip", "-n", self.namespace, "link", "add", name, "type", "bridge"], check=True, timeout=10)
            ip("-n", self.namespace, "link", "set", name, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*(host.namespace for host in self._hosts), self.namespace):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)

    def add(self, name: str, *networks: str) -> Host:
        """Add a host. Its name has at most ten characters."""
        self._hosts.append(Host(self, name, len(self._hosts) + 1, networks))
        return self._hosts[-1]
