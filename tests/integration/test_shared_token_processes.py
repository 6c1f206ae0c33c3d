"""One token for a fleet of real processes, whose tasks and threads all call the platform."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from forked import Forked
from redis import Redis
from token_fleet import SECRET, Platform, serving
from waiting import until

from credhook.sandbox.local.local_redis import local_redis
from credhook.worker.platform.shared_token import LONGEST_LOCK
from credhook.worker.platform.token_key import granted_name


@pytest.fixture
def platform() -> Iterator[Platform]:
    with serving() as platform:
        yield platform


#: Has a worker's parts, and calls the API once for each line that it reads: in turn on the loop and from a thread.
MEMBER = """
import asyncio, itertools, signal, sys
from credhook.logs import configure_logs
from credhook.worker.attempt.build import build_worker
from credhook.worker.handlers.registry import Handlers, Registry
from credhook.worker.settings import WorkerSettings

async def main():
    async with build_worker(WorkerSettings(), Registry([Handlers("test")])) as parts:
        slot = parts.new_slot()
        print("ready", flush=True)
        for number in itertools.count(int(sys.argv[1])):
            if not await asyncio.to_thread(sys.stdin.readline):
                break
            if number % 2:
                presentation = await asyncio.to_thread(slot.in_thread.presentations.get, "p")
            else:
                presentation = await slot.calling.presentations.get("p")
            print(presentation.id, flush=True)

configure_logs()
signal.signal(signal.SIGINT, signal.default_int_handler)  # Whatever whoever started us thinks of it.
asyncio.run(main())
"""


class Child:
    """A member as a process."""

    def __init__(self, number: int, log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("w") as errors:
            self.process: Forked[str] = Forked(
                [sys.executable, "-c", MEMBER, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | environment,
            )

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def says(self) -> str:
        """The next line; empty if the process has ended."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def started(platform: Platform, redis_url: str, folder: Path) -> Iterator[list[Child]]:
    """Four of them."""
    environment = platform.environment(redis_url)
    children = [Child(number, folder / f"{number}.log", environment) for number in range(4)]
    try:
        assert [child.says() for child in children] == ["ready"] * 4
        yield children
    finally:
        for child in children:
            child.kill()


@pytest.fixture
def children(platform: Platform, redis_url: str, tmp_path: Path) -> Iterator[list[Child]]:
    with started(platform, redis_url, tmp_path) as children:
        yield children


def all_get_it(children: list[Child]) -> bool:
    for child in children:
        child.go()
    return [child.says() for child in children] == ["p"] * len(children)


def lock_tries(redis_client: Redis) -> int:
    """How often SET was called since the figures were reset: nobody stores a token while none is granted."""
    return int(redis_client.info("commandstats").get("cmdstat_set", {}).get("calls", 0))


def all_have_tried(redis_client: Redis, lock: str) -> bool:
    """Whether each of the four has tried to get the lock, which lapses for none of them before that."""
    redis_client.pexpire(lock, int(1_000 * LONGEST_LOCK))
    return lock_tries(redis_client) >= 4


def test_four_processes_at_once_make_one_token_request_at_first_after_expiry_and_after_a_401(
    platform: Platform, redis_client: Redis, children: list[Child]
) -> None:
    platform.lifetime = 8
    platform.answers.clear()
    redis_client.config_resetstat()
    for child in children:
        child.go()
    until(partial(all_have_tried, redis_client, f"{platform.key}:lock"), what="a try at the lock by each")
    platform.answers.set()
    assert [child.says() for child in children] == ["p"] * 4
    assert len(platform.granted) == platform.waiting == 1

    until(lambda: not redis_client.exists(platform.key), what="the token's end")
    platform.lifetime = 300
    assert all_get_it(children)
    assert len(platform.granted) == 2

    platform.good.clear()
    assert all_get_it(children)
    assert len(platform.granted) == 3
    assert sorted(platform.seen[-8:]) == [platform.granted[1]] * 4 + [platform.granted[2]] * 4
    assert set(redis_client.keys()) == {platform.key.encode(), granted_name(platform.key).encode()}


def test_a_process_that_is_killed_while_it_fetches_holds_the_others_up_for_seconds(
    platform: Platform, redis_client: Redis, children: list[Child]
) -> None:
    platform.answers.clear()
    children[0].go()
    until(lambda: platform.waiting, what="the token request")
    lock = f"{platform.key}:lock"
    assert redis_client.pttl(lock) <= 1_000 * LONGEST_LOCK
    assert redis_client.ttl(lock) != -1  # It would never lapse.
    children[0].kill()
    for child in children[1:]:
        child.go()
    until(partial(all_have_tried, redis_client, lock), what="a try at the lock by each")
    assert platform.waiting == 1
    redis_client.pexpire(lock, 1)
    platform.answers.set()
    assert [child.says() for child in children[1:]] == ["p"] * 3
    assert platform.waiting == 2


def test_a_process_that_ends_while_it_fetches_holds_nobody_up(
    platform: Platform, redis_client: Redis, children: list[Child]
) -> None:
    platform.answers.clear()
    children[0].go()
    until(lambda: platform.waiting, what="the token request")
    children[0].process.send_signal(signal.SIGINT)  # Python's own runner makes a cancellation of it.
    children[0].process.wait(60)
    assert redis_client.keys() == []
    platform.answers.set()
    assert all_get_it(children[1:])
    assert platform.waiting == 2


def test_nothing_in_redis_can_be_read(platform: Platform, tmp_path: Path) -> None:
    """Nor in its files: the append-only one has every command that wrote something, whatever has become of its key."""
    kept = tmp_path / "redis"
    kept.mkdir()
    with local_redis(kept) as url, Redis.from_url(url) as redis, started(platform, url, tmp_path) as children:
        children[0].go()
        assert children[0].says() == "p"
        platform.refusal = (401, {})
        platform.good.clear()
        children[1].go()
        assert children[1].says() == ""
        assert redis.exists(f"{platform.key}:refused")
        assert all(redis.pttl(name) > 0 for name in redis.keys("*"))
        written = b"".join(path.read_bytes() for path in kept.rglob("*") if path.is_file())
    assert written.count(platform.key.encode()) > 3
    logs = b"".join(child.log.read_bytes() for child in children)
    assert b"Unauthorized" in logs
    for hidden in (platform.granted[0], SECRET):
        assert hidden.encode() not in logs
    for hidden in (platform.granted[0], SECRET, platform.url, "invalid_client", "Unauthorized"):
        assert hidden.encode() not in written
