"""Histories of receivers, workers, sweepers and operators over one store, as rules for Hypothesis."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model.oracle import DONE, GIVEN_UP, OPEN, SKIPPED, Event, Held, Oracle
from model.scripted_store import WELL, Clock, Fate, ScriptedStore
from redis import Redis
from redis.exceptions import ConnectionError as ConnectionBroken

from credhook.store import FETCH, GAVE_UP, HANDLER, PENDING, PREFIX, State
from credhook.store.erase import Erasure
from credhook.store.replay import Replay, Settled
from credhook.store.selection import EventSummary, Selection
from credhook.worker.attempt.attempt import Attempt, failure_of
from credhook.worker.attempt.details import Fetched
from credhook.worker.attempt.retry import DataGone, Defer, GiveUp, Retry, WorkerDied
from credhook.worker.handlers.registry import Handler
from credhook.worker.queue.claims import Candidates, Claim, Claims
from credhook.worker.queue.failure import WORKER_DIED
from credhook.worker.queue.leases import reclaim
from credhook.worker.queue.sweeper import Sweeper
from support.store.accepting import everything
from support.store.stores import run_accept
from support.virtual_time import OwnTimeLoop

ISSUED, DATA = "openid4vc.issuance.completed", "openid4vc.verification.data"
LEASE_SECONDS: Final = 60.0
#: Deaths with nothing else under way after which an event is given up, and claims without a settlement.
MOST_KILLED, MOST_LAPSES = 2, 30


def _handle(event: Any, context: Any) -> None: ...


HANDLERS: Final = [Handler(name, frozenset({ISSUED, DATA}), _handle) for name in ("m.first", "m.second")]
WANTED: Final = {kind: [handler.name for handler in HANDLERS] for kind in (ISSUED, DATA)}

#: Event → its type and resource. Events of one resource are worked on one after the other.
EVENTS: Final = {
    "e1": (ISSUED, "r1"),
    "e2": (ISSUED, "r1"),
    "e3": (DATA, "p1"),
    "e4": (DATA, "p1"),
    "e5": (ISSUED, "r2"),
    "e6": ("openid4vc.issuance.renamed", "r1"),
}
FATES: Final = st.one_of(
    st.just(WELL),
    st.just(WELL),
    st.just(WELL),
    st.just(Fate(is_lost=True)),
    st.builds(Fate, writes=st.integers(0, 12), is_lost=st.just(True)),
)
WORKERS: Final = ("w1", "w2", "w3")
MEDDLING: Final = ("schedule", "schedule", "DEL", "DEL scheduled", "conflict", "back", "far back", "ahead", "far ahead")
#: How a handler ends: as it wants, for a second time, never.
ENDS: Final = ("done", "done", "skipped", "retry", "fail", "give up", "defer")
STEPS: Final = (1, 900, 3_000, 6_000, 61_000, 600_000, 5_000_000)


class Histories(RuleBasedStateMachine):
    """One queue. `redis` is empty at the start of each history."""

    redis: Redis
    counts: "Counter[tuple[str, str]]"

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushdb()
        self.clock, self.oracle = Clock(self.redis), Oracle()
        self.store = ScriptedStore(self.redis, self.clock)
        self.loop = asyncio.Runner(loop_factory=OwnTimeLoop)
        self.claims = {name: Claims(self.store.for_async_code(), lease=LEASE_SECONDS, worker=name) for name in WORKERS}
        #: Claims that workers go on with, also after they have lost them.
        self.attempts: dict[str, list[Attempt]] = {name: [] for name in WORKERS}
        self.sweepers = {
            name: Sweeper(
                self.store, name=name, interval=1, lease=LEASE_SECONDS, wanted=WANTED, clock=self.clock.seconds
            )
            for name in ("s1", "s2")
        }
        self.neighbour = ScriptedStore(self.redis, self.clock, "model2")
        run_accept(self.neighbour, ("e1", ISSUED, "r1"))
        self.neighbours = self.keys_of("model2")

    def keys_of(self, queue: str) -> dict[bytes, bytes]:
        """Return the keys of a queue, with what they hold."""
        keys: Any = self.redis.scan_iter(f"{PREFIX}{queue}:*")
        dumps: dict[bytes, bytes] = {key: self.redis.dump(key) for key in keys}  # type: ignore[misc]
        return dumps

    def run(self, work: Any) -> Any:
        """Run the work of a worker on the loop of its own time."""
        return self.loop.run(work)

    def note(self, what: str) -> None:
        """Count what happens, beside which states of events."""
        for state in {event.state.value for event in self.oracle.events.values()} or {"no event"}:
            self.counts[what, state] += 1

    def fated(self, script: Any, fate: Fate) -> None:
        if not fate.is_kind:
            self.store.fates[script] = fate

    def record(self, event_id: str) -> dict[str, str]:
        return _texts(self.redis.hgetall(self.store.keys.event + event_id))

    # --- receivers

    @initialize(events=st.lists(st.sampled_from(sorted(EVENTS)), min_size=1, max_size=6))
    def deliver_some(self, events: list[str]) -> None:
        for event_id in events:
            self.deliver(event_id, WELL)

    @rule(event_id=st.sampled_from(sorted(EVENTS)), fate=FATES)
    def deliver(self, event_id: str, fate: Fate) -> None:
        """A delivery, perhaps a repetition. After a fault the receiver refuses it, and it may come again."""
        kind, resource = EVENTS[event_id]
        self.note(f"deliver, {'again' if event_id in self.oracle.events else 'new'}")
        self.fated("accept", fate)
        outcome = None
        with suppress(ConnectionBroken):
            (outcome,) = run_accept(self.store, (event_id, kind, resource))
        known = event_id in self.oracle.events
        if outcome is not None:
            expected = {b"duplicate"} if known else {b"accepted", b"quarantined"}
            if self.oracle.was_erased(kind, resource, now=self.clock.now):
                expected = {b"erased"}
            assert outcome in expected, f"{event_id} is {outcome!r}: {self.record(event_id)} {self.oracle.events}"
        if (outcome is not None and outcome != b"erased") or self.record(event_id):
            self.oracle.accept(event_id, kind, resource)
            if kind not in WANTED and not known:
                self.oracle.events[event_id].state = State.QUARANTINED

    # --- workers

    @precondition(lambda self: any(event.is_open for event in self.oracle.events.values()))
    @rule(
        name=st.sampled_from(WORKERS),
        wanted=st.integers(1, 4),
        candidates=st.sampled_from([Candidates.NONE, Candidates.NONE, Candidates.ONLY, Candidates.ALL]),
        fate=FATES,
    )
    def take(self, name: str, wanted: int, candidates: Candidates, fate: Fate) -> None:
        """A worker takes events. If the reply is lost, it knows nothing of its claims."""
        self.fated("take", fate)
        self._take(name, wanted, candidates)

    def _take(self, name: str, wanted: int, candidates: Candidates) -> None:
        self.note(f"take {candidates.value}")
        try:
            taken = self.run(self.claims[name].take(wanted, candidates=candidates))
        except ConnectionBroken:
            self._adopt_unknown_claims()
            return
        for claim in taken.claims:
            self._begin(name, claim)

    @precondition(lambda self: any(event.is_open for event in self.oracle.events.values()))
    @rule(name=st.sampled_from(WORKERS))
    def take_well(self, name: str) -> None:
        """The same, and nothing goes wrong."""
        self._take(name, 4, Candidates.NONE)

    def _leases(self) -> dict[bytes, float]:
        """Return when the lease of each event ends, in ms, as Redis has it."""
        ends: Any = self.redis.zrange(self.store.keys.leases, 0, -1, withscores=True)
        return dict(ends)

    def _adopt_unknown_claims(self) -> None:
        """Let the oracle know the claims whose holder does not: nobody else may have these events until they lapse."""
        leases, locks = self._leases(), cast("dict[bytes, bytes]", self.redis.hgetall(self.store.keys.locks))
        for resource, lock in locks.items():
            event_id, fence, _, worker = lock.decode().rsplit(" ", 3)
            until = int(leases.get(event_id.encode(), 0))
            event = self.oracle.events.get(event_id)
            if event and until > self.clock.now and int(fence) > event.fence:
                event.fence = int(fence)
                self.oracle.held.append(Held(event_id, resource.decode(), worker, int(fence), until))

    def _shorten_leases(self) -> None:
        """Take in what the sweeper did after the clock was set back: a lease lasts no longer than a new one would."""
        leases = self._leases()
        for held in self.oracle.held:
            held.until = min(held.until, int(leases.get(held.event.encode(), held.until)))

    def _begin(self, name: str, claim: Claim) -> None:
        until = self.clock.now + int(LEASE_SECONDS * 1_000)
        assert claim.event_id in self.oracle.events, f"{claim.event_id} was never acknowledged, or was erased"
        event = self.oracle.events[claim.event_id]
        self.oracle.claim(Held(claim.event_id, claim.resource_id, name, claim.fence, until), now=self.clock.now)
        for handler in event.attempts:
            assert handler == FETCH or claim.attempt(handler) <= event.attempts[handler] + 1, (handler, claim, event)
        assert _ends(claim.ended) == _words(event.ends), (claim, event)
        attempt = Attempt(claim)
        attempt.wanted = [handler for handler in HANDLERS if not claim.only or handler.name in claim.only]
        self.attempts[name].append(attempt)

    @precondition(lambda self: any(self.attempts.values()))
    @rule(data=st.data(), follow=st.booleans(), fate=FATES)
    def end(self, data: Any, follow: bool, fate: Fate) -> None:
        """An attempt ends, and is settled. Its claim may have been lost long ago."""
        self._end(data, follow, fate)

    def _end(self, data: Any, follow: bool, fate: Fate) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, attempts in self.attempts.items() if attempts)))
        attempt = self.attempts[name].pop(data.draw(st.integers(0, len(self.attempts[name]) - 1)))
        claim = attempt.claim
        standing = self._standing(claim)
        ends = self._run(attempt, data)
        settlement = attempt.settlement()
        self.note(f"end as {settlement.state.value}{'' if standing else ', too late'}")
        self.fated("write", fate)
        before = self.record(claim.event_id)
        ours, following = self.run(self.claims[name].settle(claim, settlement, follow=follow))
        self.store.fates.pop("write", None)
        event = self.oracle.events.get(claim.event_id)
        if event is None:
            assert not ours, f"{claim} was settled, though its event was erased"
            assert not self.record(claim.event_id), "an erased event came back"
            return
        # A repetition that completes what a power cut has begun may be taken for late: the state is written.
        is_written = fate.writes >= 0 and self.record(claim.event_id)["state"] == settlement.state
        if ours or (is_written and standing):
            assert standing, f"{claim} was settled by a holder that had lost it"
            self._settled(attempt, settlement.state, ends)
        else:
            assert not self._holds(claim), f"the settlement of {claim} was refused: {before}"
            self._recorded_late(attempt, ends, before)
        if following:
            self._begin(name, following)

    @precondition(lambda self: any(self.attempts.values()))
    @rule(data=st.data(), follow=st.booleans())
    def end_well(self, data: Any, follow: bool) -> None:
        """The same, and the settlement arrives."""
        self._end(data, follow, WELL)

    def _standing(self, claim: Claim) -> bool:
        """Return True if no later claim, replay or erasure has taken the event from this claim.

        A lease that has run out and that nobody else has taken stands: its holder may still settle.
        """
        event = self.oracle.events.get(claim.event_id)
        return event is not None and event.is_open and event.fence == claim.fence

    def _holds(self, claim: Claim) -> bool:
        """Return True if the claim's lease has run all the time, so that nobody may have taken the event from it."""
        return self._standing(claim) and any(
            held.fence == claim.fence and held.event == claim.event_id for held in self.oracle.held
        )

    def _run(self, attempt: Attempt, data: Any) -> dict[str, str]:
        """Run the handlers that are due; return how each has ended."""
        claim, ends = attempt.claim, dict[str, str]()
        if claim.killed >= MOST_KILLED or claim.lapses >= MOST_LAPSES:
            attempt.given_up = WorkerDied()
            attempt.add_failure(WORKER_DIED)
            return ends
        if not claim.is_due(FETCH):
            return ends
        ready = [one for one in attempt.wanted if one.name not in claim.ended and claim.is_due(one.name)]
        if not ready:
            return ends
        attempt.calls_platform = True
        fetch = data.draw(st.sampled_from(["found"] * 6 + ["failed", "paused", "gone", "lost"]), label="fetch")
        if fetch != "found":
            ends[FETCH] = fetch
            error: Exception = DataGone(was_seen=True) if fetch == "gone" else ValueError()
            decision: Any = {"failed": Retry(5), "paused": Defer(30)}.get(fetch, GiveUp("lost"))
            attempt.add_failure(failure_of(error))
            attempt.failed(FETCH, error, decision)
            return ends
        attempt.fetched = Fetched(None, claim.now, has_data=claim.type == DATA)  # type: ignore[arg-type]
        attempt.dispatched = tuple(one.name for one in ready)
        for handler in ready:
            if self._standing(claim):
                self.oracle.may_run(claim.event_id, handler.name)
            how = data.draw(st.sampled_from(ENDS), label=handler.name)
            ends[handler.name] = how
            if how in {"done", "skipped"}:
                attempt.statuses[handler.name] = attempt.unwritten[handler.name] = how
                continue
            error, decision = {
                "retry": (chosen := Retry(700), chosen),
                "fail": (ValueError(), Retry(5)),
                "give up": (GiveUp("no"), GiveUp("no")),
                "defer": (Defer(1), Defer(1)),
            }[how]
            if how != "retry":  # A handler that chooses to run again has not failed.
                attempt.add_failure(failure_of(error, handler))
            if how == "give up":
                attempt.statuses[handler.name] = attempt.unwritten[handler.name] = GAVE_UP + "no"
            attempt.failed(handler.name, error, decision)
        return ends

    def _settled(self, attempt: Attempt, state: State, ends: dict[str, str]) -> None:
        event = self.oracle.events[attempt.claim.event_id]
        event.state = state
        for who, how in ends.items():
            if how not in {"defer", "paused"}:
                event.attempts[who] = event.attempts.get(who, 0) + 1
            if how in {"done", "skipped", "give up"}:
                self.oracle.end(event.id, who, {"done": DONE, "skipped": SKIPPED}.get(how, GIVEN_UP))
        if FETCH not in ends and ends:
            event.attempts.pop(FETCH, None)
        self.oracle.held = [held for held in self.oracle.held if held.event != event.id]

    def _recorded_late(self, attempt: Attempt, ends: dict[str, str], before: dict[str, str]) -> None:
        """A late holder writes the ends of its own handlers, and nothing else."""
        event, after = self.oracle.events[attempt.claim.event_id], self.record(attempt.claim.event_id)
        ended = {who for who, how in ends.items() if how in {"done", "skipped", "give up"}}
        changed = {field for field in before.keys() | after.keys() if before.get(field) != after.get(field)}
        allowed = {f"{mark}{who}" for who in ended for mark in (HANDLER, PENDING, "c:")}
        allowed |= {PENDING + handler.name for handler in HANDLERS}
        assert changed <= allowed, f"a late holder has changed {changed - allowed}: {before} {after}"
        for who in ended:
            if after.get(HANDLER + who) and HANDLER + who in changed:
                event.ends.pop(who, None)
                self.oracle.end(event.id, who, {"done": DONE, "skipped": SKIPPED}.get(ends[who], GIVEN_UP))

    @precondition(lambda self: any(self.attempts.values()))
    @rule(name=st.sampled_from(WORKERS), fate=FATES)
    def renew(self, name: str, fate: Fate) -> None:
        """A worker renews its claims, and drops those that it has lost."""
        if not self.attempts[name]:
            return
        self.note("renew")
        self.fated("write", fate)
        claims = [attempt.claim for attempt in self.attempts[name]]
        try:
            lost = self.run(self.claims[name].renew(claims))
        except ConnectionBroken:
            self._adopt_leases()
            return
        for claim in claims:
            if claim in lost:
                assert not self._holds(claim), f"{claim} was not renewed"
            else:
                assert self._standing(claim), f"{claim} was renewed, though it is lost"
        self._adopt_leases()

    def _adopt_leases(self) -> None:
        leases = self._leases()
        for held in self.oracle.held:
            if held.fence == self.oracle.events[held.event].fence:
                held.until = int(leases.get(held.event.encode(), held.until))

    @precondition(lambda self: any(self.attempts.values()))
    @rule(name=st.sampled_from(WORKERS), how=st.sampled_from(["own", "own", "ended", "host", "unseen"]))
    def die(self, name: str, how: Any) -> None:
        """A worker dies. Its supervisor notes it, or its neighbours, or nobody."""
        self.note(f"die {how}")
        self.attempts[name].clear()
        if how != "unseen":
            reclaim(self.store, name, how)
            self.oracle.held = [held for held in self.oracle.held if held.worker != name]

    # --- repairs

    @rule(
        name=st.sampled_from(["s1", "s2"]), script=st.sampled_from(["put_back", "replay", "bring_forward"]), fate=FATES
    )
    def sweep(self, name: str, script: Any, fate: Fate) -> None:
        """A round of a sweeper, of which one script may be cut."""
        self.note("sweep")
        self.fated(script, fate)
        with suppress(ConnectionBroken):
            self.sweepers[name].run()
        self.store.fates.clear()
        self._adopt_states()

    def _adopt_states(self) -> None:
        """Unhandled events may have been put back, and leases that lay too far ahead are shorter."""
        self._shorten_leases()
        for event in self.oracle.events.values():
            if event.state is State.UNHANDLED and self.record(event.id).get("state") == State.ACCEPTED:
                event.state, event.fence = State.ACCEPTED, int(self.record(event.id)["fence"])

    # --- operators

    @precondition(lambda self: self.oracle.events)
    @rule(data=st.data(), what=st.sampled_from(["erase", "", "now", "now"]), fate=FATES)
    def operate(self, data: Any, what: Any, fate: Fate) -> None:
        """An operator erases an event, and asks again until it is gone; or replays it, whatever its state is."""
        held = {held.event for held in self.oracle.held} & self.oracle.events.keys()
        names = sorted(self.oracle.events) + 3 * sorted(held)
        event = self.oracle.events[data.draw(st.sampled_from(names))]
        self.note(f"{'erase' if what == 'erase' else 'replay'} {event.state.value}")
        if what == "erase":
            self.fated("erase", fate)
            for _ in range(2):
                with suppress(ConnectionBroken):
                    Erasure(self.store, Selection())([EventSummary(event.id)])
            self.oracle.erase(event.id, now=self.clock.now)
            return
        self.fated("replay", fate)
        for _ in range(1 if fate.is_kind else 2):  # One that was cut is asked for again.
            with suppress(ConnectionBroken):
                Replay(self.store)([Settled(event.id, event.state.value)], how=what)
        record = self.record(event.id)
        if not event.is_open and record["state"] == State.ACCEPTED:
            is_done = event.state is State.DONE
            event.ends = {} if is_done else {one: end for one, end in event.ends.items() if end != GIVEN_UP}
            event.state, event.attempts = State.ACCEPTED, {}
            event.fence = int(record["fence"])

    # --- the world

    @rule(milliseconds=st.sampled_from(STEPS))
    def pass_time(self, milliseconds: int) -> None:
        """Time passes for everybody."""
        self.note("time")
        self.clock.advance(milliseconds)
        self._expire()

    def _expire(self) -> None:
        # A lease that has run out may be taken from its holder for good, although the clock goes back.
        self.oracle.held = [held for held in self.oracle.held if held.until > self.clock.now]
        for event in list(self.oracle.events.values()):
            if not event.is_open and not self.record(event.id):
                del self.oracle.events[event.id]

    @rule(what=st.sampled_from(MEDDLING))
    def meddle(self, what: str) -> None:
        """RQ moves jobs, somebody deletes its queue or schedule, an id comes with another resource, a clock is set."""
        self.note(what)
        keys = self.store.keys
        if what == "schedule":  # RQ's own scheduler counts whole seconds.
            due: Any = self.redis.zrangebyscore(keys.scheduled, 0, (self.clock.now + 1_500) // 1_000)
            for job in due:
                self.redis.zrem(keys.scheduled, job)
                self.redis.rpush(keys.jobs, job)
        elif what == "DEL":
            self.redis.delete(keys.jobs)
        elif what == "DEL scheduled":
            self.redis.delete(keys.scheduled)
        elif what == "conflict":
            for event in list(self.oracle.events.values())[:1]:
                outcomes = run_accept(self.store, (event.id, event.type, "other"))
                assert outcomes == [b"conflict"]
        else:
            steps = {"back": -5_000, "far back": -600_000, "ahead": 5_000, "far ahead": 120_000}
            self.clock.step(steps[what])
            self._expire()

    # --- what holds at every step

    @invariant()
    def promises_hold(self) -> None:
        """What is acknowledged is kept and would be found, handlers are as they ended, erased events stay away."""
        events, keys = list(self.oracle.events.values()), self.store.keys
        erased = sorted(self.oracle.erased - self.oracle.events.keys())
        pipeline = self.redis.pipeline(transaction=False)
        pipeline.zrange(keys.open, 0, -1)
        for event in events:
            pipeline.hgetall(keys.event + event.id)
            pipeline.ttl(keys.event + event.id)
        for event_id in erased:
            pipeline.exists(keys.event + event_id)
        listed, *replies = pipeline.execute()
        for event, fields, expires in zip(events, replies[0::2], replies[1::2], strict=False):
            self._is_as_it_should_be(event, _texts(fields), expires=expires >= 0, listed=event.id.encode() in listed)
        back = [event_id for event_id, is_there in zip(erased, replies[2 * len(events) :], strict=True) if is_there]
        assert not back, f"{back} were erased"

    def _is_as_it_should_be(self, event: Event, record: dict[str, str], *, expires: bool, listed: bool) -> None:
        assert record, f"{event} is gone"
        assert (record["type"], record["resource"]) == (event.type, event.resource)
        state = State(record["state"])
        assert state == event.state or {state, event.state} <= OPEN, (event, record)
        if state in OPEN:
            assert listed, f"nothing would find {event}: {record}"
            assert not expires, f"{event} would expire"
        assert _ends(record, HANDLER) == _words(event.ends), (event, record)
        for who, spent in event.attempts.items():
            written = record.get(PENDING + who)
            assert written is None or int(written.split()[0]) <= spent, (event, record)

    def teardown(self) -> None:
        """The faults stop, and time passes: everything that is open comes to an end, and the lists agree."""
        try:
            self._recover()
        finally:
            self.loop.close()

    def _recover(self) -> None:
        self.store.fates.clear()
        for attempts in self.attempts.values():
            attempts.clear()
        for _ in range(60):
            if not any(event.is_open for event in self.oracle.events.values()):
                break
            self.clock.advance(61_000)
            self._expire()
            self.sweepers["s1"].run()
            self._adopt_states()
            while claims := self.run(self.claims["w1"].take(10, candidates=Candidates.ALL)).claims:
                for claim in claims:
                    self._begin("w1", claim)
                    attempt = self.attempts["w1"].pop()
                    ends = self._run(attempt, _Kind())
                    self.run(self.claims["w1"].settle(claim, attempt.settlement()))
                    self._settled(attempt, attempt.settlement().state, ends)
        else:
            raise AssertionError(f"still open: {self.oracle.events} {everything(self.redis)}")
        self.clock.advance(61_000)
        self._expire()
        self.sweepers["s1"].run()
        self.promises_hold()
        assert self.keys_of("model2") == self.neighbours, "the queue beside ours was touched"


def _texts(fields: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}


def _ends(fields: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """Return how handlers have ended, as words, by the fields of a record."""
    return {
        field.removeprefix(prefix): how.partition(" ")[0].rstrip(":")
        for field, how in fields.items()
        if field.startswith(prefix)
    }


def _words(ends: Mapping[str, str]) -> dict[str, str]:
    """Return the same of the oracle's words."""
    return {name: "dead" if how == GIVEN_UP else how for name, how in ends.items()}


class _Kind:
    """Draws what lets an attempt succeed."""

    def draw(self, strategy: Any, label: str = "") -> str:
        return "found" if label == FETCH else "done"
