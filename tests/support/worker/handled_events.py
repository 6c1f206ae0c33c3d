"""The events that the handler of `harness.HELD` has begun and ended."""

from redis import Redis

from support.store.stores import INDEX
from support.waiting import until
from support.worker.harness import Harness


def handled(harness: Harness) -> list[str]:
    """Return the webhook-id of each run that ended well."""
    return sorted(line.split()[1] for line in harness.notes() if line.startswith("first"))


def begun(harness: Harness) -> list[str]:
    return [line.split()[1] for line in harness.notes() if line.startswith("begun")]


def left_of_rq(redis: Redis) -> set[str]:
    """Return RQ's keys of jobs, without those that its workers leave to expire."""
    about_workers = (b"rq:queues", b"rq:worker", b"rq:clean_registries", b"rq:scheduler")
    keys = {key for key in redis.scan_iter("rq:*") if not key.startswith(about_workers)}
    expire = {key for key in keys if key.startswith((b"rq:results:", b"rq:execution:")) and redis.ttl(key) > 0}
    return {key.decode() for key in keys - expire}


def handled_once(harness: Harness, *ids: str) -> None:
    """Assert that each of these events was handled once, and that only its record is left."""
    for one in ids:
        harness.reaches(one, "done")
    until(lambda: not left_of_rq(harness.redis), within=60, what=f"the end of {left_of_rq(harness.redis)}")
    assert handled(harness) == sorted(ids)
    for key in (INDEX.open, INDEX.leases, INDEX.dead, INDEX.urgent, INDEX.jobs):
        assert not harness.redis.exists(key), key
