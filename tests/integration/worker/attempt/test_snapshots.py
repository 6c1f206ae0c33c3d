import pytest
import redis.asyncio
from pydantic import SecretStr
from redis import Redis
from structlog.testing import capture_logs

from credhook.store.connection import open_redis
from credhook.worker.attempt.details import LARGEST, LIFETIME, Snapshots
from support.store.stores import SNAPSHOT, store_on

OLD, NEW = "old-key-of-thirty-two-characters", "new-key-of-thirty-two-characters"


@pytest.fixture(autouse=True)
def events(redis_client: Redis) -> None:
    """Two events in the store: nothing is kept of any other."""
    for event_id in ("e1", "e2"):
        redis_client.hset("credhook:credhook:event:" + event_id, "state", "accepted")


def snapshots(client: redis.asyncio.Redis, key: str | None = OLD) -> Snapshots:
    return Snapshots(store_on(client), SecretStr(key) if key else None)


async def test_second_snapshot_lives_no_longer_than_the_first(async_redis: redis.asyncio.Redis) -> None:
    kept = snapshots(async_redis)
    await kept.keep("e1", 1, "r-e1", b"first")
    assert LIFETIME - 60 < await async_redis.ttl(SNAPSHOT + "r-e1") <= LIFETIME == 24 * 3_600
    await async_redis.expire(SNAPSHOT + "r-e1", 100)
    await kept.keep("e1", 1, "r-e1", b"second")
    assert 0 < await async_redis.ttl(SNAPSHOT + "r-e1") <= 100
    assert await kept.find("e1", "r-e1") == b"second"
    await async_redis.pexpire(SNAPSHOT + "r-e1", 450)  # Redis's TTL says 0 of that.
    await kept.keep("e1", 1, "r-e1", b"third")
    assert await async_redis.pttl(SNAPSHOT + "r-e1") <= 450
    await async_redis.expire(SNAPSHOT + "r-e1", 2 * LIFETIME)  # Redis's clock was set back by a day.
    await kept.keep("e1", 1, "r-e1", b"fourth")
    assert await async_redis.ttl(SNAPSHOT + "r-e1") <= LIFETIME


async def test_event_without_a_snapshot_key_is_only_marked_as_seen(async_redis: redis.asyncio.Redis) -> None:
    kept, without = snapshots(async_redis), snapshots(async_redis, None)
    await without.keep("e1", 1, "r-e1", b"details")
    assert await without.find("e1", "r-e1") == b"details"  # In memory.
    without.recent.drop("e1")
    assert await async_redis.keys("credhook:credhook:snapshot:*") == []
    await kept.keep("e2", 1, "r-e2", b"details")
    for event_id, found in (("e1", None), ("e2", b"details")):
        assert (await kept.find(event_id, "r-" + event_id), await without.find(event_id, "r-" + event_id)) == (
            found,
            None,
        )
        assert await async_redis.hget("credhook:credhook:event:" + event_id, "seen") == b"1"


async def test_first_key_seals_and_all_keys_open(async_redis: redis.asyncio.Redis) -> None:
    await snapshots(async_redis).keep("e1", 1, "r-e1", b"one")
    rotated = snapshots(async_redis, f"{NEW} {OLD}")
    assert await rotated.find("e1", "r-e1") == b"one"
    await rotated.keep("e2", 1, "r-e2", b"two")
    assert await snapshots(async_redis, NEW).find("e2", "r-e2") == b"two"


@pytest.mark.parametrize("broken", ["another key", "moved", "cut", "empty", "no text"])
async def test_snapshot_that_cannot_be_opened_is_logged(async_redis: redis.asyncio.Redis, broken: str) -> None:
    await snapshots(async_redis).keep("e1", 1, "r-e1", b"details")
    sealed = await async_redis.get(SNAPSHOT + "r-e1")
    assert isinstance(sealed, bytes)
    event, key = ("e2", OLD) if broken == "moved" else ("e1", NEW if broken == "another key" else OLD)
    await async_redis.set(SNAPSHOT + "r-" + event, {"cut": sealed[:-1], "empty": b""}.get(broken, sealed))
    if broken == "no text":
        await async_redis.delete(SNAPSHOT + "r-" + event)
        await async_redis.hset(SNAPSHOT + "r-" + event, "of", "another program")
    kept = snapshots(async_redis, key)
    with capture_logs() as logs:
        assert await kept.find(event, "r-" + event) is None
    assert [(entry["event"], entry["webhook_id"]) for entry in logs] == [("snapshot_unreadable", event)]
    await kept.keep(event, 1, "r-" + event, b"again")
    assert await kept.find(event, "r-" + event) == b"again"


async def test_settled_erased_and_large_events_leave_no_snapshot(async_redis: redis.asyncio.Redis) -> None:
    kept = snapshots(async_redis)
    await async_redis.hset("credhook:credhook:event:e2", "state", "done")
    for gone in ("e2", "erased"):
        await kept.keep(gone, 1, "r-" + gone, b"details")
    with capture_logs() as logs:
        await kept.keep("e1", 1, "r-e1", b"x" * (LARGEST + 1))
    assert [line["event"] for line in logs] == ["snapshot_too_large"]
    assert await async_redis.keys("credhook:credhook:snapshot:*") == []
    await kept.keep("e1", 1, "r-e1", b"x" * LARGEST)
    assert await kept.find("e1", "r-e1") == b"x" * 262_144


async def test_failing_redis_is_logged_only_for_a_snapshot() -> None:
    async with open_redis("redis://127.0.0.1:1/0") as nowhere:
        with capture_logs() as logs:
            await snapshots(nowhere, None).keep("e1", 1, "r-e1", b"details")
            await snapshots(nowhere).keep("e2", 1, "r-e2", b"details")
    assert [(line["event"], line["webhook_id"]) for line in logs] == [("snapshot_not_kept", "e2")]
