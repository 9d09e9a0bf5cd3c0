"""The URLs of SVC_REDIS_URL."""

from __future__ import annotations

import pytest

from svc.errors import UsageError
from svc.stores.redis.address import parse_redis_url


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost", "http://a", "redis://", "redis://a:b", "redis://a/x", "redis://a/-1", "unix://"),
        *("redis://a?b=c", "redis://a?ssl_certfile=x", "rediss://a?ssl_cert_reqs=maybe", "redis://a?x", "unix://a/b"),
        *("redis://a,b", "redis://a/0/1", "redis+other://a", "rediss://a/2147483648", "redis://a:99999999"),
        *("redis+sentinel://a:1", "redis+sentinel://a:1/p/x", "redis+sentinel://a:1/p/0/1", "redis+sentinel:///p"),
        *("redis+cluster://a:1/2", "redis+cluster://a,,b", "redis+cluster://a:x"),
        "redis://a/" + "9" * 5000,
    ],
)
def test_parse_redis_url_invalid_url_raises_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_redis_url(url)
    assert "SVC_REDIS_URL is not valid: use redis://" in error.value.message


def test_parse_redis_url_full_url_gives_all_parts() -> None:
    found = parse_redis_url(
        "rediss://us%40er:p%2Fw@[::1]:7000/5?ssl_ca_certs=/ca.pem&ssl_check_hostname=false&password_file=/p"
    )
    assert (found.kind, found.hosts, found.uses_tls, found.database) == ("single", (("::1", 7000),), True, 5)
    assert (found.user, found.password, found.password_file) == ("us@er", "p/w", "/p")
    assert found.tls_options == {"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}
    assert found.display_name == "[::1]:7000"
    assert "p/w" not in repr(found)


def test_parse_redis_url_sentinel_gives_hosts_and_primary_name() -> None:
    found = parse_redis_url("rediss+sentinel://u:p@a:1,b,[::1]:3/mymaster/2?sentinel_username=s&sentinel_password=t")
    assert (found.kind, found.hosts) == ("sentinel", (("a", 1), ("b", 26379), ("::1", 3)))
    assert (found.primary_name, found.database, found.uses_tls) == ("mymaster", 2, True)
    assert (found.user, found.password, found.sentinel_user, found.sentinel_password) == ("u", "p", "s", "t")
    assert found.display_name == "mymaster of a:1,b:26379,[::1]:3"
    assert parse_redis_url("redis+sentinel://a/mymaster").database == 0


def test_parse_redis_url_cluster_gives_hosts() -> None:
    found = parse_redis_url("redis+cluster://:p@a:7000,b")
    assert (found.kind, found.hosts, found.user, found.password) == ("cluster", (("a", 7000), ("b", 6379)), None, "p")


def test_parse_redis_url_unix_socket_gives_path() -> None:
    found = parse_redis_url("unix://u:p@/run/re%20dis")
    assert (found.path, found.user, found.password, found.display_name) == ("/run/re dis", "u", "p", "/run/re dis")
