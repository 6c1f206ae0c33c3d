"""The inbox by itself: each request gets its outcome or the error, and the next group goes on."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from structlog.testing import capture_logs

from credhook.events import Event
from credhook.receiver.inbox import Inbox, Outcome, StoreUnavailable
from credhook.sandbox.local.environment import local_redis
from credhook.store.address import RedisAddress
from credhook.store.connection import open_redis
from credhook.store.erase import Erasure
from credhook.store.health import SharedExamination, ask
from credhook.store.selection import Selection
from support.redis.redis_proxy import RedisProxy, redis_proxy
from support.redis.redis_server import configured
from support.store.accepting import inbox_on, record
from support.store.stores import INDEX, store_on
from support.waiting import until, until_async

EVENT = Event("openid4vc.issuance.completed", "iss_1")


@pytest.fixture
async def inbox(async_redis: AsyncRedis) -> AsyncIterator[Inbox]:
    async with inbox_on(async_redis) as inbox:
        yield inbox


@pytest.fixture
def proxy(redis_url: str) -> Iterator[RedisProxy]:
    with redis_proxy(redis_url) as proxy:
        yield proxy


@pytest.fixture
async def proxied(proxy: RedisProxy) -> AsyncIterator[Inbox]:
    async with open_redis(RedisAddress.parse(proxy.url)) as client, inbox_on(client) as inbox:
        yield inbox


async def refuses(inbox: Inbox, webhook_id: str, why: str) -> None:
    """Check that the inbox does not take this delivery, and says why."""
    with pytest.raises(StoreUnavailable, match=why):
        await inbox.accept(webhook_id, EVENT)


async def test_a_delivery_that_cannot_be_written_is_refused_alone(inbox: Inbox) -> None:
    assert await inbox.accept("m1", EVENT) is Outcome.ACCEPTED
    for _ in range(2):  # With a connection that stands, and with one that is opened anew.
        await refuses(inbox, "\ud800", "UnicodeEncodeError")
    gone, stays = (asyncio.create_task(inbox.accept("\ud800", EVENT)) for _ in range(2))
    asyncio.get_running_loop().call_soon(gone.cancel)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(stays, 60)
    assert await inbox.accept("m1", EVENT) is Outcome.DUPLICATE


async def test_an_outage_lasts_since_its_own_beginning(inbox: Inbox) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            began = time.monotonic()
            for _ in range(2):  # It lasts since the first refusal.
                with pytest.raises(StoreUnavailable):
                    await inbox.accept("\ud800", EVENT)
                await asyncio.sleep(0.3)
            await inbox.accept("m1", EVENT)
            lasted = [line["seconds"] for line in logs if line["event"] == "redis_recovered"]
            assert 0.55 <= lasted.pop() <= time.monotonic() - began + 0.05
    assert [line["event"] for line in logs].count("inbox_failed") == 6  # It is a defect of ours.
    inbox.end_outage()  # It is over.
    assert len([line for line in logs if line["event"] == "redis_recovered"]) == 3


async def test_inbox_gives_each_request_of_a_group_its_own_outcome(inbox: Inbox) -> None:
    def groups(up_to: str) -> float:
        return REGISTRY.get_sample_value("credhook_group_size_bucket", {"le": up_to}) or 0.0

    before, confirmed = groups("500.0"), REGISTRY.get_sample_value("credhook_store_duration_seconds_count") or 0
    ids = [f"m{number // 3}" for number in range(2_100)]  # Each id thrice in a group or two.
    outcomes = await asyncio.gather(*(inbox.accept(one, EVENT) for one in ids))
    assert groups("500.0") - before == 5
    assert REGISTRY.get_sample_value("credhook_store_duration_seconds_count") == confirmed + 5
    assert groups("500.0") == groups("+Inf")
    assert outcomes == [Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.DUPLICATE] * 700
    assert inbox.acknowledged == 2_100
    await until_async(lambda: REGISTRY.get_sample_value("credhook_deliveries_in_flight") == 0, what="none in flight")


async def test_traced_deliveries_that_come_together_each_keep_their_trace(inbox: Inbox, redis_client: Redis) -> None:
    outcomes = await asyncio.gather(*(inbox.accept(one, EVENT, trace=f"trace {one}") for one in ("m1", "m2", "m3")))
    assert outcomes == [Outcome.ACCEPTED] * 3
    assert [record(redis_client, one)["trace"] for one in ("m1", "m2", "m3")] == ["trace m1", "trace m2", "trace m3"]


async def test_a_request_that_went_away_is_written_with_its_group(inbox: Inbox, redis_client: Redis) -> None:
    gone = asyncio.create_task(inbox.accept("m1", EVENT))
    stays = asyncio.create_task(inbox.accept("m2", EVENT))
    await asyncio.sleep(0)
    gone.cancel()
    assert await stays is Outcome.ACCEPTED
    assert redis_client.exists("credhook:credhook:event:m1")


#: Settings with which Redis takes writes and may lose them: setting, value, and named remedy.
UNSAFE = [
    ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ("maxmemory-policy", "volatile-ttl", "noeviction"),
    ("appendfsync", "no", "appendfsync"),
    ("no-appendfsync-on-rewrite", "yes", "no-appendfsync-on-rewrite"),
    ("min-replicas-to-write", "1", "ResponseError (NOREPLICAS|Error)$"),
]


@pytest.mark.parametrize(("setting", "value", "remedy"), UNSAFE, ids=str)
async def test_an_unsafe_redis_gets_no_acknowledgement(
    async_redis: AsyncRedis, redis_client: Redis, setting: str, value: str, remedy: str
) -> None:
    with configured(redis_client, setting, value), capture_logs() as logs:
        async with inbox_on(async_redis) as inbox:
            for _ in range(2):  # It is looked at each time.
                await refuses(inbox, "m1", remedy)
            assert "; " in inbox.unavailable  # The problem, then what to do.
    assert logs == []
    assert not redis_client.exists("credhook:credhook:event:m1")
    async with inbox_on(async_redis, durability="strict") as inbox:
        assert await inbox.accept("m1", EVENT) is Outcome.ACCEPTED


@pytest.mark.parametrize("durability", ["strict", "standard"])
async def test_a_writable_replica_and_no_file_are_not_enough(tmp_path: Path, redis_url: str, durability: str) -> None:
    with local_redis(tmp_path) as url, Redis.from_url(url) as client:
        client.config_set("replica-read-only", "no")
        client.replicaof("127.0.0.1", redis_url.rpartition(":")[2].partition("/")[0])
        client.set("writable", "1")
        async with AsyncRedis.from_url(url) as other, inbox_on(other, durability=durability) as inbox:
            await refuses(inbox, "m1", "is a replica")
            client.replicaof("NO", "ONE")
            assert await inbox.accept("m1", EVENT) is Outcome.ACCEPTED
            client.config_set("appendonly", "no")
            client.client_kill_filter(_type="normal", skipme=True)  # All connections but this one.
            await refuses(inbox, "m2", "appendonly")


async def test_replicated_means_a_replica_has_it_with_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credhook.receiver.inbox.REDIS_TIMEOUT", 2.0)
    with ExitStack() as stack:
        urls = []
        for name in ("master", "replica", "another"):
            (tmp_path / name).mkdir()
            urls.append(stack.enter_context(local_redis(tmp_path / name, options=("--appendonly", "no"))))
        url, other, _ = urls
        master, replica, another = (stack.enter_context(Redis.from_url(one)) for one in urls)
        port = url.rpartition(":")[2].partition("/")[0]
        async with AsyncRedis.from_url(url) as client, inbox_on(client, durability="replicated") as inbox:
            await refuses(inbox, "m0", "0 of 1 replicas")
            replica.replicaof("127.0.0.1", port)
            until(lambda: replica.info("replication")["master_link_status"] == "up")
            assert await inbox.accept("m1", EVENT) is Outcome.ACCEPTED
            assert replica.exists("credhook:credhook:event:m1")  # At once.
            process = replica.info("server")["process_id"]
            os.kill(process, signal.SIGSTOP)
            try:
                for _ in ("accepted", "duplicate"):  # Neither is acknowledged while the replica lacks it.
                    await refuses(inbox, "m2", "0 of 1 replicas")
                    until(lambda: not [one for one in master.client_list() if one["cmd"] == "wait"], what="the end")
            finally:
                os.kill(process, signal.SIGCONT)
            assert await inbox.accept("m2", EVENT) is Outcome.DUPLICATE
            async with inbox_on(client, durability="replicated:2") as wary:
                await refuses(wary, "m3", "1 of 2 replicas")
                another.replicaof("127.0.0.1", port)
                until(lambda: another.info("replication")["master_link_status"] == "up")
                assert await wary.accept("m4", EVENT) is Outcome.ACCEPTED
                os.kill(process, signal.SIGSTOP)
                try:
                    await refuses(wary, "m5", "1 of 2 replicas")
                finally:
                    os.kill(process, signal.SIGCONT)
        replica.replicaof("NO", "ONE")
        async with AsyncRedis.from_url(other) as client, inbox_on(client) as inbox:
            await refuses(inbox, "m2", "CREDHOOK_DURABILITY=replicated")  # The profiles without replicas need a file.


async def test_redis_is_asked_again_after_a_while_what_it_keeps(
    async_redis: AsyncRedis, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("credhook.receiver.inbox._FACTS_SECONDS", 0.0)
    async with inbox_on(async_redis, durability="strict") as inbox:
        assert await inbox.accept("m1", EVENT) is Outcome.ACCEPTED
        with configured(redis_client, "appendfsync", "no"), pytest.raises(StoreUnavailable, match="appendfsync"):
            await inbox.accept("m2", EVENT)
        assert await inbox.accept("m2", EVENT) is Outcome.ACCEPTED


async def test_a_script_that_redis_has_forgotten_is_given_again(inbox: Inbox, redis_client: Redis) -> None:
    for number in range(1, 4):
        assert await inbox.accept(f"m{number}", EVENT) is Outcome.ACCEPTED
        redis_client.script_flush()


async def test_the_inbox_finishes_its_groups_before_it_closes(proxy: RedisProxy, proxied: Inbox) -> None:
    assert await proxied.accept("m1", EVENT) is Outcome.ACCEPTED
    proxy.hold = True
    passed = proxy.commands
    under_way = asyncio.create_task(proxied.accept("m2", EVENT))
    await until_async(lambda: proxy.commands > passed)
    waiting = asyncio.create_task(proxied.accept("m3", EVENT))
    closing = asyncio.create_task(proxied.aclose())
    await asyncio.wait({closing}, timeout=0.2)
    assert not closing.done()
    proxy.hold = False
    assert [await under_way, await waiting] == [Outcome.ACCEPTED] * 2
    await closing


async def test_readiness_costs_redis_one_look_a_second(proxy: RedisProxy, proxied: Inbox) -> None:
    began, answers = time.monotonic(), [await proxied.examine()]
    asked = proxy.commands
    await asyncio.sleep(1.1)
    answers += await asyncio.gather(*(proxied.examine() for _ in range(200)))
    passed = time.monotonic() - began
    assert asked > 0
    assert proxy.commands <= asked * (2 + passed)
    assert all(answers)


async def test_checks_use_the_connection_of_deliveries(inbox: Inbox, redis_client: Redis) -> None:
    def connections() -> int:
        return int(redis_client.info("stats")["total_connections_received"])

    assert await inbox.accept("m1", EVENT) is Outcome.ACCEPTED
    before = connections()
    await inbox.examine()
    assert connections() == before


async def test_a_lost_first_reply_is_asked_for_once_more(proxy: RedisProxy, proxied: Inbox) -> None:
    """The connection is new, so no earlier command explains the loss."""
    proxy.lose = 1
    assert await proxied.accept("m1", EVENT) is Outcome.DUPLICATE  # It had been written.
    assert proxy.lost == 1


async def test_a_stalled_redis_is_refused_to_all_who_wait_and_recovers(
    proxy: RedisProxy, proxied: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("credhook.store.connection.REDIS_TIMEOUT", 0.5)
    assert await proxied.accept("m0", EVENT) is Outcome.ACCEPTED
    proxy.hold = True
    waiting = (proxied.accept(f"m{number}", EVENT) for number in range(60))
    refused = await asyncio.gather(*waiting, return_exceptions=True)
    assert {(type(one), str(one)) for one in refused} == {(StoreUnavailable, "TimeoutError")}
    proxy.hold = False
    assert await proxied.accept("m1", EVENT) in {Outcome.ACCEPTED, Outcome.DUPLICATE}


async def test_requests_that_wait_behind_a_refused_group_are_refused_with_it(inbox: Inbox, redis_client: Redis) -> None:
    """Each further group would meet the same refusal."""
    assert await inbox.accept("m1", EVENT) is Outcome.ACCEPTED
    redis_client.config_resetstat()
    with configured(redis_client, "maxmemory", "1"):
        sent = (inbox.accept(f"m{number}", EVENT) for number in range(2, 1_003))
        refused = await asyncio.gather(*sent, return_exceptions=True)
    assert {type(one) for one in refused} == {StoreUnavailable}
    statistics: Any = redis_client.info("commandstats")
    assert statistics["cmdstat_evalsha"]["calls"] == 1


async def test_a_closed_inbox_leaves_no_connection_and_has_logged(async_redis: AsyncRedis, redis_client: Redis) -> None:
    def connections() -> set[str]:
        return {one["id"] for one in redis_client.client_list(_type="normal")}

    before = connections()
    with capture_logs() as lines:
        async with inbox_on(async_redis) as inbox:
            assert await inbox.accept("m1", EVENT) is Outcome.ACCEPTED
            assert connections() > before
    await until_async(lambda: connections() == before)
    assert [line["event"] for line in lines] == ["events_accepted"]


async def test_many_deliveries_are_logged_in_lines_that_collectors_of_logs_take(inbox: Inbox) -> None:
    ids = [f"m{number}" for number in range(120)]
    with capture_logs() as lines:
        await asyncio.gather(*(inbox.accept(one, EVENT) for one in [*ids, "m0"]))
    logged = [(line["event"], len(line["events"])) for line in lines]
    assert sorted(logged) == [*(("events_accepted", size) for size in (20, 50, 50)), ("events_duplicate", 1)]
    assert [one["webhook_id"] for line in lines for one in line["events"] if line["event"] == "events_accepted"] == ids


async def test_an_unusual_delivery_has_a_log_line_of_its_own(inbox: Inbox, redis_client: Redis) -> None:
    redis_client.set("credhook:credhook:event:bad", "somebody else's")
    with capture_logs() as lines:
        await inbox.accept("m1", EVENT)
        conflicting = [inbox.accept("m1", Event(EVENT.type, one)) for one in ("iss_2", "iss_3")]
        assert await asyncio.gather(*conflicting) == [Outcome.CONFLICT] * 2
        assert inbox.conflicts == 2
        assert await inbox.accept("m2", Event("openid4vc.issuance.unheard_of", "iss_1")) is Outcome.QUARANTINED
        with pytest.raises(StoreUnavailable):
            await inbox.accept("bad", EVENT)
    assert inbox.acknowledged == 4
    logged = [(line["event"], line["webhook_id"]) for line in lines[1:]]
    assert logged == [*[("event_conflict", "m1")] * 2, ("event_quarantined", "m2"), ("event_unreadable", "bad")]
    assert lines[-1]["hint"] == "repair or delete the key of its record, which is not a hash"


async def test_delivery_of_an_erased_resource_is_acknowledged_and_logged_without_ids(
    inbox: Inbox, redis_client: Redis
) -> None:
    Erasure(store_on(redis_client), Selection(resource=EVENT.resource_id))([])
    with capture_logs() as lines:
        assert await inbox.accept("m1", EVENT) is Outcome.ERASED
    assert [line for line in lines if line["event"] == "events_erased"] == [
        {"event": "events_erased", "log_level": "info", "events": 1}
    ]
    assert not redis_client.exists(INDEX.jobs)


async def test_a_probe_that_goes_away_leaves_the_answer_to_the_others(async_redis: AsyncRedis) -> None:
    examine = SharedExamination(partial(ask, store_on(async_redis)), durability="standard")
    gone, other = (asyncio.create_task(examine()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await other)[0].passed
