"""Cases that together run every script that writes: what goes before, what runs it, and what follows."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import ResponseError
from rq import Queue
from rq.serializers import JSONSerializer

from credhook.store import State
from credhook.store.announcements import ANNOUNCEMENT_SECONDS, MISSED_SECONDS
from credhook.store.erase import Erasure, lift
from credhook.store.selection import EventSummary, Selection, read_page
from credhook.store.store import Script
from credhook.worker.platform.limits import FleetLimits
from credhook.worker.queue.claims import Candidates, Claim, Settlement
from credhook.worker.queue.failure import Failure
from credhook.worker.queue.leases import note_death
from support.store.breakable_store import DONE, BreakableStore
from support.store.stores import EVENT, INDEX, last_entry, run_accept
from support.worker.claiming import COMPLETED, URGENT

#: Seconds that the platform is paused.
PAUSE = 120

Step = Callable[[BreakableStore], Awaitable[object]]

EVENTS = (("e1", COMPLETED, "r1"), ("u1", URGENT, "p1"), ("e2", COMPLETED, "r1"))


async def accepting(store: BreakableStore) -> None:
    outcomes = store.deliver(*EVENTS, ("q1", "new.type", ""), ("e1", COMPLETED, "r1"), ("e1", COMPLETED, "r9"))
    if b"unreadable" in outcomes:
        raise ResponseError("503")


def at_once(step: Callable[[BreakableStore], object]) -> Step:
    """A step that waits for nothing."""

    async def run(store: BreakableStore) -> None:
        step(store)

    return run


nothing = at_once(lambda _: None)


async def to_be_taken(store: BreakableStore) -> None:
    """One of them a retry that is due."""
    store.deliver(*EVENTS)
    (claim,) = (await store.claims.take(1, urgent=1)).claims
    await store.claims.settle(claim, Settlement(State.WAITING, "no", wait=0.0))


async def taking(store: BreakableStore, candidates: Candidates = Candidates.NONE) -> None:
    for claim in await store.take(candidates=candidates):
        await store.handle(claim)


async def isolated(store: BreakableStore) -> None:
    store.deliver(EVENTS[0])
    store.redis.hset(EVENT + "e1", "killed", 1)
    assert await store.take() == []


async def claiming(store: BreakableStore) -> None:
    claim = await store.claims.claim("e1")
    if isinstance(claim, Claim):
        await store.handle(claim)


def plant_a_job(store: BreakableStore) -> None:
    store.deliver(EVENTS[0])
    Queue("credhook", connection=store.redis, serializer=JSONSerializer).enqueue("os.getcwd", job_id="evil")


async def taken(store: BreakableStore) -> None:
    store.deliver(*EVENTS)
    store.redis.set("test:claim", "")
    store.held = await store.take()
    for claim in store.held:
        await store.claims.save_progress(claim, "test.first", "{}")


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


async def lost_by_rq(store: BreakableStore) -> None:
    await taken(store)
    store.pass_time()


async def damaged(store: BreakableStore) -> None:
    await lost_by_rq(store)
    store.redis.hdel(EVENT + "e1", "type")


putting_back = at_once(lambda store: store.sweeper.run())


def settled(settlement: Settlement) -> Step:
    async def prepare(store: BreakableStore) -> None:
        store.deliver(*EVENTS[:2])
        for claim in await store.take():
            await store.claims.settle(claim, settlement)

    return prepare


replaying = at_once(lambda store: [store.replay(one, "dead") for one in ("e1", "u1")])


async def keeping(store: BreakableStore) -> None:
    for claim in store.held:
        await store.snapshots.keep(claim.event_id, claim.fence, claim.resource_id, b"{}")


async def taken_and_kept(store: BreakableStore) -> None:
    await taken(store)
    store.redis.zadd(INDEX.delayed, {claim.event_id: 1 for claim in store.held})  # As after a retry.
    await keeping(store)


async def doomed(store: BreakableStore) -> None:
    """A dead event with all that a store can keep of one."""
    store.deliver(("doomed", COMPLETED, "r1"), ("doomed", COMPLETED, "r9"))
    store.held = await store.take()
    await keeping(store)
    failed = Settlement(State.DEAD, "no", latest=(1, 1), **WITH_FAILURES)
    await store.claims.settle(store.held[0], failed)


async def erasing(store: BreakableStore) -> None:
    """As `credhook events erase --resource r1`."""
    wanted = Selection(resource="r1")
    erasure, found = Erasure(store.store, wanted), read_page(store.store, wanted).events
    if found:
        erasure(found)
    erasure.finish(found)


async def erased(store: BreakableStore) -> None:
    await doomed(store)
    await erasing(store)


lifting = at_once(lambda store: lift(store.store, "r1"))


async def lifting_and_accepting(store: BreakableStore) -> None:
    await lifting(store)
    store.deliver(("doomed", COMPLETED, "r1"))


async def erasing_beside_a_worker(store: BreakableStore) -> None:
    with suppress(ResponseError):
        Erasure(store.store, Selection())([EventSummary("e1")])
    for claim in store.held:
        await store.handle(claim)


def backfill(store: BreakableStore) -> None:
    run_accept(store.store, ("backfilled:" + COMPLETED + ":r7", COMPLETED, "r7"), since=last_entry(store.store))


async def announcing(store: BreakableStore) -> None:
    for seconds, *keys in (
        (MISSED_SECONDS, INDEX.announcements, INDEX.heartbeats),
        (ANNOUNCEMENT_SECONDS, INDEX.receivers),
    ):
        store.store.run("announce", ["w", "{}", int(1_000 * seconds)], keys=keys)


async def pausing(store: BreakableStore) -> None:
    limits = FleetLimits(store.store.for_async_code(), "http://platform.example", rate=None, longest_wait=1.0)
    await limits.pause(PAUSE, "429", answers=1)


async def asking_for_a_call(store: BreakableStore) -> None:
    await FleetLimits(store.store.for_async_code(), "http://platform.example", rate=1.0, longest_wait=1.0).permit()


async def sharing(store: BreakableStore) -> None:
    """Decide which worker sweeps."""
    await store.store.for_async_code().run("process_lock", ["sweeper", "holder", 3_000])


async def marking(store: BreakableStore) -> None:
    await store.store.for_async_code().run("emptied", ["mark", "earlier", 2])


async def with_a_lost_record(store: BreakableStore) -> None:
    await lost_by_rq(store)
    store.redis.zadd(INDEX.open, {"lost": 1})


async def noting_a_step(store: BreakableStore) -> None:
    await store.store.for_async_code().run("clock_step", [600_000, 60_000, 900_000])


async def set_back(store: BreakableStore) -> None:
    """Let the events have moved in the future: one is taken, one waits."""
    await taken(store)
    await store.claims.settle(store.held[0], AGAIN)
    store.handled.add(store.held[0].event_id)
    ahead = int(store.redis.time()[0]) * 1_000 + 3_600_000
    for key in (INDEX.open, INDEX.leases):
        store.redis.zadd(key, dict.fromkeys(store.redis.zrange(key, 0, -1), ahead))


FAILED = (Failure("test.first", "ValueError", "test first", "test.py:1 first"),)
CAUSES = {"test.first": FAILED[0].cause}
WITH_FAILURES: dict[str, Any] = {"failures": FAILED, "causes": CAUSES, "history": {"began": 1}}

FINISHED = Settlement(State.DONE, records=DONE, sealed=True, latest=(3, 1))
AGAIN = Settlement(State.WAITING, "no", wait=5.0, records=DONE, **WITH_FAILURES)
DEAD, UNHANDLED = Settlement(State.DEAD, "no"), Settlement(State.UNHANDLED, "NoHandler")
#: The script; what goes before; what runs it.
CASES: dict[str, tuple[Script, Step, Step]] = {
    "accept": ("accept", nothing, accepting),
    "take": ("take", to_be_taken, taking),
    "take alone": ("take", isolated, lambda store: taking(store, Candidates.ONLY)),
    "claim": ("claim", at_once(lambda store: (store.deliver(EVENTS[0]), store.redis.lpop(INDEX.jobs))), claiming),
    "refuse": ("take", at_once(plant_a_job), taking),
    "settle as done": ("write", taken_and_kept, settling(FINISHED)),
    "settle as waiting": ("write", taken, settling(AGAIN)),
    "settle as postponed": ("write", taken, settling(AGAIN._replace(chosen=True))),
    "settle as dead": ("write", taken, settling(Settlement(State.DEAD, "no", **WITH_FAILURES))),
    "settle as unhandled": ("write", taken, settling(UNHANDLED)),
    "hand back": ("write", taken, settling(Settlement(State.ACCEPTED))),
    "record": ("write", taken, recording),
    "save progress": ("write", taken, lambda store: store.claims.save_progress(store.held[0], "test.first", "7")),
    "renew": ("write", taken, lambda store: store.claims.renew(store.held)),
    "put back": ("put_back", lost_by_rq, putting_back),
    "set aside": ("put_back", damaged, putting_back),
    "reclaim": ("reclaim", taken, at_once(lambda store: note_death(store.store, "w", "own"))),
    "replay": ("replay", settled(DEAD), replaying),
    "put back unhandled": ("replay", settled(UNHANDLED), at_once(lambda store: store.sweeper.unhandled.put_back())),
    "keep a snapshot": ("keep", taken, keeping),
    "erase": ("erase", doomed, erasing),
    "erase once": ("erase", doomed, erasing),
    "lift": ("lift", erased, lifting),
    "erase beside a worker": ("erase", taken, erasing_beside_a_worker),
    "backfill": ("accept", nothing, at_once(backfill)),
    "accept after a backfill": ("accept", at_once(backfill), accepting),
    "acquire places": ("semaphore", taken, lambda store: store.claims.acquire_place(store.held[0], "test.first", 1, 2)),
    "announce": ("announce", nothing, announcing),
    "pause the platform": ("pause", nothing, pausing),
    "ask for a call": ("permit", nothing, asking_for_a_call),
    "share": ("process_lock", nothing, sharing),
    "note a step": ("clock_step", taken, noting_a_step),
    "mark the queue": ("emptied", nothing, marking),
    "miss a record": ("put_back", with_a_lost_record, putting_back),
    "bring forward": ("bring_forward", set_back, putting_back),
}


#: What follows a run that may have failed: sender, operator or backfill repeat it. And the events that must
#: be there in the end, unless it is `e1`.
AFTERWARDS: dict[str, tuple[Step, set[str]]] = {
    "accept": (accepting, {"e1", "u1", "e2", "q1"}),
    "accept after a backfill": (accepting, {"e1", "u1", "e2", "q1"}),
    "backfill": (at_once(backfill), {"backfilled:" + COMPLETED + ":r7"}),
    "replay": (replaying, {"e1"}),
    "set aside": (at_once(lambda store: store.redis.hset(EVENT + "e1", "type", COMPLETED)), {"e1"}),
    "erase": (erasing, set()),
    "erase once": (lifting_and_accepting, {"doomed"}),
    "lift": (lifting_and_accepting, {"doomed"}),
    "erase beside a worker": (nothing, {"u1", "e2"}),
    **dict.fromkeys(
        ("announce", "share", "mark the queue", "pause the platform", "ask for a call"), (nothing, set[str]())
    ),
}
