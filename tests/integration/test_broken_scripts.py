"""Every command of every script on events, refused in turn: nothing is lost, and nothing done is done again.

The scripts of worker/platform/ are left out: they touch no event, and where they fail each process goes on by itself.
"""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from accepting import everything
from breakable_store import DONE, BreakableStore
from claiming import INDEX
from failing_scripts import FORBIDDEN, OF_ANOTHER_TYPE, Sabotage
from redis import Redis
from redis.exceptions import ResponseError
from redis_keys import EVENT, HISTORY, job_id
from rq import Queue
from rq.serializers import JSONSerializer

from credhook.store import BLAMED, State
from credhook.store.store import Script
from credhook.worker.queue.claims import Claim, Settlement
from credhook.worker.queue.failure import Failure
from credhook.worker.queue.leases import note_death

pytestmark = pytest.mark.usefixtures("in_memory")

COMPLETED, URGENT = "openid4vc.issuance.completed", "openid4vc.verification.data"

Step = Callable[[BreakableStore], Coroutine[Any, Any, None]]

EVENTS = (("e1", COMPLETED, "r1"), ("u1", URGENT, "p1"), ("e2", COMPLETED, "r1"))


async def accepting(store: BreakableStore) -> None:
    outcomes = store.deliver(*EVENTS, ("q1", "new.type", ""), ("e1", COMPLETED, "r1"), ("e1", COMPLETED, "r9"))
    if b"unreadable" in outcomes:
        raise ResponseError("503")


async def nothing(store: BreakableStore) -> None: ...


async def to_be_taken(store: BreakableStore) -> None:
    """One of them a retry that is due."""
    store.deliver(*EVENTS)
    (claim,) = (await store.claims.take(1, urgent=1)).claims
    await store.claims.settle(claim, Settlement(State.WAITING, "no", wait=0.0))


async def taking(store: BreakableStore) -> None:
    for claim in await store.take():
        await store.handle(claim)


async def isolated(store: BreakableStore) -> None:
    store.deliver(EVENTS[0])
    store.redis.hset(EVENT + "e1", "killed", 1)
    assert await store.take() == []


async def taking_alone(store: BreakableStore) -> None:
    for claim in await store.take(idle=True):
        await store.handle(claim)


async def popped(store: BreakableStore) -> None:
    store.deliver(EVENTS[0])
    store.redis.lpop(INDEX.jobs)


async def claiming(store: BreakableStore) -> None:
    claim = await store.claims.claim("e1")
    if isinstance(claim, Claim):
        await store.handle(claim)


async def planted(store: BreakableStore) -> None:
    store.deliver(EVENTS[0])
    Queue("credhook", connection=store.redis, serializer=JSONSerializer).enqueue("os.getcwd", job_id="evil")


async def taken(store: BreakableStore) -> None:
    store.deliver(*EVENTS)
    store.redis.set("test:claim", "")
    store.held = await store.take()


def settling(settlement: Settlement) -> Step:
    async def run(store: BreakableStore) -> None:
        for claim in store.held:
            with suppress(ResponseError):
                _, following = await store.claims.settle(claim, settlement, follow=True)
                if following:
                    await store.handle(following)
        if settlement.records:
            store.handled |= {claim.event_id for claim in store.held}

    return run


async def recording(store: BreakableStore) -> None:
    await store.claims.record(store.held[0], "test.second", "dead: ValueError", failure=FAILED[0])
    await store.claims.record(store.held[0], "test.first", "done")
    store.handled.add(store.held[0].event_id)


async def renewing(store: BreakableStore) -> None:
    await store.claims.renew(store.held)


async def lost_by_rq(store: BreakableStore) -> None:
    await taken(store)
    store.pass_time()


async def putting_back(store: BreakableStore) -> None:
    store.sweeper.run()


async def reclaiming(store: BreakableStore) -> None:
    note_death(store.store, "w", "1")


def settled(settlement: Settlement) -> Step:
    async def prepare(store: BreakableStore) -> None:
        store.deliver(*EVENTS[:2])
        for claim in await store.take():
            await store.claims.settle(claim, settlement)

    return prepare


async def resuming(store: BreakableStore) -> None:
    store.sweeper.unhandled.put_back()


async def replaying(store: BreakableStore) -> None:
    for one in ("e1", "u1"):
        store.replay(one, "dead")


async def keeping(store: BreakableStore) -> None:
    await store.snapshots.keep("e1", b"{}")


FAILED = (Failure("test.first", "ValueError", "test first", "test.py:1 first"),)
WITH_FAILURES: dict[str, Any] = {
    "failures": FAILED,
    "causes": {"test.first": FAILED[0].cause},
    "history": {"attempt": 1},
}

