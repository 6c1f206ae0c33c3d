"""The sandbox's API, a receiver of its deliveries, the console, and `credhook events` in this process."""

import os
from collections.abc import Iterator

import httpx
import pytest
import trustme
from click.testing import CliRunner, Result
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from support.console.console import Console
from support.platform.sandbox_api import authorized
from support.platform.webhook_endpoint import Receiver, receiving
from support.process import serving
from support.process.serving import Platform
from support.process.trace_collector import Collector, collecting
from support.redis.guarded_redis import guarded
from support.worker.claiming import EventQueue
from support.worker.events_command import Run


@pytest.fixture(scope="module")
def api(sandbox: Platform) -> Iterator[httpx.Client]:
    with authorized(sandbox) as client:
        yield client


@pytest.fixture
def swept(sandbox: Platform) -> Iterator[None]:
    """Afterwards the sandbox has no faults and no endpoints, as it was before."""
    yield
    sandbox.clear()
    with authorized(sandbox) as api:
        for endpoint in api.get("/me-creds/api/endpoints").json():
            api.delete(f"/me-creds/api/endpoints/{endpoint['id']}")


@pytest.fixture
def receiver(authority: trustme.CA) -> Iterator[Receiver]:
    with receiving(authority.issue_cert("127.0.0.1")) as receiver:
        yield receiver


@pytest.fixture
def queue(async_redis: AsyncRedis, redis_client: Redis) -> EventQueue:
    return EventQueue(async_redis, redis_client)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, module_redis: str) -> Iterator[Console]:
    """The console of all tests of a file."""
    with Console(tmp_path_factory.mktemp("console"), module_redis) as process:
        yield process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, module_redis: str) -> Iterator[serving.Receiver]:
    """The receiver of all tests of a file."""
    with serving.receiver(tmp_path_factory.mktemp("receiver"), module_redis) as process:
        yield process


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def events(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`credhook events …` in this process."""
    from credhook.worker.commands.events import events

    for name in [name for name in os.environ if name.startswith("CREDHOOK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REDIS_URL", redis_url)
    reached = guarded(("-m", "credhook", "events"), {"REDIS_URL": redis_url})

    def run(*arguments: str, **environment: str) -> Result:
        return CliRunner().invoke(events, arguments, env=reached | environment)

    return run
