"""Addresses that cannot be used: the message names the option to change."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable

import pytest

from svc.app.listeners import listen
from svc.app.supervisor import listen_reuseport
from svc.errors import UsageError

LISTEN: tuple[Callable[[str, int], object], ...] = (listen, lambda host, port: listen_reuseport(host, port, 2))


@pytest.mark.parametrize("function", LISTEN)
@pytest.mark.parametrize("host", ["192.0.2.1", "::ffff:c000:201", "two..dots"])
def test_listen_wrong_host_advises_another_host(function: Callable[[str, int], object], host: str) -> None:
    with pytest.raises(UsageError, match=r"Cannot listen on .*\. Choose another address with --host\.$"):
        function(host, 0)


@pytest.mark.parametrize("function", LISTEN)
def test_listen_port_in_use_advises_another_port(function: Callable[[str, int], object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = f"port {port}: Address already in use. Choose another with --port, or 0 for a free one."
        with pytest.raises(UsageError, match=message):
            function("127.0.0.1", port)


@pytest.mark.parametrize("function", LISTEN)
def test_listen_without_descriptors_advises_a_higher_limit(function: Callable[[str, int], object]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(UsageError, match=r"Too many open files\. Raise the limit of open files \(ulimit -n\)\.$"):
            function("127.0.0.1", 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