DEAD, UNHANDLED = Settlement(State.DEAD, "no"), Settlement(State.UNHANDLED, "NoHandler", spend=False)
#: The script; what goes before; what runs it.
CASES: dict[str, tuple[Script, Step, Step]] = {
    "accept": ("accept", nothing, accepting),
    "take": ("take", to_be_taken, taking),
    "take alone": ("take", isolated, taking_alone),
    "claim": ("claim", popped, claiming),
    "refuse": ("take", planted, taking),
    "settle as done": ("write", taken, settling(Settlement(State.DONE, records=DONE, sealed=True, latest=(3, 1)))),
    "settle as waiting": (
        "write",
        taken,
        settling(Settlement(State.WAITING, "no", wait=5.0, records=DONE, **WITH_FAILURES)),
    ),
    "settle as dead": ("write", taken, settling(Settlement(State.DEAD, "no", **WITH_FAILURES))),
    "settle as unhandled": ("write", taken, settling(UNHANDLED)),
    "hand back": ("write", taken, settling(Settlement(State.ACCEPTED, spend=False))),
    "record": ("write", taken, recording),
    "renew": ("write", taken, renewing),
    "put back": ("put_back", lost_by_rq, putting_back),
    "reclaim": ("reclaim", taken, reclaiming),
    "replay": ("replay", settled(DEAD), replaying),
    "put back unhandled": ("replay", settled(UNHANDLED), resuming),
    "keep a snapshot": ("keep", taken, keeping),
}


async def run_case(redis: Redis, name: str, sabotage: Sabotage) -> BreakableStore:
    redis.flushall()
    store = BreakableStore(redis)
    script, prepare, run = CASES[name]
    await prepare(store)
    store.store.plans[script] = sabotage
    try:
        await run(store)
    except ResponseError:
        if name == "accept":  # They were answered with 503, and come again.
            await accepting(store)
    return store


async def survives(redis: Any, name: str, sabotage: Sabotage) -> None:
    """Promises 1 and 4, whatever has happened to the script once."""
    store = await run_case(redis, name, sabotage)
    if name == "replay":  # So does the operator.
        await replaying(store)
    await store.recover()
    for key in redis.scan_iter(EVENT + "*"):
        webhook_id, record = key.decode().removeprefix(EVENT), redis.hgetall(key)
        state = record[b"state"].decode()
        assert redis.ttl(key) > 0, record
        if state == State.QUARANTINED:
            assert redis.zscore(INDEX.quarantined, webhook_id) is not None
            continue
        if name == "settle as dead" and state == State.DEAD:
            assert redis.zscore(INDEX.dead, webhook_id) is not None
            continue
        assert state == State.DONE, record
        assert webhook_id in store.handled
    expected = {"e1", "u1", "e2", "q1"} if name == "accept" else {"e1"}
    assert expected <= {key.decode().removeprefix(EVENT) for key in redis.scan_iter(EVENT + "*")}
    if name != "claim":  # There RQ itself sees to its job.
        assert not [key for key in redis.scan_iter("rq:job:e-*") if redis.ttl(key) < 0], everything(redis)


#: After the first, which is of Redis, a worker writes again; after the second, which is of the event, it does not.
REFUSALS = [pytest.param(FORBIDDEN, id="forbidden"), pytest.param(OF_ANOTHER_TYPE, id="of another type")]


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize("name", CASES)
async def test_whichever_command_is_refused_nothing_is_lost_and_nothing_done_is_done_again(
    redis_client: Redis, name: str, error: str
) -> None:
    await run_case(redis_client, name, Sabotage(0))
    commands: Any = redis_client.lrange("test:commands", 0, -1)
    assert commands
    for number, command in enumerate(commands, 1):
        try:
            await survives(redis_client, name, Sabotage(number, error))
        except Exception as failure:
            failure.add_note(f"{name}: {error} at {number}, {command!r}")
            raise


async def test_an_erasure_that_was_broken_off_can_be_asked_for_again(redis_client: Redis) -> None:
    of_events = [INDEX.open, INDEX.open_by_received, INDEX.dead]
    arguments = [len(of_events), "doomed", job_id("doomed"), ""]

    async def erase(number: int, times: int) -> None:
        redis_client.flushall()
        store = BreakableStore(redis_client)
        store.deliver(("doomed", COMPLETED, "r1"))
        await store.take()
        redis_client.hset(EVENT + "doomed", BLAMED + "a.bad", "c0ffee00")
        redis_client.zadd(INDEX.causes, {"c0ffee00": 2**41})
        redis_client.hset(INDEX.cause("c0ffee00"), "who", "a.bad")
        redis_client.zadd(INDEX.standing("c0ffee00"), {"doomed": 1})
        redis_client.rpush(HISTORY + "doomed", "1 {}")
        store.store.plans["erase"] = Sabotage(number)
        for _ in range(times):
            with suppress(ResponseError):
                store.store.run("erase", arguments, keys=[INDEX.prefix, *of_events, INDEX.scheduled])
        store.pass_time()
        store.sweeper.run()

    await erase(0, times=1)
    for number in range(1, redis_client.llen("test:commands") + 1):
        await erase(number, times=2)
        redis_client.delete("rq:job:" + job_id("doomed"))  # It lives for as long as the worker may notice.
        assert "doomed" not in everything(redis_client), number
