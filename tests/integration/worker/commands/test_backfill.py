"""A backfill beside deliveries that come at the worst moment, and a platform that says less than it should."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import redis.asyncio
from redis import Redis

from credhook.store import BACKFILLED, State
from credhook.store.erase import Erasure
from credhook.store.selection import EventSummary, Selection, read_page
from credhook.store.store import AsyncStore, Script, Store
from credhook.worker.commands.backfill import Backfill, MissableEvent, TooLate, Window
from credhook.worker.platform.limits import pause_of, platform_key
from support.platform.platform_settings import leading_to
from support.redis.redis_server import configured
from support.store.accepting import record
from support.store.store_shapes import fill_shape
from support.store.stored_events import contents, plant_many
from support.store.stores import EVENT, INDEX, run_accept, store_on
from support.worker.backfill_setup import backfilled_ids
from support.worker.events_command import Run
from support.worker.fleet_harness import Answer, Stub
from support.worker.harness import DATA

OFFERED, COMPLETED, PARTLY = (f"openid4vc.issuance.{name}" for name in ("offered", "completed", "partiallyIssued"))
VERIFIED = "openid4vc.verification.verified"
NOW = datetime(2026, 11, 22, tzinfo=UTC)
HAPPENED = [MissableEvent(*one) for one in (("iss_1", (OFFERED,)), ("iss_1", (COMPLETED,)), ("iss_2", (OFFERED,)))]


class InterruptedStore(Store[redis.asyncio.Redis]):
    """A store to which something happens after a backfill has read it for the first time.

    Attributes:
        scripts: the scripts that have run.
    """

    def __init__(self, client: redis.asyncio.Redis, happen: Callable[[], object]) -> None:
        super().__init__(client, "credhook", retention=3_600)
        self.scripts: list[Script] = []
        self._happen = happen

    def run(self, script: Script, arguments: Sequence[Any], *, keys: Sequence[str] = ()) -> Any:
        if len(self.scripts) == 1:
            self._happen()
        self.scripts.append(script)
        return super().run(script, arguments, keys=keys)


async def accepted(store: AsyncStore, happened: Sequence[MissableEvent] = HAPPENED) -> Counter[str]:
    backfill = Backfill(store)
    await backfill.accept_missing(happened)
    return backfill.missing


async def test_backfill_writes_events_as_the_receiver_does(
    async_redis: redis.asyncio.Redis, redis_client: Redis
) -> None:
    assert await accepted(store_on(async_redis)) == {OFFERED: 2, COMPLETED: 1}
    ours = [f"{BACKFILLED}{one.types[0]}:{one.resource}" for one in HAPPENED]
    records = [record(redis_client, one) for one in ours]
    assert [one.pop("backfilled") for one in records] == ["1"] * 3
    assert records[0]["received"] < records[1]["received"]  # The order in which they are worked on.
    assert redis_client.zrange(INDEX.open, 0, -1) == sorted(one.encode() for one in ours)
    assert redis_client.llen(INDEX.jobs) == 3
    assert redis_client.ttl(INDEX.backfilled) > 3_600  # It outlives their records.
    assert await accepted(store_on(async_redis)) == {}
    assert await accepted(store_on(async_redis), [MissableEvent("pre_1", (DATA,))]) == {DATA: 1}
    assert not redis_client.exists(INDEX.urgent)  # What a backfill brings does not overtake deliveries.


async def test_two_backfills_at_once_accept_each_event_once(async_redis: redis.asyncio.Redis) -> None:
    one, other = await asyncio.gather(*(accepted(store_on(async_redis)) for _ in range(2)))
    assert one + other == {OFFERED: 2, COMPLETED: 1}


def deliver(redis: Redis, webhook_id: str, kind: str, resource: str) -> None:
    """Accept one as the receiver's script does, at once."""
    assert run_accept(store_on(redis), (webhook_id, kind, resource)) == [b"accepted"]


async def test_backfill_skips_events_that_arrive_meanwhile(
    async_redis: redis.asyncio.Redis, redis_client: Redis
) -> None:
    store = InterruptedStore(async_redis, lambda: deliver(redis_client, "m1", COMPLETED, "iss_1"))
    assert await accepted(store) == {OFFERED: 2}
    assert not redis_client.exists(f"{EVENT}{BACKFILLED}{COMPLETED}:iss_1")
    assert store.scripts == ["arrived", "accept"] * 2


@pytest.mark.parametrize(
    ("chosen", "came"), [(Selection(resource="iss_1"), (OFFERED,)), (Selection(ids=("m0", "m1")), (OFFERED, COMPLETED))]
)
async def test_backfill_counts_erased_events_and_does_not_bring_them_back(
    async_redis: redis.asyncio.Redis, redis_client: Redis, chosen: Selection, came: tuple[str, ...]
) -> None:
    store = store_on(redis_client)
    for number, kind in enumerate(came):
        deliver(redis_client, f"m{number}", kind, "iss_1")
    Erasure(store, chosen)(read_page(store, chosen).events)
    counting, accepting = Backfill(store_on(async_redis)), Backfill(store_on(async_redis))
    await counting.count_missing(HAPPENED)
    await accepting.accept_missing(HAPPENED)
    assert [(one.missing, one.erased) for one in (counting, accepting)] == [({OFFERED: 1}, 2)] * 2
    assert backfilled_ids(redis_client) == [f"{BACKFILLED}{OFFERED}:iss_2"]


