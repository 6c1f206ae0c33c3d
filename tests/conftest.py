"""Real parts for tests: a Redis per test process, and the receiver on a real socket."""

import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis.asyncio
import structlog
import trustme
from hypothesis import HealthCheck, settings
from redis import Redis

from credhook.sandbox.local.environment import local_redis
from credhook.store.connection import open_redis
from support.process.serving import Platform, platform
from support.redis.guarded_redis import GUARDS, Guard
from support.waiting import until
from support.worker.fleet_harness import FleetHarness, Stub
from support.worker.harness import PLAIN, Harness

# Looking for garbage among what is imported and collected takes half of the time of a collection of tests.
gc.disable()


def pytest_collection_finish() -> None:
    """Let the collector look at what the tests make alone."""
    gc.freeze()
    gc.enable()


# Under nohup or in the background, these signals are ignored, and every started process would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where Python is to write no bytecode, as in a container, each of hundreds of processes would compile all of it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Behind a proxy, the proxy would answer for hosts that do not exist. SSL_CERT_FILE would be read for all settings.
for each in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
    os.environ.pop(each, None)
    os.environ.pop(each.lower(), None)

# Where local time is UTC, code that means one and takes the other would pass. No test expects local time.
os.environ["TZ"] = "Asia/Kathmandu"
time.tzset()

# A property holds however long a busy machine takes.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """Logs that a test has configured end with it: all that `configure_logs` sets is then as it was before."""
    root = logging.getLogger()
    handlers, level, warn = root.handlers[:], root.level, warnings.showwarning
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    yield
    if not structlog.is_configured():
        return
    structlog.reset_defaults()
    # A logger that was first used meanwhile would go on as it was configured then, and nobody could capture it.
    for name, module in list(sys.modules.items()):
        for logger in vars(module).values() if name.startswith("credhook") else ():
            if isinstance(logger, structlog._config.BoundLoggerLazyProxy):  # noqa: SLF001  It has no public name.
                vars(logger).pop("bind", None)
    root.handlers[:], warnings.showwarning = handlers, warn
    root.setLevel(level)
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[str]:
    """URL of a Redis that only this test process uses; configured as deploy/redis.conf."""
    folder: Path = tmp_path_factory.mktemp("redis")
    guard = Guard(folder, authority)
    with local_redis(folder, options=guard.options()) as url:
        guard.url = url
        GUARDS.append(guard)
        yield url
        assert guard.denied() == []


@pytest.fixture(scope="module")
def in_memory(redis_server: str) -> Iterator[None]:
    """A Redis without an append-only file, for tests that empty it a thousand times; it has one again after them."""
    with Redis.from_url(redis_server) as client:
        client.config_set("appendonly", "no")
        yield
        client.flushall()
        client.config_set("appendonly", "yes")
        # Until the file is written, Redis refuses to end, and would be waited for.
        until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], what="the append-only file")


@pytest.fixture(scope="module")
def module_redis(redis_server: str) -> str:
    """URL of that Redis, emptied at the start of a file: another file may have left a queue that no receiver takes."""
    with Redis.from_url(redis_server) as client:
        client.flushall()
    return redis_server


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """URL of that Redis, emptied."""
    with Redis.from_url(redis_server) as client:
        client.flushall()
    return redis_server


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def async_redis(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """The processes' own client: a task that waits for redis-py's may outlive its cancellation."""
    async with open_redis(redis_url) as client:
        yield client


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """The authority that the sandbox trusts besides the system's."""
    return trustme.CA()


@pytest.fixture(scope="session")
def ca(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture(scope="session")
def sandbox(ca: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The sandbox of all tests of this process. A test that sets faults or registers endpoints removes them."""
    with platform(tmp_path_factory.mktemp("platform"), "--ca", str(ca)) as process:
        yield process


@pytest.fixture
def harness(tmp_path: Path, redis_url: str, sandbox: Platform) -> Iterator[Harness]:
    harness = Harness(tmp_path, redis_url, sandbox)
    harness.plugin(PLAIN)
    yield harness
    sandbox.clear()
    harness.redis.close()


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A platform that answers as the test says."""
    with Stub().running() as stub:
        yield stub


@pytest.fixture
def rig(tmp_path: Path, redis_url: str, stub: Stub) -> Iterator[FleetHarness]:
    rig = FleetHarness(tmp_path, redis_url, stub)
    yield rig
    rig.redis.close()
