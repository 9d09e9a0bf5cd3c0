"""Parses SVC_REDIS_URL: one server, the servers of Sentinel, or a cluster, with TLS options and credentials."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from svc.errors import UsageError

MAX_DATABASE = 2**31
DEFAULT_REDIS_PORTS: Final = {"single": 6379, "sentinel": 26379, "cluster": 6379}
TLS_OPTIONS: Final = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_keyfile",
    "ssl_password",
)
"""Options of redis-py's `rediss://` URLs. The names and values are the same."""
OTHER_OPTIONS: Final = ("password_file", "sentinel_username", "sentinel_password")


@dataclass(frozen=True)
class RedisAddress:
    """The servers of a URL, and how to connect to them. `path` is a Unix socket."""

    kind: Literal["single", "sentinel", "cluster"]
    hosts: tuple[tuple[str, int], ...]
    path: str | None = None
    primary_name: str = ""
    """The name by which Sentinel knows the primary."""
    uses_tls: bool = False
    tls_options: dict[str, Any] = field(default_factory=dict)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    """The file with the password, read at each connect and when it changes."""
    sentinel_user: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    database: int = 0

    @property
    def display_name(self) -> str:
        """The address without credentials, for the log."""
        if self.path is not None:
            return self.path
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{self.primary_name} of {hosts}" if self.primary_name else hosts


class _InvalidUrl(UsageError):
    """SVC_REDIS_URL is not valid."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(
            "SVC_REDIS_URL is not valid: use redis://user:password@host:6379/0, or rediss:// for TLS"
            + (f" ({reason})." if reason else ".")
        )


def parse_redis_url(url: str) -> RedisAddress:
    """Parse the URL of a server, of Sentinel or of a cluster. Raises UsageError.

        redis://[user:password@]host[:port][/database]
        redis+sentinel://[user:password@]host[:port],host[:port],…/primary-name[/database]
        redis+cluster://[user:password@]host[:port],host[:port],…
        unix://[user:password@]/path

    `rediss` in place of `redis` means TLS, with the options of redis-py in the query.
    """
    scheme, separator, rest = url.partition("://")
    end = next((position for position, character in enumerate(rest) if character in "/?#"), len(rest))
    authority = rest[:end]  # parsed here: newer Pythons reject an address in brackets beside other hosts
    try:
        parts = urlsplit(f"{scheme}{separator}{rest[end:]}")
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if parts.query else {}
    except ValueError:
        raise _InvalidUrl from None
    protocol, _, kind = parts.scheme.partition("+")
    common = _parse_options(options, uses_tls=protocol == "rediss")
    userinfo, _, netloc = authority.rpartition("@")
    user, _, password = userinfo.partition(":")
    common |= {"user": unquote(user) or None, "password": unquote(password) or None}
    if parts.scheme == "unix" and parts.path and not netloc:
        return RedisAddress("single", (), path=unquote(parts.path), **common)
    path = [unquote(part) for part in parts.path.strip("/").split("/")]
    if protocol not in ("redis", "rediss") or kind not in ("", "sentinel", "cluster"):
        raise _InvalidUrl
    hosts = _parse_hosts(netloc, DEFAULT_REDIS_PORTS[kind or "single"])
    if kind == "sentinel":
        if not path[0] or len(path) > 2:
            raise _InvalidUrl("redis+sentinel://host:26379,host:26379/primary-name/0 names the primary")
        return RedisAddress(
            "sentinel", hosts, primary_name=path[0], database=_parse_database("".join(path[1:])), **common
        )
    database = _parse_database("/".join(path))
    if kind == "cluster":
        if database:
            raise _InvalidUrl("a cluster has only database 0")
        return RedisAddress("cluster", hosts, **common)
    if len(hosts) > 1:
        raise _InvalidUrl("several servers need redis+sentinel:// or redis+cluster://")
    return RedisAddress("single", hosts, database=database, **common)


def _parse_options(options: dict[str, str], *, uses_tls: bool) -> dict[str, Any]:
    for name in options:
        if name not in OTHER_OPTIONS and not (uses_tls and name in TLS_OPTIONS):
            raise _InvalidUrl(f"the option {name[:40]!r} is unknown, or needs TLS")
    return {
        "password_file": options.get("password_file"),
        "sentinel_user": options.get("sentinel_username"),
        "sentinel_password": options.get("sentinel_password"),
        "uses_tls": uses_tls,
        "tls_options": {name: _parse_tls_option(name, options[name]) for name in TLS_OPTIONS if name in options},
    }


def _parse_hosts(netloc: str, default_port: int) -> tuple[tuple[str, int], ...]:
    hosts = []
    for each in netloc.split(","):
        try:
            parts = urlsplit(f"//{each}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise _InvalidUrl from None
        if not host:
            raise _InvalidUrl
        hosts.append((host, port or default_port))
    return tuple(hosts)


def _parse_database(text: str) -> int:
    if not text:
        return 0
    if not text.isdecimal() or len(text) > len(str(MAX_DATABASE)) or int(text) >= MAX_DATABASE:
        raise _InvalidUrl("the database is not a number")
    return int(text)


def _parse_tls_option(name: str, value: str) -> str | bool:
    if name == "ssl_check_hostname":
        return value.lower() not in ("0", "f", "false", "n", "no")
    if name == "ssl_cert_reqs" and value not in ("none", "optional", "required"):
        raise _InvalidUrl("ssl_cert_reqs is none, optional or required")
    return value
