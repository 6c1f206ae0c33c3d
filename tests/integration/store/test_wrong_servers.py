"""Connections that lead to a wrong server after a failover, and Sentinels that are silent or want a password."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
import trustme
from redis import Redis
from redis.exceptions import RedisError

from credhook.events import Event
from credhook.receiver.inbox import Inbox, Outcome, StoreUnavailable
from credhook.sandbox.local.environment import free_port, local_redis
from credhook.settings import StoreSettings
from credhook.store.connection import RedisConnection, open_redis, open_redis_sync
from credhook.store.errors import SentinelRefused, hint, is_unwell
from credhook.worker.process.concurrent import ConcurrentWorker
from credhook.worker.queue.claims import Claims, operation
from support.platform.tunnel import tunnel
from support.redis.redis_addresses import sentinel
from support.store.stores import run_accept, store_on
from support.waiting import until

EVENT = "openid4vc.issuance.completed", "i1"


class Failover:
    """Two servers behind one path. The first one is the master, until `happen`; then it goes on as a replica."""

    def __init__(self, folder: Path, servers: tuple[str, str]) -> None:
        self._folder, self._clients = folder, [Redis.from_url(url) for url in servers]
        self.url = f"unix://{folder}/redis.sock"
        self._lead_to(0)

    def happen(self) -> None:
        old, new = self._clients
        old.replicaof("127.0.0.1", int(new.get_connection_kwargs()["port"]))
        self._lead_to(1)

    def _lead_to(self, number: int) -> None:
        (self._folder / "next").symlink_to(self._folder / str(number) / "redis.sock")
        (self._folder / "next").replace(self._folder / "redis.sock")


@pytest.fixture
def failover(tmp_path: Path) -> Iterator[Failover]:
    with ExitStack() as stack:
        urls = []
        for number in range(2):
            (folder := tmp_path / str(number)).mkdir()
            options = ("--unixsocket", str(folder / "redis.sock"))
            urls.append(stack.enter_context(local_redis(folder, options=options)))
        yield Failover(tmp_path, (urls[0], urls[1]))


async def test_one_refusal_of_a_replica_renews_all_connections(failover: Failover) -> None:
    with open_redis_sync(failover.url) as others:
        async with open_redis(failover.url) as client:
            store, other = store_on(client), store_on(others)
            await store.redis.ping()
            other.redis.ping()
            failover.happen()
            with pytest.raises(RedisError):
                await store.redis.set("credhook:credhook:any", 1)
            assert run_accept(other, ("m1", *EVENT)) == [b"accepted"]
            assert await run_accept(store, ("m1", *EVENT)) == [b"duplicate"]


async def test_refusal_within_the_replies_of_a_group_renews_all_connections(failover: Failover) -> None:
    """write.lua returns an error for each operation. Records come without a write that would refuse the whole group."""
    async with open_redis(failover.url) as client:
        store = store_on(client)
        await run_accept(store, ("m1", *EVENT))
        ((claim,), *_) = await Claims(store, lease=15, worker="w").take(1)
        failover.happen()
        record = operation("record", "m1", claim.fence, "a.handler", "done", 1, "", {})
        (refusal,) = await store.run("write", [store.retention, 15_000, "w", *record])
        assert is_unwell(refusal)
        assert await run_accept(store, ("m2", *EVENT)) == [b"accepted"]


async def test_receiver_leaves_a_replica_that_its_own_check_has_found(failover: Failover) -> None:
    async with open_redis(failover.url) as client:
        inbox = Inbox(store_on(client))
        assert await inbox.accept("m1", Event(*EVENT)) is Outcome.ACCEPTED
        failover.happen()
        assert [check.name for check in await inbox.examine() if check.failed] == ["master"]
        assert await inbox.accept("m1", Event(*EVENT)) is Outcome.ACCEPTED  # By the new master, which is empty.
        await inbox.aclose()


def address(*ports: int, login: str = "") -> str:
    return f"redis+sentinel://{login}{','.join(f'127.0.0.1:{port}' for port in ports)}/main"


async def test_silent_sentinel_costs_seconds(tmp_path: Path, redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, sentinel(tmp_path, port_of(redis_url)) as port:
        url = address(silent.getsockname()[1], port)
        until(lambda: answers(url), what="a Sentinel that knows the master")
        count_connections(silent)
        began = time.monotonic()
        async with open_redis(url) as client:  # Connecting as a whole takes five seconds at most.
            assert await client.ping()
        with open_redis_sync(url) as client:
            assert client.ping()
        assert time.monotonic() - began < 20  # It was a minute, with redis-py's own patience.
        assert count_connections(silent) == 2  # Neither client asks it again.


def count_connections(listener: socket.socket) -> int:
    """Accept and close the connections that wait, and return their number."""
    number = 0
    listener.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            number += 1
    return number


async def test_way_to_redis_is_limited_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credhook.store.connection.REDIS_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://:secret@127.0.0.1:{silent.getsockname()[1]}"
        async with open_redis(url, socket_timeout=60, socket_connect_timeout=60) as client:
            with pytest.raises(RedisError, match="connecting took too long"):
                await client.ping()


def answers(url: str) -> bool:
    with open_redis_sync(url) as client, suppress(RedisError):
        return bool(client.ping())
    return False


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[int]:
    """Run a Redis with a password, and a Sentinel with the same one. Yield the port of the Sentinel."""
    with (
        local_redis(tmp_path) as url,
        sentinel(tmp_path, port_of(url), "auth-pass main secret", password="secret") as port,
    ):
        with Redis.from_url(url) as client:
            client.config_set("requirepass", "secret")
        until(lambda: answers(address(port, login=":secret@")), what="a Sentinel that knows the master")
        yield port


async def test_sentinels_that_ask_get_the_password_of_redis(guarded: int) -> None:
    async with open_redis(address(free_port(), guarded, login=":secret@")) as client:  # The first one is gone.
        assert await client.ping()


@pytest.mark.parametrize("login", ["", ":wrong@"])
async def test_wrong_password_of_sentinels_is_called_wrong(guarded: int, login: str) -> None:
    url = address(guarded, login=login)
    async with open_redis(url) as client:
        with pytest.raises(SentinelRefused) as refusal:
            await client.ping()
    with open_redis_sync(url) as client, pytest.raises(SentinelRefused):
        client.ping()
    assert hint(refusal.value) == "the Sentinels want another password: set CREDHOOK_SENTINEL_PASSWORD"
    assert "wrong" not in str(refusal.value)


async def hints_of_both_clients(url: str) -> tuple[str, str]:
    """What is said of the error that the asynchronous client gets from this Redis, and the synchronous one."""
    async with open_redis(url) as client:
        with pytest.raises(RedisError) as failure:
            await client.ping()
    with open_redis_sync(url) as client, pytest.raises(RedisError) as failure_of_sync:
        client.ping()
    return hint(failure.value), hint(failure_of_sync.value)


@pytest.mark.parametrize(
    ("scheme", "authority", "advice"),
    [
        ("rediss", "other", "certificate is not trusted"),
        ("rediss", "own", "certificate is for another name"),
        ("redis", "own", "speaks TLS where REDIS_URL says redis"),
        (None, "own", "nothing listens there"),
    ],
)
async def test_advice_names_the_reason_why_no_sentinel_answers(
    scheme: str | None, authority: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = trustme.CA()
    (trustme.CA() if authority == "other" else own).cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with tunnel(own.issue_cert("localhost"), free_port()) as front:
        url = address(port_of(front) if scheme else free_port()).replace("redis", scheme or "redis", 1)
        hints = await hints_of_both_clients(url)
    assert all(advice in one for one in hints)


async def test_sentinels_that_know_no_such_master_are_not_called_silent(tmp_path: Path, redis_url: str) -> None:
    with sentinel(tmp_path, port_of(redis_url)) as port:
        until(lambda: answers(address(port)), what="a Sentinel that knows the master")
        url = address(free_port(), port).replace("/main", "/other")  # The first one is gone.
        hints = await hints_of_both_clients(url)
    assert all("knows a running master of that name" in one for one in hints)


async def test_sentinels_may_have_a_password_of_their_own(tmp_path: Path, redis_url: str) -> None:
    with sentinel(tmp_path, port_of(redis_url), password="its-own") as port:
        settings = StoreSettings.model_validate({"REDIS_URL": address(port), "CREDHOOK_SENTINEL_PASSWORD": "its-own"})
        until(lambda: knows_master(settings), what="a Sentinel that knows the master")
        async with settings.open_store().redis as client:
            assert await client.ping()


async def test_sentinels_may_have_users(tmp_path: Path, redis_url: str) -> None:
    with sentinel(tmp_path, port_of(redis_url)) as port:
        with Redis(port=port) as client:
            client.execute_command("ACL", "SETUSER", "credhook", "on", ">its-own", "+@all")
        login = {"CREDHOOK_SENTINEL_USERNAME": "credhook", "CREDHOOK_SENTINEL_PASSWORD": "its-own"}
        settings = StoreSettings.model_validate({"REDIS_URL": address(port), **login})
        until(lambda: knows_master(settings), what="a Sentinel that knows the master")
        async with settings.open_store().redis as client:
            assert await client.ping()


def knows_master(settings: StoreSettings) -> bool:
    with settings.open_store_sync().redis as client, suppress(RedisError):
        return bool(client.ping())
    return False


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"CREDHOOK_SENTINEL_PASSWORD": "p"}, "redis[+]sentinel://"),
        ({"REDIS_URL": "redis+sentinel://h/main", "CREDHOOK_SENTINEL_USERNAME": "u"}, "CREDHOOK_SENTINEL_PASSWORD"),
    ],
)
def test_settings_of_sentinels_need_each_other(environment: dict[str, str], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        StoreSettings.model_validate(environment)


class ForgettingBox:
    """Passes bytes on to Redis, until it forgets all connections: their bytes are dropped without a word."""

    def __init__(self, redis_url: str) -> None:
        self._port = port_of(redis_url)
        self._forgotten: list[asyncio.Event] = []
        self._writers: list[asyncio.StreamWriter] = []

    def forget(self) -> None:
        for connection in self._forgotten:
            connection.set()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        try:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        finally:
            server.close()
            for writer in self._writers:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._forgotten.append(forgotten := asyncio.Event())
        self._writers += [writer, redis_writer]

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65_536):
                if not forgotten.is_set():
                    target.write(data)

        await asyncio.gather(pump(reader, redis_writer), pump(redis_reader, writer))


@pytest.mark.parametrize("kind", ["the receiver's", "a pooled one"])
async def test_forgotten_connection_costs_a_second_and_no_error(
    kind: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = ForgettingBox(redis_url)
    async with box.passing() as url, open_redis(url) as client:
        if kind == "a pooled one":
            await client.ping()
            box.forget()
            monkeypatch.setattr("credhook.store.connection.IDLE_SECONDS", 0.0)
            assert await client.ping()
        else:
            inbox = Inbox(store_on(client))
            assert await inbox.accept("m1", Event(*EVENT)) is Outcome.ACCEPTED
            box.forget()
            monkeypatch.setattr("credhook.store.connection.IDLE_SECONDS", 0.0)
            assert await inbox.accept("m2", Event(*EVENT)) is Outcome.ACCEPTED
            await inbox.aclose()


async def test_time_limit_of_a_delivery_includes_the_wait_for_a_check(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = ForgettingBox(redis_url)
    async with box.passing() as url, open_redis(url) as client:
        inbox = Inbox(store_on(client))
        assert await inbox.accept("m1", Event(*EVENT)) is Outcome.ACCEPTED
        box.forget()
        checking = asyncio.create_task(inbox.examine())
        await asyncio.sleep(0.05)  # The check has the connection now, and five seconds.
        monkeypatch.setattr("credhook.receiver.inbox.REDIS_TIMEOUT", 0.1)
        with pytest.raises(StoreUnavailable, match="TimeoutError"):
            await inbox.accept("m2", Event(*EVENT))
        assert not checking.done()
        await inbox.aclose()
        await checking


async def test_reply_too_many_is_not_taken_for_the_next_reply() -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while commands := await reader.read(65_536):
            writer.write(b"+OK\r\n" * (commands.count(b"*") + (b"PING" in commands)))
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with server, open_redis(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0") as client:
        connection = RedisConnection(client)
        await connection.open()
        assert await connection.send(("PING",)) == [b"OK"]
        with pytest.raises(RedisError, match="unread reply"):
            await connection.send(("PING",))
        assert not connection.is_open


async def test_forgotten_subscription_ends_so_that_a_worker_makes_another(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("credhook.worker.process.concurrent._SILENT_SECONDS", 0.2)
    box, worker = ForgettingBox(redis_url), SimpleNamespace(pubsub_channel_name="commands")
    async with box.passing() as url, open_redis(url) as client:
        listening = asyncio.create_task(ConcurrentWorker._listen(cast(Any, worker), client))  # noqa: SLF001  Other work shares no fate with it.
        await asyncio.wait({listening}, timeout=1.0)
        assert not listening.done()
        box.forget()
        with pytest.raises(TimeoutError):
            await listening