async def test_backfill_leaves_a_resource_that_is_erased_meanwhile(
    async_redis: redis.asyncio.Redis, redis_client: Redis
) -> None:
    erasure = Erasure(store_on(redis_client), Selection(resource="iss_1"))
    backfill = Backfill(InterruptedStore(async_redis, lambda: erasure([])))
    await backfill.accept_missing(HAPPENED)
    assert (backfill.missing, backfill.erased) == ({OFFERED: 1}, 2)


async def test_a_presentation_has_no_event_that_is_erased_under_its_other_type(
    async_redis: redis.asyncio.Redis, redis_client: Redis
) -> None:
    deliver(redis_client, "m1", DATA, "pre_1")
    Erasure(store_on(redis_client), Selection())([EventSummary("m1")])
    assert await accepted(store_on(async_redis), [MissableEvent("pre_1", (VERIFIED, DATA))]) == {}


async def test_backfill_accepts_events_while_other_types_arrive(
    async_redis: redis.asyncio.Redis, redis_client: Redis
) -> None:
    store = InterruptedStore(async_redis, lambda: deliver(redis_client, "m1", PARTLY, "iss_1"))
    assert await accepted(store) == {OFFERED: 2, COMPLETED: 1}
    received = [int(record(redis_client, f"{BACKFILLED}{name}:iss_1")["received"]) for name in (OFFERED, COMPLETED)]
    assert received == sorted(received)


async def test_backfill_finds_an_old_event_of_a_resource_that_has_thousands(
    async_redis: redis.asyncio.Redis, redis_client: Redis
) -> None:
    deliver(redis_client, "m1", OFFERED, "iss_1")
    fill_shape(redis_client, 2_500, resource="iss_1", state=State.DONE, listed="")
    store = InterruptedStore(async_redis, lambda: deliver(redis_client, "m2", PARTLY, "iss_1"))
    missable = [MissableEvent("iss_1", (OFFERED,)), MissableEvent("iss_1", (PARTLY,))]
    assert await accepted(store, missable) == {}


@pytest.mark.parametrize(
    ("since", "outcome"),
    [("5-9", b"changed"), ("5-10", b"accepted"), ("4-20", b"changed"), ("6-0", b"accepted"), ("0-0", b"changed")],
)
def test_resource_has_changed_if_an_entry_follows_in_the_index(redis_client: Redis, since: str, outcome: bytes) -> None:
    """In the order of text, 5-10 would stand before 5-9."""
    score = INDEX.resource_score("iss_1")
    redis_client.zadd(INDEX.by_resource, {"5-9": score, "5-10": score, "7-1": score + 1})
    reply = run_accept(store_on(redis_client), (f"{BACKFILLED}{OFFERED}:iss_1", OFFERED, "iss_1"), since=since)
    assert reply == [outcome]


@pytest.mark.parametrize("kind", [DATA, VERIFIED])
async def test_an_event_of_two_types_has_arrived_with_either(
    async_redis: redis.asyncio.Redis, redis_client: Redis, kind: str
) -> None:
    deliver(redis_client, "m1", kind, "pre_1")
    assert await accepted(store_on(async_redis), [MissableEvent("pre_1", (DATA, VERIFIED))]) == {}


async def test_backfill_skips_events_older_than_the_retention(async_redis: redis.asyncio.Redis) -> None:
    backfill, api = Backfill(store_on(async_redis)), cast(Any, None)
    with pytest.raises(TooLate):
        await backfill.run(api, Window(datetime.now(UTC) - timedelta(seconds=3_660), NOW), (), dry=False)


#: Little more than the hour younger than the retention that a backfill may take.
OFFERS = ("backfill", "--since", "166h", "--type", "issuance.offered")


