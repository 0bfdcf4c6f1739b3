"""A real Redis server for the tests of what is shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from share_world import RedisServer, Sharers, redis_server


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for the tests of a module that do not harm it."""
    server = redis_server(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def redis(shared_redis: RedisServer) -> RedisServer:
    """The server of the module, empty."""
    shared_redis.command("FLUSHALL")
    return shared_redis


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that the test may kill."""
    server = redis_server(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def sharers(tmp_path: Path) -> Iterator[Sharers]:
    group = Sharers(tmp_path)
    yield group
    for process in group.processes:
        if process.poll() is None:
            process.kill()
            process.communicate()
