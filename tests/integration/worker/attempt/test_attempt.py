"""What an attempt leaves behind: records, snapshots, and the state of its resource that handlers have seen."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from blockbuster import BlockingError
from prometheus_client import REGISTRY
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from structlog.testing import capture_logs

from credhook.store import GAVE_UP, TOOK, State
from credhook.store.replay import Replay, Settled
from credhook.worker.attempt.attempt import DONE, Attempt, Interruption
from credhook.worker.attempt.details import Snapshots
from credhook.worker.attempt.processor import MAX_LAPSES
from credhook.worker.attempt.retry import GiveUp, Retry
from credhook.worker.attempt.running import HandlerTimeout
from credhook.worker.handlers.registry import Handlers, Registry
from credhook.worker.platform.circuit import PlatformPaused, outcome_of
from credhook.worker.queue.claims import Claims, Settlement
from credhook.worker.queue.failure import WORKER_DIED
from credhook.worker.wiring import build_worker
from support.platform.token_endpoint import behind
from support.store.accepting import record
from support.store.stored_events import hasten
from support.store.stores import EVENT, INDEX, SNAPSHOT, store_on
from support.worker.attempts import Attempts, Planned, attempts
from support.worker.attempts import told as settings_of
from support.worker.claiming import lapse
from support.worker.fleet_harness import Answer, Call, Stub, presentation
from support.worker.harness import DATA

REQUESTED = "openid4vc.verification.requested"
KEY = "a-key-of-thirty-two-characters-1"


def dated(call: Call) -> Answer:
    answer: Any = presentation(call.resource, {"given": "Ada"})
    answer.body["data"]["updatedAt"] = "2026-11-01T12:00:00Z"
    return Answer(body=answer.body)


@pytest.fixture
def stub(stub: Stub) -> Stub:
    stub.answer = dated
    return stub


@pytest.fixture
def told() -> Planned:
    return Planned("first", "second")


@pytest.fixture
async def idle(redis_url: str, stub: Stub, told: Planned) -> AsyncIterator[Attempts]:
    async with attempts(redis_url, stub, told.handlers, SNAPSHOT_KEY=KEY) as made:
        yield made


@pytest.fixture
async def made(idle: Attempts) -> Attempts:
    """Return a worker whose queue has the event `e1`, of the presentation `pre_1`."""
    await idle.accept("e1", DATA, "pre_1")
    return idle


@pytest.mark.parametrize("why", Interruption)
async def test_interrupted_attempt_records_what_has_run_and_hands_the_event_back(
    made: Attempts, told: Planned, stub: Stub, redis_client: Redis, why: Interruption
) -> None:
    attempt = Attempt(await made.claim(), unwritten={"test.first": DONE})
    attempt.interrupt(why)
    with capture_logs() as lines:
        await made.make(attempt)
    assert (lines[-1]["event"], stub.calls) == ("event_handed_back", [])
    assert record(redis_client, "e1")["h:test.first"] == "done"
    await made.next()
    assert told.ran == ["second"]


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (HandlerTimeout("longer than 3 s"), "or raise CREDHOOK_HANDLER_TIMEOUT or the handler's own timeout="),
        (BlockingError("time.sleep"), "Make the handler a plain def, which runs in a thread"),
        (ValueError(), ""),
    ],
    ids=repr,
)
async def test_failure_of_a_handler_is_logged_with_a_hint(
    made: Attempts, told: Planned, error: Exception, hint: str
) -> None:
    told.ends["second"] = error
    with capture_logs() as lines:
        await made.next()
    (line,) = [line for line in lines if line["event"] == "handler_failed"]
    assert hint in line["hint"]
    assert bool(hint) == bool(line["hint"])


@pytest.mark.parametrize(("lapses", "state"), [(MAX_LAPSES - 1, State.DONE), (MAX_LAPSES, State.DEAD)])
async def test_event_whose_claims_lapse_too_often_is_given_up(
    made: Attempts, redis_client: Redis, lapses: int, state: State
) -> None:
    redis_client.hset(EVENT + "e1", "lapses", lapses)
    settlement = await made.next()
    dead = state is State.DEAD
    assert (settlement.state, settlement.error) == (state, "WorkerDied" if dead else "")
    assert settlement.causes == ({"worker": WORKER_DIED.cause} if dead else {})


async def test_attempt_that_lost_its_event_records_its_handlers(made: Attempts, redis_client: Redis) -> None:
    attempt = Attempt(await made.claim(), unwritten={"test.first": DONE}, dispatched=("test.first", "test.second"))
    attempt.statuses["test.first"] = DONE
    lapse(redis_client)
    later = await made.claim_of("e1")
    attempt.interrupt(Interruption.LEASE_LOST)
    with capture_logs() as lines:
        assert await made.make(attempt) == (None, None)
    assert lines[-1]["event"] == "lease_lost"
    fields = record(redis_client, "e1")
    assert (fields["state"], fields["h:test.first"], fields["p:test.second"]) == ("accepted", "done", "0 0")
    assert (await made.claims.settle(later, Settlement(State.DONE)))[0]


async def test_event_that_redis_does_not_settle_is_not_renewed(made: Attempts, redis_client: Redis) -> None:
    attempt = Attempt(await made.claim())
    redis_client.rename(EVENT + "e1", "kept")
    redis_client.set(EVENT + "e1", "of another type")
    attempt.interrupt(Interruption.DRAINED)
    with pytest.raises(RedisError):
        await made.make(attempt)
    redis_client.rename("kept", EVENT + "e1")
    until = redis_client.zscore(INDEX.leases, "e1")
    await asyncio.sleep(0.01)
    await made.processor.leases.renew()
    assert redis_client.zscore(INDEX.leases, "e1") == until


@pytest.mark.parametrize(("status", "state"), [(DONE, State.DONE), (GAVE_UP + "closed", State.DEAD)])
async def test_attempt_fetches_nothing_once_every_handler_has_ended(
    made: Attempts, told: Planned, stub: Stub, redis_client: Redis, status: str, state: State
) -> None:
    """Their worker died before it settled the event, and the platform may have forgotten the data since."""
    told.ends["second"] = Retry(after=0.05)
    await made.next()
    attempt = Attempt(await made.claim(), unwritten={"test.second": status})
    attempt.interrupt(Interruption.DRAINED)
    await made.make(attempt)
    redis_client.hset(EVENT + "e1", "c:worker", "0badc0de")
    assert (await made.next()).state is state
    assert redis_client.hexists(EVENT + "e1", "c:worker") == (state is State.DEAD)
    assert len(stub.calls) == 1
    assert told.ran == ["first", "second"]
    assert redis_client.exists(SNAPSHOT + "pre_1") == (state is State.DEAD)


@pytest.mark.parametrize(("status", "state"), [(TOOK + "7", State.DONE), (GAVE_UP + "closed", State.DEAD)])
async def test_handler_recorded_after_the_claim_does_not_run_again(
    made: Attempts, told: Planned, status: str, state: State
) -> None:
    """By a worker that had lost the event."""
    attempt = Attempt((await made.claim())._replace(first=False))
    await made.claims.record(attempt.claim, "test.first", status)
    assert (await made.next(attempt)).state is state
    assert (told.ran, attempt.statuses["test.first"]) == (["second"], status.removesuffix(" 7"))


async def test_event_waits_while_redis_cannot_give_its_handler_a_place(
    redis_url: str, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Planned()
    plan.add("limited", concurrency=1)
    monkeypatch.setattr(Claims, "acquire_place", AsyncMock(side_effect=RedisError))
    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        with capture_logs() as logs:
            settlement = await made.next()
    assert [line["error"] for line in logs if line["event"] == "places_unknown"] == ["RedisError"]
    assert settlement.error == "test.limited: ConcurrencyReached"
    assert [attempts for attempts, *_ in settlement.schedules.values()] == [0]


async def test_settlement_deletes_the_snapshot_of_an_earlier_attempt(
    made: Attempts, told: Planned, redis_url: str, stub: Stub, redis_client: Redis
) -> None:
    """And stays while a worker has it that lacks the handler which failed."""
    told.ends["second"] = Retry(after=0.05)
    await made.next()
    assert redis_client.exists("credhook:credhook:snapshot:pre_1")
    async with attempts(redis_url, stub, Planned("first").handlers, SNAPSHOT_KEY=KEY) as other:
        assert (await other.next()).state is State.UNHANDLED
    assert redis_client.exists("credhook:credhook:snapshot:pre_1")
    Replay(store_on(redis_client))([Settled("e1", "unhandled")], how="resume")
    told.ends.clear()
    while (await made.next()).state is not State.DONE:  # The other worker may have taken it before it was due.
        pass
    assert len(stub.calls) == 1
    assert told.ran == ["first", "second", "second"]
    assert not redis_client.exists("credhook:credhook:snapshot:pre_1")


async def test_data_is_not_gone_because_the_platform_fails(made: Attempts, told: Planned, stub: Stub) -> None:
    told.ends["first"] = Retry(after=0.02)
    await made.next()
    made.processor.snapshots.recent.drop("e1")
    await made.redis.delete("credhook:credhook:snapshot:pre_1")
    stub.answer = lambda _: Answer(500)
    settlement = await made.next()
    assert (settlement.state, settlement.error) == (State.WAITING, "Unavailable 500")
    stub.answer = dated
    await made.accept("e2", REQUESTED, "pre_2")
    await made.next(Attempt(await made.claim_of("e2")))
    assert not await made.redis.exists(SNAPSHOT + "pre_2")  # The event does not announce the data.


async def test_attempt_that_lost_its_event_settles_nothing(made: Attempts, redis_client: Redis) -> None:
    attempt = Attempt(await made.claim())
    redis_client.hset("credhook:credhook:locks", "pre_1", f"e1 {attempt.claim.fence + 1} 2 another")
    lost = REGISTRY.get_sample_value("credhook_leases_lost_total") or 0
    assert await made.make(attempt) == (None, None)
    assert REGISTRY.get_sample_value("credhook_leases_lost_total") == lost + 1
    assert record(redis_client, "e1")["h:test.second"].startswith("done ")


@pytest.mark.parametrize("swallowing", ["the snapshots", "the store"])
async def test_swallowed_interruption_stops_the_next_handler(
    made: Attempts, told: Planned, monkeypatch: pytest.MonkeyPatch, swallowing: str
) -> None:
    """Nothing of ours swallows any; what this one stands for is a library of tomorrow."""
    attempt = Attempt((await made.claim())._replace(first=False))

    async def swallows(*_: object) -> str:
        attempt.interrupt(Interruption.DRAINED)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return ""

    owner, name = (Snapshots, "keep") if swallowing == "the snapshots" else (Claims, "ended")
    monkeypatch.setattr(owner, name, swallows)
    assert (await made.next(attempt)).state is State.ACCEPTED
    assert not told.ran


async def test_refused_record_stops_no_other_handler(redis_url: str, stub: Stub, redis_client: Redis) -> None:
    handlers, ended = Handlers("test"), []

    @handlers.on("*")
    def damages(event: Any, context: Any) -> None:
        redis_client.delete(EVENT + event.webhook_id)
        redis_client.set(EVENT + event.webhook_id, "damaged")

    @handlers.on("*")
    async def goes_on(event: Any, context: Any) -> None:
        await asyncio.sleep(0.5)  # Until Redis has refused the other's record.
        ended.append(event.webhook_id)

    async with attempts(redis_url, stub, handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        attempt, handled = Attempt(await made.claim()), list[Attempt]()
        with pytest.raises(ResponseError):
            await made.processor.handle(attempt, handled=handled.append)
    assert (ended, handled) == (["e1"], [attempt])


@pytest.mark.parametrize(("ends", "stale"), [
    ({"first": ValueError(), "second": ValueError()}, False),
    ({"first": GiveUp("closed"), "second": GiveUp("closed")}, False),
    ({"second": GiveUp("closed")}, True),
    ({"second": Retry(after=600)}, True),
])  # fmt: skip
async def test_only_a_handled_state_makes_earlier_states_stale(
    idle: Attempts, told: Planned, ends: dict[str, Exception], stale: bool
) -> None:
    told.ends |= ends
    await idle.accept("later", DATA, "pre_1")
    assert (await idle.next()).state is not State.DONE
    told.ends.clear()
    await idle.accept("earlier", REQUESTED, "pre_1")
    await idle.next()
    assert told.stale[2:] == [stale, stale]


@pytest.mark.parametrize("days", [0, 1])
@pytest.mark.parametrize("well", [0, 1, 2])
async def test_pause_of_the_platform_spends_no_attempt_for_a_day(
    redis_url: str, stub: Stub, well: int, days: int
) -> None:
    handlers = Handlers("test")

    @handlers.on("*")
    async def asks(event: Any, context: Any) -> None:
        await context.api.presentations.get("another")

    def counted() -> list[Any]:
        name, statuses = "credhook_fetch_duration_seconds_count", ("429", "none")
        failures = [REGISTRY.get_sample_value(name, {"status": one}) or 0.0 for one in statuses]
        return [*failures, REGISTRY.get_sample_value("credhook_delivery_to_done_seconds_sum")]

    stub.answer = lambda call: dated(call) if call.total <= well else Answer(429, retry_after="60")
    limited, silent, seconds = counted()
    async with attempts(redis_url, stub, handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        claim = await made.claim()
        settlement = await made.next(Attempt(claim._replace(now=claim.now + 86_400_000 * days)))
        if not well:
            await made.make(Attempt(claim))  # During the pause, the platform is not asked.
    assert settlement.state is (State.DONE if well == 2 else State.WAITING)
    assert [attempts for attempts, *_ in settlement.schedules.values()] == ([] if well == 2 else [days])
    assert counted() == [limited + (well == 0), silent, pytest.approx(seconds + 86_400 * days * (well == 2), abs=60)]


@pytest.mark.parametrize("is_counted", [True, False])
async def test_rate_limit_counts_each_call_once(redis_url: str, stub: Stub, is_counted: bool) -> None:
    """The only token is for the fetch, whether the claim or the fetch takes the token. Calls of handlers get none."""
    handlers, refused = Handlers[Any]("test"), list[str]()

    @handlers.on("*")
    async def asks(event: Any, context: Any) -> None:
        with pytest.raises(PlatformPaused):
            await context.api.presentations.get("another")
        refused.append("on the loop")

    @handlers.on("*")
    def asks_in_a_thread(event: Any, context: Any) -> None:
        with pytest.raises(PlatformPaused):
            context.api.presentations.get("another")
        refused.append("in a thread")

    async with attempts(redis_url, stub, handlers, RATE="0.01") as made:
        await made.accept("e1", DATA, "pre_1")
        breaker = made.processor.breaker
        if is_counted:
            taken = await made.claims.take(1, urgent=0, platform=breaker.for_claims())
            breaker.claimed(1, taken.allowance)
        else:
            taken = await made.claims.take(1, urgent=0)
        settlement = await made.next(Attempt(taken.claims[0]))
    assert (settlement.state, sorted(refused), len(stub.calls)) == (State.DONE, ["in a thread", "on the loop"], 1)


async def test_result_of_the_startup_reaches_handlers_and_shutdown(redis_url: str, stub: Stub) -> None:
    handlers, states = Handlers[str]("test"), list[str]()
    handlers.startup(lambda: "a state")
    handlers.shutdown(states.append)

    @handlers.on("*")
    async def notes(event: Any, context: Any) -> None:
        states.append(context.state)

    async with attempts(redis_url, stub, handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        await made.next()
    assert states == ["a state"] * 2  # The second is from the shutdown.


async def test_handler_of_a_plugin_that_has_not_started_waits_alone(
    redis_url: str, stub: Stub, redis_client: Redis
) -> None:
    down, up = Handlers[Any]("down"), Handlers[Any]("up")
    started, ran = asyncio.Event(), list[str]()

    @down.startup
    async def connect() -> str:
        await started.wait()
        return "connected"

    @down.on("*")
    async def needs(event: Any, context: Any) -> None:
        ran.append(context.state)

    @up.on("*")
    async def independent(event: Any, context: Any) -> None:
        ran.append("independent")

    async with build_worker(settings_of(redis_url, stub), Registry([down, up]), worker="w") as parts:
        parts.lifespan.patience_seconds = 0.01
        await parts.lifespan.start()
        made = Attempts(parts)
        await made.accept("e1", DATA, "pre_1")
        waiting = await made.next()
        assert (waiting.state, waiting.error, ran) == (State.WAITING, "down.needs: PluginNotStarted", ["independent"])
        assert waiting.schedules["down.needs"][0] == 0
        started.set()
        hasten(redis_client, "e1")
        done = await made.next(Attempt(await made.claim_of("e1")))
    assert (done.state, ran) == (State.DONE, ["independent", "connected"])


EARLY, LATE = "2026-11-01T12:00:00Z", "20261101T120001"  # The second is in ISO's basic form, in UTC.


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        # Each step: event type, `updatedAt` of the details, and whether the event is told that it is stale.
        ([("failed", EARLY, False), ("partiallyIssued", LATE, False), ("failed", EARLY, True)], "179353440100002"),
        ([("failed", EARLY, False), ("partiallyIssued", EARLY, True), ("expired", EARLY, False)], "179353440000003"),
        ([("offered", LATE, False), ("completed", EARLY, True), ("offered", LATE, False)], "179353440100001"),
        ([("completed", None, False), ("offered", LATE, True), ("offered", EARLY, True)], "179353440100003"),
        ([("offered", EARLY, False), ("completed", None, False), ("offered", EARLY, True)], "179353440000003"),
        ([("data", EARLY, False), ("verified", EARLY, False)], "179353440000003"),
        ([("verified", EARLY, False), ("data", EARLY, False)], "179353440000003"),
    ],
)
async def test_later_state_counts_or_else_the_higher_rank(
    idle: Attempts, told: Planned, stub: Stub, redis_client: Redis, steps: list[tuple[str, str | None, bool]], kept: str
) -> None:
    for number, (kind, updated, _) in enumerate(steps):
        answer: Any = presentation("iss_1", {"given": "Ada"})
        answer.body["data"] |= {} if updated is None else {"updatedAt": updated}
        stub.answer = lambda _, answer=answer: answer  # type: ignore[misc]
        namespace = "verification" if kind in {"data", "verified"} else "issuance"
        await idle.accept(f"e{number}", f"openid4vc.{namespace}.{kind}", "iss_1")
        await idle.next()
    assert told.stale[::2] == [stale for *_, stale in steps]
    assert redis_client.hget(f"credhook:credhook:event:e{len(steps) - 1}", "latest") == kept.encode()


async def test_later_details_serve_the_event_that_follows(made: Attempts, stub: Stub) -> None:
    await made.accept("e2", DATA, "pre_1")
    second = await made.make_two()
    assert len(stub.calls) == 1  # It had come before the look.
    await made.accept("e3", DATA, "pre_1")
    third: Any = Attempt(await made.claim(), known=second.fetched)
    await made.make(third)
    assert len(stub.calls) == 2
    assert third.fetched.since == third.claim.now  # Before the fetch: the details may lack what comes during it.
    await made.accept("e4", DATA, "pre_1")
    claim = await made.claim()
    # Redis's clock has gone back: by it the event came before they were fetched, though it came afterwards.
    await made.make(Attempt(claim, known=replace(third.fetched, since=claim.now + 60_000)))
    assert len(stub.calls) == 3


async def test_snapshot_serves_no_other_event(made: Attempts, told: Planned, stub: Stub) -> None:
    """It may be as old as the first attempt."""
    told.ends["second"] = Retry(after=0.05)
    await made.next()
    told.ends.clear()
    await made.accept("e2", DATA, "pre_1")
    again = Attempt(await made.claim_of("e1"))
    await made.park()
    _, following = await made.make(again, follow=True)
    assert len(stub.calls) == 1
    assert following is not None
    assert following.event_id == "e2"
    await made.make(Attempt(following, known=again.fetched))
    assert len(stub.calls) == 2


async def test_attempt_fetches_nothing_while_every_handler_still_runs(
    made: Attempts, told: Planned, stub: Stub
) -> None:
    runs: Any = made.processor.runs
    for handler in told.handlers:
        runs.begin(SimpleNamespace(webhook_id="e1"), handler).hold()  # As far as a run needs the event.
    settlement = await made.next()
    assert (settlement.state, settlement.error) == (State.WAITING, "test.first: StillRunning")
    assert settlement.schedules == dict.fromkeys(("test.first", "test.second"), (0, 2.0, False))
    assert not stub.calls
    assert not told.ran


@pytest.mark.parametrize(("killed", "state", "ran"), [(1, State.DONE, 2), (2, State.DEAD, 0)])
async def test_event_that_killed_two_workers_is_given_up_unfetched(
    idle: Attempts, told: Planned, stub: Stub, redis_client: Redis, killed: int, state: State, ran: int
) -> None:
    await idle.accept("e 1", DATA, "pre_1")
    ended = "h:of.another" if ran else "h:of.third"  # Of other workers.
    redis_client.hset(EVENT + "e 1", mapping={"killed": killed, "p:of.another": "0 0", ended: "done"})
    with capture_logs() as lines:
        settlement = await idle.next(Attempt(await idle.claim_of("e 1")))
    assert [one["hint"] for one in lines if one["event"] == "event_dead"] == ["credhook events show 'e 1'"] * (not ran)
    assert (settlement.state, len(told.ran), len(stub.calls)) == (state, ran, min(ran, 1))


async def test_parts_of_a_worker_end_with_it(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    asked = asyncio.Event()

    async def never(_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    stub.answer = lambda _: Answer(503, retry_after="60")
    async with build_worker(settings_of(redis_url, stub), Registry([])) as parts:
        breaker = parts.processor.breaker
        assert parts.auth.on_fetch == breaker.token_fetched
        waiting = asyncio.create_task(parts.auth.token(behind(never)))
        await asked.wait()
        breaker.record(outcome_of(503, 60.0, at=breaker.clock()), is_counted=False, is_probe=False)
    assert waiting.cancelled()
    assert redis_client.keys("*:pause")  # The fleet has heard of it.
    assert asyncio.all_tasks() == {asyncio.current_task()}
