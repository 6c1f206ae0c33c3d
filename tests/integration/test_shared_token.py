"""One token for a fleet: real processes, threads and tasks, a real Redis, and a token endpoint that counts."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from redis import Redis
from structlog.testing import capture_logs
from waiting import until, until_async

from credhook.sandbox.local.local_redis import free_port
from credhook.worker.api.auth import ClientCredentials
from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.errors import ApiError, NotAuthenticated, TryLater
from credhook.worker.fleet.shared_token import LONGEST_LOCK, SharedTokens, key_name
from credhook.worker.settings import WorkerSettings

SECRET = "s3cret-of-the-client"


class Platform:
    """A token endpoint and an API. What they do next is set by the test, while they run.

    Attributes:
        granted: each token, in order, with the client secret that it was granted to.
        good: the tokens that the API takes.
        seen: the tokens that the API was shown.
        lifetime: seconds, of the next token.
        refusal: status and headers, instead of a token.
        hangs_up: no answer, instead of a token.
        answers: while it is clear, token requests wait.
        waiting: token requests that have come.
    """

    def __init__(self) -> None:
        self.granted: list[str] = []
        self.good: set[str] = set()
        self.seen: list[str] = []
        self.lifetime = 300
        self.refusal: tuple[int, dict[str, str]] | None = None
        self.hangs_up = False
        self.answers = threading.Event()
        self.answers.set()
        self.waiting = 0
        self.url = ""

    def token(self, form: dict[str, list[str]]) -> tuple[int, dict[str, str], object] | None:
        self.waiting += 1
        assert self.answers.wait(30)
        if self.hangs_up:
            return None
        if self.refusal:
            return *self.refusal, {"error": "invalid_client"}
        token = f"token-{len(self.granted)}-of-{form['client_secret'][0][::-1]}"
        self.granted.append(token)
        self.good.add(token)
        return 200, {}, {"access_token": token, "expires_in": self.lifetime, "token_type": "Bearer"}

    def presentation(self, token: str) -> tuple[int, dict[str, str], object]:
        self.seen.append(token)
        return (200, {}, {"id": "p", "status": "verified"}) if token in self.good else (401, {}, {})


def handler(platform: Platform) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            self.answer(platform.token(parse_qs(body)))

        def do_GET(self) -> None:
            self.answer(platform.presentation(self.headers["authorization"].removeprefix("Bearer ")))

        def answer(self, answer: tuple[int, dict[str, str], object] | None) -> None:
            if answer is None:
                return
            status, headers, document = answer
            body = json.dumps(document).encode()
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def platform() -> Iterator[Platform]:
    platform = Platform()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(platform)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        platform.url = f"http://127.0.0.1:{server.server_port}"
        yield platform
        platform.answers.set()
        server.shutdown()
        thread.join()


def environment(platform: Platform, redis_url: str, **more: str) -> dict[str, str]:
    return {
        "REDIS_URL": redis_url,
        "CREDHOOK_API_URL": platform.url,
        "CREDHOOK_TOKEN_URL": f"{platform.url}/token",
        "CREDHOOK_CLIENT_ID": "me",
        "CREDHOOK_CLIENT_SECRET": SECRET,
    } | more


def key(platform: Platform) -> str:
    return key_name(f"{platform.url}/token", "me")


class Member:
    """What one process of a fleet has: credentials, and a connection to Redis, of its own."""

    def __init__(self, platform: Platform, redis_url: str, **more: str) -> None:
        values: dict[str, Any] = environment(platform, redis_url, **more)
        settings = WorkerSettings(**values)
        self.tokens = SharedTokens.from_settings(settings)
        self.auth = ClientCredentials.from_settings(settings, tokens=self.tokens)
        self.api = SyncApi.from_settings(settings, auth=self.auth)
        self.async_api = AsyncApi.from_settings(settings, auth=self.auth)

    def get(self) -> str | ApiError:
        """Call the API once: what it answered, or why not."""
        try:
            return self.api.presentations.get("p").id
        except ApiError as error:
            return error

    def close(self) -> None:
        self.api.close()
        self.tokens._redis.close()


@contextmanager
def fleet(number: int, platform: Platform, redis_url: str, **more: str) -> Iterator[list[Member]]:
    with ExitStack() as stack:
        members = [Member(platform, redis_url, **more) for _ in range(number)]
        for member in members:
            stack.callback(member.close)
        yield members


def at_once(members: list[Member]) -> list[str | ApiError]:
    with ThreadPoolExecutor(len(members)) as threads:
        return [*threads.map(Member.get, members)]


# Real processes.

#: Calls the API once for each line that it reads.
MEMBER = """
import sys
from credhook.logs import configure_logs
from credhook.worker.api.auth import ClientCredentials
from credhook.worker.api.client import SyncApi
from credhook.worker.settings import WorkerSettings
from credhook.worker.fleet.shared_token import SharedTokens