def test_more_events_than_page_and_batch_hold_are_accepted_once(events: Run, redis_client: Redis, stub: Stub) -> None:
    """Two pages of the platform, and several batches, which keep the events of a resource together."""
    at = f"{datetime.now(UTC) - timedelta(hours=2):%Y-%m-%dT%H:%M:%S}"
    pages = [
        [
            {"id": f"iss_{one}", "status": "completed", "createdAt": f"{at}.000Z", "updatedAt": f"{at}.500Z"}
            for one in some
        ]
        for some in (range(75), range(75, 150))
    ]
    next_ = {"links": {"next": f"{stub.url}/credentials?after=iss_74"}}
    stub.answer = lambda call: Answer(body={"data": pages[call.total - 1], **(next_ if call.total == 1 else {})})
    plant_many(redis_client, 1_200, State.DONE)
    deliver(redis_client, "m1", OFFERED, "iss_0")
    redis_client.config_resetstat()
    result = events(*OFFERS, "--type", "issuance.completed", "--json", **leading_to(stub.url))
    stats: Any = redis_client.info("commandstats")
    assert "cmdstat_scan" not in stats  # It looks at the events of the listed resources alone.
    printed: Any = json.loads(result.stdout)
    assert (result.exit_code, printed["listed"], printed["happened"], printed["accepted"]) == (0, 150, 300, 299)
    assert len(backfilled_ids(redis_client)) == 299


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_backfill_counts_the_events_that_the_default_until_leaves_out(
    events: Run, redis_client: Redis, stub: Stub, more: tuple[str, ...]
) -> None:
    at = f"{datetime.now(UTC) - timedelta(minutes=10):%Y-%m-%dT%H:%M:%S}Z"
    stub.answer = lambda _: Answer(body={"data": [{"id": "iss_1", "status": "completed", "updatedAt": at}]})
    command = ("backfill", "--since", "2d", "--type", "issuance.completed", *more)
    deliver(redis_client, "m1", OFFERED, "iss_1")
    said = events(*command, **leading_to(stub.url)).stdout.splitlines()
    assert said[1:] == ["left 1 event later than --until, which may still be on the way"]
    printed: Any = json.loads(events(*command, "--json", **leading_to(stub.url)).stdout)
    assert (printed["happened"], printed["younger"]) == (0, 1)
    assert events(*command, "--until", "0s", **leading_to(stub.url)).stdout.startswith(("accepted 1", "missing 1"))


@pytest.mark.parametrize(("arrived", "number"), [(DATA, 0), (VERIFIED, 0), (None, 1)])
def test_a_verified_presentation_is_missing_only_if_no_type_announced_it(
    events: Run, redis_client: Redis, stub: Stub, arrived: str | None, number: int
) -> None:
    at = f"{datetime.now(UTC) - timedelta(hours=2):%Y-%m-%dT%H:%M:%S}Z"
    stub.answer = lambda _: Answer(body={"data": [{"id": "pre_1", "status": "verified", "updatedAt": at}]})
    if arrived:
        deliver(redis_client, "m1", arrived, "pre_1")
    command = ("backfill", "--since", "2d", "--type", "verification.verified", "--json")
    printed: Any = json.loads(events(*command, **leading_to(stub.url)).stdout)
    assert (printed["happened"], printed["types"]) == (1, {VERIFIED: number} if number else {})


def test_long_pause_ends_the_backfill_and_reaches_the_fleet(events: Run, redis_client: Redis, stub: Stub) -> None:
    stub.answer = lambda _: Answer(429, retry_after="3600")
    result = events(*OFFERS, **leading_to(stub.url))
    assert (result.exit_code, len(stub.calls)) == (1, 1)
    assert "accepted events stay, run the command again for the rest" in result.stderr
    assert pause_of(store_on(redis_client), platform_key(stub.url, "credhook")).seconds > 200


def test_a_redis_that_refuses_ends_it_with_what_it_has_found(events: Run, redis_client: Redis, stub: Stub) -> None:
    at = f"{datetime.now(UTC) - timedelta(hours=2):%Y-%m-%dT%H:%M:%S}Z"
    stub.answer = lambda _: Answer(body={"data": [{"id": "iss_1", "status": "offered", "updatedAt": at}]})
    with configured(redis_client, "maxmemory", "1"):
        result = events(*OFFERS, **leading_to(stub.url))
    assert (result.exit_code, result.stdout) == (1, "accepted 0 of 1 events of 1 issuances and presentations\n")
    assert result.stderr.endswith("; accepted events stay, run the command again for the rest\n")
    rest = events(*OFFERS, **leading_to(stub.url)).stdout
    assert rest == "accepted 1 of 1 events of 1 issuances and presentations: 1 issuance.offered\n"


def test_nothing_is_said_of_what_carries_no_time(events: Run, redis_client: Redis, stub: Stub) -> None:
    shown = [{"id": "a", "status": "offered"}, {"id": "b", "status": "shredded", "updatedAt": "2026-11-22T10:00:00Z"}]
    stub.answer = lambda _: Answer(body={"data": shown})
    before = contents(redis_client)
    counted = events(*OFFERS[:3], "--dry-run", CREDHOOK_HANDLERS="billing", **leading_to(stub.url))
    assert counted.stdout == "missing 0 of 0 events of 2 issuances and presentations\n"
    result = events(*OFFERS, "--dry-run", "--json", **leading_to(stub.url))
    assert contents(redis_client) == before
    assert [call.resource for call in stub.calls] == ["credentials"] * 2  # Nothing wanted is about presentations.
    assert result.exit_code == 1
    printed: Any = json.loads(result.stdout)
    assert printed["untold"] == {"undated": 1, "unknown_status": 1}
    assert "1 undated, 1 unknown_status" in result.stderr
