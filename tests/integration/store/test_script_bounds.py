"""Every script on stores whose events agree in what scripts look for: none reads more because there are more events."""

import asyncio
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from credhook.events import EVENT_TYPES
from credhook.receiver.inbox import MAX_GROUP
from credhook.sandbox.local.environment import local_redis
from credhook.store import State
from credhook.store.bulk import BATCH, batched
from credhook.store.erase import Erasure
from credhook.store.replay import Replay, Settled
from credhook.store.selection import Selection, read_page
from credhook.worker.queue.claims import Candidates, Claims, Settlement
from credhook.worker.queue.failure import Failure
from credhook.worker.queue.leases import note_death, put_back
from credhook.worker.queue.sweeper import Sweeper
from credhook.worker.queue.unhandled import Unhandled
from support.store.store_shapes import DEAD_WORKER, RETENTION, MeasuredStore, fill_shape
from support.store.stores import INDEX, last_entry, run_accept
from support.worker.claiming import COMPLETED

#: More events than one script claims.
PLACES = 300
FAILURE = Failure("test.first", "ValueError", "test first", "test.py:1 first")
OTHER_FAILURE = Failure("test.first", "TypeError", "test first", "test.py:1 first")
FAILED: dict[str, Any] = {"failures": (FAILURE,), "causes": {"test.first": FAILURE.cause}, "history": {"began": 1}}
#: With the longest id, 512 bytes, none of which RQ allows.
LONG = "+" * 505
LONG_AGO = 10_000_000.0
CLOSED: dict[str, Any] = {"lasts": RETENTION}

SHAPES: dict[str, dict[str, Any]] = {
    "one resource": {"resource": "r1", "queued": "1"},
    "blocked behind one event": {"resource": "r1", "queued": "blocked"},
    "blocked and gone": {"resource": "r1", "queued": "blocked", "state": "", "listed": ""},
    "one second": {"queued": "1"},
    "retries of one second": {"queued": "due", "state": "waiting"},
    "long ids": {"queued": "1", "padding": LONG},
    "retries of long ids": {"queued": "due", "state": "waiting", "padding": LONG},
    "one resource, long ids": {"queued": "1", "padding": LONG, "resource": "r1"},
    "jobs of events that are gone": {"queued": "1", "state": "", "listed": ""},
    "held by one worker": {"holder": DEAD_WORKER},
    "held by others": {"holder": "alive"},
    "unknown types": {"state": "quarantined", "listed": INDEX.quarantined, "kind": "new.", **CLOSED},
    "dead of one cause": {"state": "dead", "listed": INDEX.dead, "cause": FAILURE.cause, **CLOSED},
    "unhandled": {"state": "unhandled", "listed": INDEX.unhandled + COMPLETED, **CLOSED},
    "quarantined long ago": {"state": "", "listed": INDEX.quarantined, "age": LONG_AGO},
}
#: Of the shapes, those that differ in nothing but time.
LONGER = {
    *("one second", "one resource", "quarantined long ago", "long ids", "retries of long ids"),
    *("one resource, long ids", "held by others", "dead of one cause"),
}


def accept(store: MeasuredStore, name: str, event_type: str = COMPLETED, *, since: str = "") -> None:
    names = [f"{name}{number}" for number in range(MAX_GROUP)]
    run_accept(store, *((one, event_type, one) for one in names), since=since)
    run_accept(store, (f"{name} of one resource", event_type, "r1"), since=since)


async def work(store: MeasuredStore, settlement: Settlement) -> None:
    claims = Claims(store.for_async_code(), lease=60, worker="w")
    taken = (await claims.take(PLACES, candidates=Candidates.ALL)).claims
    await claims.renew(taken)
    await asyncio.gather(*(claims.record(one, "test.first", "dead: X", failure=OTHER_FAILURE) for one in taken))
    await asyncio.gather(*(claims.settle(one, settlement, follow=True) for one in taken))


async def use(store: MeasuredStore) -> None:
    """Run every script that reads events, as receivers, workers and operators do."""
    store.run("arrived", [part for name in ("r1", *map(str, range(PLACES))) for part in (name, 0)])
    # First: these come 1 ms apart, and would mix with those before them.
    accept(store, "missed", since=last_entry(store))
    accept(store, "r")
    accept(store, "unknown", "new.type")
    await work(store, Settlement(State.WAITING, "no", wait=100.0, **FAILED))
    await work(store, Settlement(State.DEAD, "no", **FAILED))
    opened: Any = store.redis.zrange(INDEX.open, 0, 20)
    for one in opened:
        put_back(store, one.decode(), in_transit=0)
    note_death(store, DEAD_WORKER, "own")
    Unhandled(store, wanted={COMPLETED: ("test.first",)}).put_back()
    for selection in (Selection(limit=PLACES), Selection(resource="r1", limit=PLACES), Selection(states=SETTLED)):
        found = read_page(store, selection).events
        for batch in islice(batched(found, BATCH), 2):
            Replay(store)([Settled(event.webhook_id, event.state) for event in batch])
            Erasure(store, selection)(batch)


SETTLED = frozenset({State.DEAD, State.QUARANTINED})


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("shape", sorted(SHAPES.keys() - LONGER))
async def test_no_script_reads_more_entries_because_there_are_more_events(redis_client: Redis, shape: str) -> None:
    costs = []
    for number in (600, 1_500):
        redis_client.flushall()
        fill_shape(redis_client, number, **SHAPES[shape])
        store = MeasuredStore(redis_client)
        await use(store)
        Sweeper(store, name="n", interval=1, lease=60.0, index_page=40).run()
        costs.append(store.costs)
    few, many = costs
    assert {name: (few[name], cost) for name, cost in many.items() if cost > 1.1 * few[name] + 100} == {}
    assert max(many.values()) < 20_000


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("shape", SHAPES)
async def test_no_script_holds_redis_for_50_ms_however_many_events_there_are(tmp_path: Path, shape: str) -> None:
    with local_redis(tmp_path, options=("--appendonly", "no")) as url, Redis.from_url(url) as redis:
        fill_shape(redis, 1_000_000 if shape == "unknown types" else 100_000, **SHAPES[shape])
        store = MeasuredStore(redis, is_timed=True)
        await use(store)
        Sweeper(store, name="n", interval=1, lease=60.0, wanted=dict.fromkeys(EVENT_TYPES, ("test.first",))).run()
    slowest = max(store.costs, key=lambda name: store.costs[name])
    print(f"{shape}: {slowest} takes {store.costs[slowest]:.1f} ms")  # noqa: T201  What `make soak` is run for.
    assert {name: cost for name, cost in store.costs.items() if cost >= 50} == {}