configure_logs()
settings = WorkerSettings()
auth = ClientCredentials.from_settings(settings, tokens=SharedTokens.from_settings(settings))
with SyncApi.from_settings(settings, auth=auth) as api:
    print("ready", flush=True)
    for _ in sys.stdin:
        print(api.presentations.get("p").id, flush=True)
"""


class Child:
    """A member as a process."""

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", MEMBER],
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


@pytest.fixture
def children(platform: Platform, redis_url: str, tmp_path: Path) -> Iterator[list[Child]]:
    children = [Child(tmp_path / f"{number}.log", environment(platform, redis_url)) for number in range(4)]
    try:
        assert [child.says() for child in children] == ["ready"] * 4
        yield children
    finally:
        for child in children:
            child.kill()


def all_get_it(children: list[Child]) -> bool:
    for child in children:
        child.go()
    return [child.says() for child in children] == ["p"] * len(children)


def lock_tries(redis_client: Redis) -> int:
    """How often SET was called since the figures were reset: nobody stores a token while none is granted."""
    return int(redis_client.info("commandstats").get("cmdstat_set", {}).get("calls", 0))


def test_four_processes_at_once_make_one_token_request_at_first_after_expiry_and_after_a_401(
    platform: Platform, redis_client: Redis, children: list[Child]
) -> None:
    platform.lifetime = 8
    platform.answers.clear()
    redis_client.config_resetstat()
    for child in children:
        child.go()
    until(lambda: lock_tries(redis_client) >= 4, what="a try at the lock by each")
    assert redis_client.pttl(f"{key(platform)}:lock") > 0
    platform.answers.set()
    assert [child.says() for child in children] == ["p"] * 4
    assert len(platform.granted) == platform.waiting == 1

    until(lambda: not redis_client.exists(key(platform)), what="the token's end")
    platform.lifetime = 300
    assert all_get_it(children)
    assert len(platform.granted) == 2

    platform.good.clear()
    assert all_get_it(children)
    assert len(platform.granted) == 3
    assert sorted(platform.seen[-8:]) == [platform.granted[1]] * 4 + [platform.granted[2]] * 4
    assert redis_client.keys() == [key(platform).encode()]


def test_a_process_that_is_killed_while_it_fetches_holds_the_others_up_for_seconds(
    platform: Platform, redis_client: Redis, children: list[Child]
) -> None:
    platform.answers.clear()
    children[0].go()
    until(lambda: platform.waiting, what="the token request")
    children[0].kill()
    for child in children[1:]:
        child.go()
    until(lambda: lock_tries(redis_client) >= 4, what="a try at the lock by each")
    assert platform.waiting == 1
    platform.answers.set()
    assert [child.says() for child in children[1:]] == ["p"] * 3
    assert platform.waiting == 2


def test_nothing_in_redis_can_be_read(platform: Platform, redis_client: Redis, children: list[Child]) -> None:
    platform.answers.clear()
    children[0].go()
    until(lambda: platform.waiting, what="the token request")
    platform.answers.set()
    assert children[0].says() == "p"
    platform.refusal = (401, {})
    platform.good.clear()
    children[1].go()
    assert children[1].says() == ""
    names = [key(platform), f"{key(platform)}:refused"]
    assert redis_client.exists(names[1])
    assert all(redis_client.pttl(name) > 0 for name in redis_client.keys("*"))
    # The append-only file has every command that wrote something, whatever has become of its key.
    folder = Path(str(redis_client.config_get("dir")["dir"]))
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert written.count(key(platform).encode()) > 3
    for hidden in (platform.granted[0], SECRET, platform.url, "invalid_client", "NotAuthenticated"):
        assert hidden.encode() not in written
    for child in children:
        child.kill()
        assert platform.granted[0] not in child.log.read_text()
        assert SECRET not in child.log.read_text()


# Tasks and threads.


async def test_a_task_that_waits_for_another_members_fetch_does_not_hold_up_its_loop(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    with fleet(4, platform, redis_url) as members:
        platform.answers.clear()
        redis_client.config_resetstat()
        tasks = [asyncio.create_task(member.async_api.presentations.get("p")) for member in members]
        rounds = 0
        while lock_tries(redis_client) < 16:  # One by the member that has the lock, five by each of the others.
            await asyncio.sleep(0)
            rounds += 1
        platform.answers.set()
        await asyncio.gather(*tasks)
        for member in members:
            await member.async_api.aclose()
    assert platform.waiting == 1
    assert rounds > 60  # Some hundreds; were the loop held up, one for each try or two.


async def test_a_fetch_that_is_cancelled_is_taken_over_at_once(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    with fleet(2, platform, redis_url) as (first, second):
        platform.answers.clear()
        task = asyncio.create_task(first.async_api.presentations.get("p"))
        await until_async(lambda: platform.waiting)
        task.cancel()
        await asyncio.wait([task])
        assert redis_client.keys() == []
        platform.answers.set()
        assert second.get() == "p"
        await first.async_api.aclose()


def test_a_new_member_takes_the_token_that_is_there(platform: Platform, redis_url: str, redis_client: Redis) -> None:
    with fleet(2, platform, redis_url) as (first, second):
        assert first.get() == second.get() == "p"
        assert platform.waiting == 1
        mine, theirs = first.tokens.get(), second.tokens.get()
        assert mine
        assert theirs
        assert mine.renew_at - 1 < theirs.renew_at < mine.renew_at + 1
        assert 269_000 < redis_client.pttl(key(platform)) <= 270_000


def test_members_with_another_secret_have_another_token(platform: Platform, redis_url: str) -> None:
    with (
        fleet(1, platform, redis_url) as (ours,),
        fleet(1, platform, redis_url, CREDHOOK_CLIENT_SECRET="x") as (other,),
    ):
        with capture_logs() as logs:
            assert ours.get() == other.get() == ours.get() == "p"
        assert platform.granted == [f"token-0-of-{SECRET[::-1]}", "token-1-of-x"]
        assert [entry["event"] for entry in logs] == ["token_not_ours"]


@pytest.mark.parametrize("junk", [b"", b"\x01", b"plain text", b"\x01" + bytes(60)])
def test_junk_under_the_tokens_key_is_replaced(
    platform: Platform, redis_url: str, redis_client: Redis, junk: bytes
) -> None:
    redis_client.set(key(platform), junk)
    redis_client.set(f"{key(platform)}:refused", junk)
    with fleet(2, platform, redis_url) as (first, second):
        assert first.get() == second.get() == "p"
    assert platform.waiting == 1


class Late(Redis):
    """A connection to Redis that is slow to lock: something else happens before."""

    def __init__(self, before: Callable[[], object], **options: Any) -> None:
        super().__init__(**options)
        self.before = before

    def set(self, *args: Any, **options: Any) -> Any:
        if options.get("nx"):
            self.before()
        return super().set(*args, **options)


@pytest.mark.parametrize("refused", [False, True], ids=["granted", "refused"])
def test_what_another_member_was_told_just_before_our_lock_is_not_asked_for_again(
    platform: Platform, redis_url: str, redis_client: Redis, refused: bool
) -> None:
    platform.refusal = (401, {}) if refused else None
    with fleet(2, platform, redis_url) as (first, second):
        options = redis_client.connection_pool.connection_kwargs

        def told() -> None:
            first.get()
            redis_client.pexpire(f"{key(platform)}:refused", 9_000)

        with Late(told, host=options["host"], port=options["port"]) as late:
            second.tokens._redis.close()
            second.tokens._redis = late
            outcome = second.get()
        assert isinstance(outcome, NotAuthenticated) if refused else outcome == "p"
    assert platform.waiting == 1
    assert not redis_client.exists(f"{key(platform)}:lock")
    assert redis_client.pttl(f"{key(platform)}:refused") <= 9_000  # Nobody was refused anew.


def test_a_member_whose_lock_has_lapsed_leaves_the_next_ones_alone(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    with fleet(1, platform, redis_url) as (member,), ThreadPoolExecutor(1) as thread:
        platform.answers.clear()
        outcome = thread.submit(member.get)
        until(lambda: platform.waiting, what="the token request")
        redis_client.set(f"{key(platform)}:lock", "the next one's", px=60_000)
        platform.answers.set()
        assert outcome.result() == "p"
    assert redis_client.get(f"{key(platform)}:lock") == b"the next one's"


# After a 401.


def test_a_refused_token_is_forgotten_for_all_but_a_newer_one_stays(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    with fleet(3, platform, redis_url) as (first, second, third):
        assert at_once([first, second]) == ["p", "p"]
        platform.good.clear()
        assert first.get() == "p"
        newer = redis_client.get(key(platform))
        assert second.get() == "p"
        assert redis_client.get(key(platform)) == newer
        assert third.get() == "p"
    assert len(platform.granted) == 2


def test_a_refused_token_is_not_taken_again_even_if_redis_still_has_it(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    with fleet(1, platform, redis_url) as (member,):
        assert member.get() == "p"
        sealed = redis_client.get(key(platform))
        token = member.tokens.get()
        assert token
        member.tokens.invalidate(token)
        assert not redis_client.exists(key(platform))
        redis_client.set(key(platform), sealed or b"", px=100_000)
        assert member.get() == "p"
    assert len(platform.granted) == 2


# When the token endpoint refuses, or does not answer.


def test_a_refusal_is_everyones_for_a_while_and_not_asked_for_again(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    platform.refusal = (401, {})
    notes = set()
    with fleet(10, platform, redis_url) as members:
        for _ in range(2):
            outcomes = at_once(members)
            assert [type(each) for each in outcomes] == [NotAuthenticated] * 10
            assert {each.status for each in outcomes if isinstance(each, ApiError)} == {401}
            assert platform.waiting == 1
            notes.add(redis_client.get(f"{key(platform)}:refused"))
        assert len(notes) == 1  # Whoever is told does not tell it again.
        assert 0 < redis_client.pttl(f"{key(platform)}:refused") <= 10_000
        assert redis_client.keys() == [f"{key(platform)}:refused".encode()]
        platform.refusal = None
        with fleet(1, platform, redis_url, CREDHOOK_CLIENT_SECRET="mended") as (mended,):
            assert mended.get() == "p"
        redis_client.delete(f"{key(platform)}:refused", key(platform))
        assert at_once(members) == ["p"] * 10


def test_a_busy_token_endpoint_is_left_alone_for_as_long_as_it_says(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    platform.refusal = (503, {"retry-after": "20"})
    with fleet(5, platform, redis_url) as members:
        for outcome in at_once(members):
            assert isinstance(outcome, TryLater)
            assert outcome.status == 503
            assert outcome.retry_after is not None
            assert 15 < outcome.retry_after <= 20
    assert platform.waiting == 1
    assert 15_000 < redis_client.pttl(f"{key(platform)}:refused") <= 20_000


def test_a_token_request_without_an_answer_is_the_next_ones_to_try(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    platform.hangs_up = True
    with fleet(3, platform, redis_url) as members:
        assert [type(each) for each in at_once(members)] == [TryLater] * 3
        assert platform.waiting == 3
        assert redis_client.keys() == []
        platform.hangs_up = False
        assert at_once(members) == ["p"] * 3
    assert platform.waiting == 4


def test_a_lock_that_is_renewed_again_and_again_is_waited_for_only_so_long_and_stays_its_holders(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    lock = f"{key(platform)}:lock"
    with fleet(1, platform, redis_url, CREDHOOK_FETCH_TIMEOUT="0.5") as (member,):
        redis_client.set(lock, "somebody's", px=4_900)
        began = time.monotonic()
        assert member.get() == "p"
        assert time.monotonic() - began >= 2
        assert redis_client.get(lock) == b"somebody's"
    with fleet(1, platform, redis_url) as (other,):
        assert other.get() == "p"
    assert platform.waiting == 1


# What somebody else has written there.

DAY_MS = 86_400_000


def of(kind: str) -> Callable[[Redis, str], object]:
    """Put a value of that type under a name."""
    return {
        "hash": lambda redis, name: redis.hset(name, "a", "b"),
        "list": lambda redis, name: redis.lpush(name, "a"),
        "text": lambda redis, name: redis.set(name, b"plain \xff text"),
        "text for a day": lambda redis, name: redis.set(name, b"plain", px=DAY_MS),
    }[kind]


@pytest.mark.parametrize("kind", ["hash", "list", "text", "text for a day"])
@pytest.mark.parametrize("suffix", ["", ":lock", ":refused"])
def test_what_somebody_else_has_written_there_is_replaced_and_holds_nobody_up(
    platform: Platform, redis_url: str, redis_client: Redis, suffix: str, kind: str
) -> None:
    of(kind)(redis_client, key(platform) + suffix)
    with fleet(3, platform, redis_url) as members, capture_logs() as logs:
        began = time.monotonic()
        assert at_once(members) == ["p"] * 3
        assert time.monotonic() - began < LONGEST_LOCK
        said = [entry["event"] for entry in logs]
        platform.good.clear()
        for member in members:  # They share still, whatever stood there.
            assert member.get() == "p"
    assert platform.waiting == 2
    assert "token_not_shared" not in said
    assert redis_client.type(key(platform)) == b"string"
    assert redis_client.pttl(key(platform)) > 0
    assert not redis_client.exists(f"{key(platform)}:lock")
    # Not of a text where a refusal stands: what another secret has sealed looks the same.
    whose = 0 if suffix == ":refused" and kind.startswith("text") else 1
    assert len({entry["key"] for entry in logs if "key" in entry}) == whose
    assert said.count("shared_unreadable") + said.count("token_not_ours") <= len(members)


def test_a_lock_that_has_become_something_else_is_left_alone_and_the_token_shared(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    lock = f"{key(platform)}:lock"
    with fleet(2, platform, redis_url) as (member, other), ThreadPoolExecutor(1) as thread, capture_logs() as logs:
        platform.answers.clear()
        outcome = thread.submit(member.get)
        until(lambda: platform.waiting, what="the token request")
        redis_client.delete(lock)
        redis_client.hset(lock, "a", "b")
        platform.answers.set()
        assert outcome.result() == "p"
        assert other.get() == "p"
    assert platform.waiting == 1
    assert redis_client.type(lock) == b"hash"
    assert logs == []


@pytest.mark.parametrize("note", [b"[]", b"{", b'["OfTomorrow", 418]', b'["TryLater"]', b"7"])
def test_a_refusal_of_a_form_that_is_not_known_counts_for_nothing(
    platform: Platform, redis_url: str, redis_client: Redis, note: bytes
) -> None:
    with fleet(1, platform, redis_url) as (member,):
        name = f"{key(platform)}:refused"
        redis_client.set(name, member.tokens._seal.close(note, name), px=9_000)
        with capture_logs() as logs:
            assert member.get() == "p"
    assert [(entry["event"], entry["what"]) for entry in logs] == [("shared_unreadable", "refusal")]


@pytest.mark.parametrize("ends", [None, DAY_MS], ids=["never", "after a day"])
def test_a_refusal_that_would_last_for_longer_than_any_is_not_believed(
    platform: Platform, redis_url: str, redis_client: Redis, ends: int | None
) -> None:
    platform.refusal = (401, {})
    with fleet(2, platform, redis_url) as (first, second):
        assert isinstance(first.get(), NotAuthenticated)
        platform.refusal = None
        assert isinstance(second.get(), NotAuthenticated)
        name = f"{key(platform)}:refused"
        redis_client.set(name, redis_client.get(name) or b"", px=ends)
        assert second.get() == "p"
    assert platform.waiting == 2


# When Redis is no help.


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    assert call() == "p"
    return time.monotonic() - began


def twice_without_redis(platform: Platform, redis_url: str) -> tuple[float, float]:
    """Seconds that a token takes a member, and the next one."""
    with fleet(1, platform, redis_url) as (member,), capture_logs() as logs:
        first = timed(member.get)
        platform.good.clear()
        second = timed(member.get)
    assert [entry["event"] for entry in logs] == ["token_not_shared"]
    assert len(platform.granted) == 2
    return first, second


def test_without_redis_a_member_has_a_token_of_its_own(platform: Platform) -> None:
    assert max(twice_without_redis(platform, f"redis://127.0.0.1:{free_port()}/0")) < 4


def test_a_redis_that_hangs_costs_a_second_once(platform: Platform) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        first, second = twice_without_redis(platform, f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
    assert second < first < 5


def test_a_redis_that_hangs_while_the_token_is_fetched_costs_half_a_second(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    process = int(redis_client.info()["process_id"])
    with fleet(1, platform, redis_url) as (member,), ThreadPoolExecutor(1) as thread:
        platform.answers.clear()
        outcome = thread.submit(member.get)
        until(lambda: platform.waiting, what="the token request")
        os.kill(process, signal.SIGSTOP)
        try:
            platform.answers.set()
            assert timed(outcome.result) < 4
            platform.good.clear()
            assert timed(member.get) < 4
        finally:
            os.kill(process, signal.SIGCONT)


def test_a_redis_that_refuses_writes_keeps_nobody_from_a_token(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    redis_client.replicaof("127.0.0.1", str(free_port()))
    try:
        assert max(twice_without_redis(platform, redis_url)) < 4
    finally:
        redis_client.replicaof("NO", "ONE")


def test_a_full_redis_keeps_nobody_from_a_token(platform: Platform, redis_url: str, redis_client: Redis) -> None:
    redis_client.config_set("maxmemory", "1")
    try:
        assert max(twice_without_redis(platform, redis_url)) < 4
    finally:
        redis_client.config_set("maxmemory", "0")
