"""Histories of receivers, workers, sweepers and operators over one store, as rules for Hypothesis."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Final, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model.oracle import DONE, GIVEN_UP, SKIPPED, Event, Held, Oracle, due_of
from model.promises import ends_of, hold_at_the_end, hold_of_places, hold_of_records, schedules_of, texts
from model.scripted_store import WELL, Clock, Fate, ScriptedStore
from redis import Redis
from redis.exceptions import ConnectionError as ConnectionBroken

from credhook.store import BACKFILLED, CLOCK_SLACK_MS, FETCH, GAVE_UP, HANDLER, PENDING, State
from credhook.store.erase import Erasure
from credhook.store.job import job_id
from credhook.store.replay import Replay, Settled
from credhook.store.selection import EventSummary, Selection
from credhook.worker.attempt.attempt import Attempt, Interruption, failure_of
from credhook.worker.attempt.details import Fetched
from credhook.worker.attempt.retry import DataGone, Defer, GiveUp, Retry, WorkerDied
from credhook.worker.handlers.registry import Handler
from credhook.worker.platform.limits import platform_key
from credhook.worker.queue.claims import Candidates, Claim, Claims, Settlement
from credhook.worker.queue.failure import WORKER_DIED
from credhook.worker.queue.leases import reclaim
from credhook.worker.queue.sweeper import Sweeper
from support.store.accepting import everything
from support.store.stores import run_accept
from support.virtual_time import OwnTimeLoop

ISSUED, DATA, FAILED = "openid4vc.issuance.completed", "openid4vc.verification.data", "openid4vc.issuance.failed"
LEASE_MS: Final = 60_000
#: Deaths with nothing else under way after which an event is given up, and claims without a settlement.
MOST_KILLED, MOST_LAPSES = 2, 30


def _handle(event: Any, context: Any) -> None: ...


HANDLERS: Final = [Handler(name, frozenset({ISSUED, DATA, FAILED}), _handle) for name in ("m.first", "m.second")]
NAMES: Final = [handler.name for handler in HANDLERS]
WANTED: Final = dict.fromkeys((ISSUED, DATA, FAILED), NAMES)

#: Event → its type and resource. Events of one resource are worked on one after the other. `FAILED` is repeatable.
EVENTS: Final = {
    "event-1": (ISSUED, "issuance-1"),
    "event-2": (ISSUED, "issuance-1"),
    "event-3": (DATA, "presentation-1"),
    "event-4": (DATA, "presentation-1"),
    "event-5": (FAILED, "issuance-2"),
    "event-6": ("openid4vc.issuance.renamed", "issuance-1"),
    "event-7": (FAILED, "issuance-1"),
}
RESOURCES: Final = sorted({resource for _, resource in EVENTS.values()})
FATES: Final = st.sampled_from([WELL] * 3 + [Fate(is_lost=True)]) | st.builds(
    Fate, writes=st.integers(0, 12), is_lost=st.just(True)
)
#: The handler `m.second` came after the program of this worker.
OLD_WORKER: Final = "w3"
WORKERS: Final = ("w1", "w2", OLD_WORKER)
STEPPING: Final = {"back": -5_000, "far back": -600_000, "ahead": 5_000, "far ahead": 120_000}
MEDDLING: Final = (
    *("schedule", "schedule", "conflict", "pause", "DEL jobs", "DEL scheduled", "DEL event", "FLUSHDB", "noticed"),
    *STEPPING,
)
#: What may happen while nothing disturbs.
HARMLESS: Final = {"schedule", "conflict", "pause"}
_CHOSEN: Final = Retry(700)
#: How a handler, or the fetch, fails → the error, and what the retry policy says.
FAILURES: Final[dict[str, tuple[Exception, Any]]] = {
    "retry": (_CHOSEN, _CHOSEN),
    "fail": (ValueError(), Retry(5)),
    "give up": (GiveUp("no"), GiveUp("no")),
    "defer": (Defer(1), Defer(1)),
    "failed": (ValueError(), Retry(5)),
    "paused": (ValueError(), Defer(30)),
    "gone": (DataGone(was_seen=True), GiveUp("lost")),
    "lost": (ValueError(), GiveUp("lost")),
}
#: How it fails → ms until it is due again.
WAITS: Final = {"retry": 700_000, "fail": 5_000, "defer": 1_000, "failed": 5_000, "paused": 30_000}
ENDS: Final = ("done", "done", "skipped", "retry", "fail", "give up", "defer")
STEPS: Final = (1, 900, 3_000, 6_000, 61_000, 600_000, 5_000_000)


class Histories(RuleBasedStateMachine):
    """One queue, and a neighbour. `redis` is empty at the start of each history."""

    redis: Redis
    #: Rules beside states of events, faults, steps and histories.
    counts: "Counter[tuple[str, ...]]"

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.oracle = Clock(self.redis), Oracle()
        self.store = ScriptedStore(self.redis, self.clock)
        self.loop = asyncio.Runner(loop_factory=OwnTimeLoop)
        lease = LEASE_MS / 1_000
        self.claims = {name: Claims(self.store.for_async_code(), lease=lease, worker=name) for name in WORKERS}
        #: Claims that workers go on with, also after they have lost them.
        self.attempts: dict[str, list[Attempt]] = {name: [] for name in WORKERS}
        self.sweepers = {
            name: Sweeper(self.store, name=name, interval=1, lease=lease, wanted=WANTED, clock=self.clock.seconds)
            for name in ("s1", "s2")
        }
        self.platform = platform_key("https://platform.test", self.store.queue)
        #: True if nothing disturbs this history: then each open event is in exactly one place.
        self.is_calm = False
        self._empty()

    def _empty(self) -> None:
        """Empty Redis, and let a queue beside ours have work of every kind. Our queue's name begins its name."""
        self.redis.flushdb()
        neighbour = ScriptedStore(self.redis, self.clock, self.store.queue + "2")
        run_accept(neighbour, *[(event_id, *EVENTS[event_id]) for event_id in ("event-1", "event-3", "event-6")])
        claims = Claims(neighbour.for_async_code(), lease=1, worker="w1")
        claim = self.run(claims.take(2)).claims[0]
        self.run(claims.settle(claim, Settlement(State.WAITING, "ValueError", wait=5)))
        run_accept(neighbour, ("event-2", *EVENTS["event-2"]))
        self.neighbours = self._neighbours()

    def _neighbours(self) -> dict[bytes, bytes]:
        """Return the lasting keys of the queue beside ours, with what they hold."""
        queue = self.store.queue + "2"
        ours = [key for part in (queue, job_id(queue, "")) for key in self.redis.scan_iter(f"*:{part}*", count=1_000)]
        return {key: cast(bytes, self.redis.dump(key)) for key in ours if self.redis.ttl(key) < 0}

    def run(self, work: Any) -> Any:
        """Run the work of a worker on the loop of its own time."""
        return self.loop.run(work)

    def note(self, what: str) -> None:
        """Count what happens, beside which states of events."""
        for state in {event.state.value for event in self.oracle.events.values()} or {"no event"}:
            self.counts["rule", what, state] += 1

    def fated(self, script: Any, fate: Fate) -> Fate:
        """Let this become of the next run of the script, unless nothing disturbs. Return what becomes of it."""
        if fate.is_kind or self.is_calm:
            return WELL
        self.counts["fault", f"{script}: {'cut' if fate.writes >= 0 else 'reply lost'}"] += 1
        self.store.fates[script] = fate
        return fate

    def record(self, event_id: str) -> dict[str, str]:
        return texts(self.redis.hgetall(self.store.keys.event + event_id))

    @property
    def now(self) -> int:
        return self.clock.now

    # --- receivers

    @initialize(
        events=st.lists(st.sampled_from(sorted(EVENTS)), min_size=1, max_size=6),
        fate=FATES,
        is_calm=st.sampled_from([True, False, False]),
    )
    def deliver_some(self, events: list[str], fate: Fate, is_calm: bool) -> None:
        self.is_calm = is_calm
        for event_id in events:
            self.deliver(event_id, fate)
        self.take("w1", 4, Candidates.NONE, WELL)

    @rule(event_id=st.sampled_from(sorted(EVENTS)), fate=FATES)
    def deliver(self, event_id: str, fate: Fate) -> None:
        """A delivery, perhaps a repetition. After a fault the receiver refuses it, and it may come again."""
        kind, resource = EVENTS[event_id]
        known = event_id in self.oracle.events
        self.note(f"deliver, {'again' if known else 'new'}")
        self.fated("accept", fate)
        outcome = None
        with suppress(ConnectionBroken):
            (outcome,) = run_accept(self.store, (event_id, kind, resource))
        expected = b"quarantined" if kind not in WANTED else b"accepted"
        if known or self.oracle.was_backfilled(kind, resource):
            expected = b"duplicate"
        if self.oracle.was_erased(kind, resource, now=self.now):
            expected = b"erased"
        is_half_erased = outcome == b"erased" and (kind, resource) in self.oracle.half_erased
        assert is_half_erased or outcome in {None, expected}, (
            f"{event_id} is {outcome!r}: {self.record(event_id)} {self.oracle.events}"
        )
        self._accepted(event_id, kind, resource)

    def _accepted(self, event_id: str, kind: str, resource: str) -> None:
        """Tell the oracle of the event if its record is there, also if the reply was lost."""
        if event_id not in self.oracle.events and self.record(event_id):
            self.oracle.accept(event_id, kind, resource, now=self.now)
            if kind not in WANTED:
                self.oracle.events[event_id].state = State.QUARANTINED

    @rule(kind=st.sampled_from([ISSUED, FAILED]), meanwhile=st.booleans(), fate=FATES)
    def backfill(self, kind: str, meanwhile: bool, fate: Fate) -> None:
        """A backfill brings an event that no delivery has brought, unless one does so meanwhile."""
        event_id, resource = f"{BACKFILLED}{kind}:issuance-1", "issuance-1"
        last, (_, _, erased, *arrived) = self.store.run("arrived", [resource, 0])
        events = self.oracle.of_resource(resource)
        assert {event.type for event in events if event.type in WANTED} <= {name.decode() for name in arrived}
        was_erased = self.oracle.was_erased(kind, resource, now=self.now, is_backfill=True)
        assert (kind.encode() in erased) >= was_erased, f"a backfill would bring back {kind}"
        if kind.encode() in {*arrived, *erased}:
            return
        self.note(f"backfill{', and a delivery' if meanwhile else ''}")
        if meanwhile:
            self.deliver("event-1" if kind == ISSUED else "event-7", WELL)
        self.fated("accept", fate)
        with suppress(ConnectionBroken):
            (outcome,) = run_accept(self.store, (event_id, kind, resource), since=last.decode())
            assert (outcome == b"accepted") == (not meanwhile), f"{outcome!r} of a backfill"
        self._accepted(event_id, kind, resource)

    # --- workers

    @precondition(lambda self: any(event.is_open for event in self.oracle.events.values()))
    @rule(
        name=st.sampled_from(WORKERS),
        wanted=st.integers(1, 4),
        candidates=st.sampled_from([Candidates.NONE] * 4 + [Candidates.ONLY, Candidates.ALL]),
        fate=FATES,
    )
    def take(self, name: str, wanted: int, candidates: Candidates, fate: Fate) -> None:
        """A worker takes events. If the reply is lost, it knows nothing of its claims."""
        self.fated("take", fate)
        self._take(name, wanted, candidates)

    take_2 = take

    def _take(self, name: str, wanted: int, candidates: Candidates) -> bool:
        self.note(f"take {candidates.value}")
        is_paused = self.redis.exists(self.platform + ":pause")
        try:
            work = self.claims[name].take(wanted, candidates=candidates, platform=(self.platform, 0, 0, 0))
            claims = self.run(work).claims
        except ConnectionBroken:
            self._adopt_unknown_claims()
            return False
        assert not (is_paused and claims), f"{claims} during a pause of the platform"
        for claim in claims:
            self._begin(name, claim, alone=candidates is not Candidates.NONE)
        return bool(claims)

    def _leases(self) -> dict[bytes, float]:
        """Return when the lease of each event ends, in ms, as Redis has it."""
        ends: Any = self.redis.zrange(self.store.keys.leases, 0, -1, withscores=True)
        return dict(ends)

    def _adopt_unknown_claims(self) -> None:
        """Let the oracle know the claims whose holder does not: nobody else may have these events until they lapse."""
        leases, locks = self._leases(), cast("dict[bytes, bytes]", self.redis.hgetall(self.store.keys.locks))
        for resource, lock in locks.items():
            event_id, fence, lapses, worker = lock.decode().rsplit(" ", 3)
            until = int(leases.get(event_id.encode(), 0))
            event = self.oracle.events.get(event_id)
            if event and int(fence) > event.fence:
                event.fence, event.lapses, event.worker = int(fence), int(lapses), worker
                if until > self.now:
                    self.oracle.held.append(Held(event_id, resource.decode(), worker, int(fence), until))

    def _begin(self, name: str, claim: Claim, *, alone: bool) -> None:
        assert claim.event_id in self.oracle.events, f"{claim.event_id} was never acknowledged, or was erased"
        event = self.oracle.events[claim.event_id]
        held = Held(claim.event_id, claim.resource_id, name, claim.fence, self.now + LEASE_MS)
        self.oracle.claim(held, lapses=claim.lapses, alone=alone, now=self.now)
        assert claim.killed == event.killed, f"{claim.killed} deaths: {event}"
        assert claim.latest[::-1] == self.oracle.latest(event.resource), f"{claim.latest}: {self.oracle.events}"
        assert claim.progress == event.progress, (claim, event)
        for handler in event.attempts:
            assert handler == FETCH or claim.attempt(handler) <= event.attempts[handler] + 1, (handler, claim, event)
        assert ends_of(claim.ended) == event.ends, (claim, event)
        own = [handler for handler in HANDLERS if name != OLD_WORKER or handler.name == NAMES[0]]
        attempt = Attempt(claim)
        attempt.wanted = [handler for handler in own if not claim.only or handler.name in claim.only]
        awaited = (claim.only | claim.pending).difference(claim.ended, [handler.name for handler in own])
        attempt.missing = tuple(sorted(awaited))
        self.attempts[name].append(attempt)

    def _draw_attempt(self, data: Any) -> tuple[str, Attempt]:
        name = data.draw(st.sampled_from(sorted(name for name, attempts in self.attempts.items() if attempts)))
        return name, self.attempts[name][data.draw(st.integers(0, len(self.attempts[name]) - 1))]

    @precondition(lambda self: any(self.attempts.values()))
    @rule(data=st.data(), follow=st.booleans(), fate=FATES)
    def end(self, data: Any, follow: bool, fate: Fate) -> None:
        """An attempt ends, and is settled. Its claim may have been lost long ago."""
        self._end(*self._draw_attempt(data), data, follow=follow, fate=fate)

    # Most of a history are attempts: an alias is one more rule to choose.
    end_2 = end_3 = end

    def _end(self, name: str, attempt: Attempt, data: Any, *, follow: bool, fate: Fate) -> None:
        self.attempts[name].remove(attempt)
        claim, standing = attempt.claim, self._standing(attempt.claim)
        attempt.began = time.monotonic() - (self.now - claim.now) / 1_000
        ends = self._run(attempt, data)
        settlement = attempt.settlement()
        self.note(f"end as {settlement.state.value}{'' if standing else ', too late'}")
        fate = self.fated("write", fate)
        before, blocked = self.record(claim.event_id), self._blocked(claim.resource_id)
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
            self._settled(attempt, settlement, ends)
            if fate.is_kind and event.state is State.WAITING:
                self._is_due(event, attempt, ends, before)
        else:
            assert not self._holds(claim), f"the settlement of {claim} was refused: {before}"
            self._recorded_late(claim, ends, before)
        if following and self.is_calm:
            able = [one for one in blocked if not self.oracle.events[one].is_poison_candidate]
            assert able[:1] == [following.event_id], f"{following.event_id} overtakes {able}"
        if following:
            self._begin(name, following, alone=False)
        if not fate.is_kind:
            self._adopt_unknown_claims()

    def _blocked(self, resource: str) -> list[str]:
        """Return the events behind another one of their resource, as they were received."""
        ids = {job_id(self.store.queue, event_id): event_id for event_id in self.oracle.events}
        jobs: Any = self.redis.zrange(f"{self.store.keys.prefix}blocked:{resource}", 0, -1)
        return [ids[job.decode()] for job in jobs if job.decode() in ids]

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

    def _ready(self, attempt: Attempt) -> list[Handler]:
        """Return the handlers that are due, unless the event is given up or its fetch has to wait.

        A worker that has lost the event may have recorded an end after this claim, so the worker asks again.
        """
        claim = attempt.claim
        if claim.killed >= MOST_KILLED or claim.lapses >= MOST_LAPSES or not claim.is_due(FETCH):
            return []
        over = claim.ended.keys() | attempt.statuses.keys()
        due = [handler for handler in attempt.wanted if handler.name not in over and claim.is_due(handler.name)]
        ended = {one.name: self.run(self.claims["w1"].ended(claim, one.name)) for one in due if not claim.first}
        attempt.statuses |= {name: how for name, how in ended.items() if how}
        return [handler for handler in due if not ended.get(handler.name)]

    def _fetched(self, attempt: Attempt, data: Any) -> None:
        claim = attempt.claim
        attempt.calls_platform = True
        attempt.fetched = Fetched(None, claim.now, has_data=claim.type == DATA)  # type: ignore[arg-type]
        attempt.version = data.draw(st.tuples(st.integers(0, 3), st.sampled_from([1_000, 2_000])), label="version")

    @precondition(lambda self: any(self.attempts.values()))
    @rule(data=st.data(), fate=FATES)
    def record_end(self, data: Any, fate: Fate) -> None:
        """One handler of an attempt is done, and its end is recorded at once. The attempt goes on."""
        name, attempt = self._draw_attempt(data)
        claim, ready = attempt.claim, self._ready(attempt)
        if not ready or attempt.fetched:
            return
        self.note("record")
        self._fetched(attempt, data)
        handler, attempt.dispatched = ready[0].name, tuple(one.name for one in ready)
        attempt.statuses[handler], attempt.durations[handler] = DONE, 1.0
        if self._standing(claim):
            self.oracle.may_run(claim.event_id, handler)
        self.fated("write", fate)
        before = self.record(claim.event_id)
        self.run(self.claims[name].record(claim, handler, "done 1", attempt.pending))
        self._recorded_late(claim, {handler: DONE}, before)
        if self._standing(claim) and claim.event_id in self.oracle.events:
            self.oracle.events[claim.event_id].awaited |= {handler, *attempt.pending}

    @precondition(lambda self: any(self.attempts.values()))
    @rule(data=st.data(), fate=FATES)
    def save_progress(self, data: Any, fate: Fate) -> None:
        """A handler saves how far it has come, unless its worker has lost the claim."""
        name, attempt = self._draw_attempt(data)
        self.note("progress")
        fate = self.fated("write", fate)
        before = self.record(attempt.claim.event_id)
        ours = self.run(self.claims[name].save_progress(attempt.claim, NAMES[0], "half"))
        assert not ours or self._standing(attempt.claim), f"progress of {attempt.claim}, which is lost"
        assert ours or not self._holds(attempt.claim), f"progress of {attempt.claim} was refused"
        assert ours or before == self.record(attempt.claim.event_id)
        if ours:
            self.oracle.events[attempt.claim.event_id].progress[NAMES[0]] = "half"

    def _run(self, attempt: Attempt, data: Any) -> dict[str, str]:
        """Run the handlers that are due; return how each has ended, and the fetch if it has failed."""
        claim, ends = attempt.claim, dict[str, str]()
        if claim.killed >= MOST_KILLED or claim.lapses >= MOST_LAPSES:
            attempt.given_up = WorkerDied()
            attempt.add_failure(WORKER_DIED)
            return ends
        if not (ready := self._ready(attempt)):
            return ends
        fetches = ["found"] * 6 + ["failed", "paused", "gone", "lost", "drained"]
        fetch = "found" if attempt.fetched else data.draw(st.sampled_from(fetches), label=FETCH)
        if fetch == "drained":
            attempt.interruption = Interruption.DRAINED
            return ends
        attempt.calls_platform = True
        if fetch != "found":
            ends[FETCH] = fetch
            attempt.add_failure(failure_of(FAILURES[fetch][0]))
            attempt.failed(FETCH, *FAILURES[fetch])
            return ends
        if not attempt.fetched:
            self._fetched(attempt, data)
        attempt.dispatched = tuple({*attempt.dispatched, *(handler.name for handler in ready)})
        for handler in ready:
            if self._standing(claim):
                self.oracle.may_run(claim.event_id, handler.name)
            ends[handler.name] = data.draw(st.sampled_from(ENDS), label=handler.name)
            self._run_handler(attempt, handler, ends[handler.name])
        return ends

    def _run_handler(self, attempt: Attempt, handler: Handler, how: str) -> None:
        if how in {"done", "skipped"}:
            attempt.statuses[handler.name] = attempt.unwritten[handler.name] = how
            if how == "done":
                attempt.durations[handler.name] = 1.0
            return
        error, decision = FAILURES[how]
        if how != "retry":  # A handler that chooses to run again has not failed.
            attempt.add_failure(failure_of(error, handler))
        if how == "give up":
            attempt.statuses[handler.name] = attempt.unwritten[handler.name] = GAVE_UP + "no"
        attempt.failed(handler.name, error, decision)

    def _settled(self, attempt: Attempt, settlement: Settlement, ends: dict[str, str]) -> None:
        claim, event = attempt.claim, self.oracle.events[attempt.claim.event_id]
        for who, how in ends.items():
            if how not in {"defer", "paused"}:
                self.oracle.spend(event.id, who)
            if how in {"done", "skipped", "give up"}:
                self.oracle.end(event.id, who, {"done": DONE, "skipped": SKIPPED}.get(how, GIVEN_UP))
        for who in attempt.statuses.keys() - ends.keys():
            event.attempts[who] = max(event.attempts.get(who, 0), claim.attempt(who))
        if attempt.fetched:
            event.attempts.pop(FETCH, None)
        if settlement.latest:
            event.latest = max(settlement.latest[::-1], claim.latest[::-1])
        event.awaited |= {*attempt.pending}
        event.wait = int(self.record(event.id).get("due", 0)) - self.now
        event.due = self.now + event.wait if settlement.state is State.WAITING else 0
        self.oracle.settle(event.id, settlement.state, lapses=claim.lapses)

    def _is_due(self, event: Event, attempt: Attempt, ends: dict[str, str], before: dict[str, str]) -> None:
        """Say whether each schedule is that of its own handler, and the event is due with the earliest of them."""
        record = self.record(event.id)
        earlier, schedules = schedules_of(before, 1), schedules_of(record, 1)
        for who, due in schedules.items():
            expected = self.now + WAITS[ends[who]] if ends.get(who) in WAITS else earlier.get(who, 0)
            assert who in event.ends or due == expected, f"{who} is due at {due} instead of {expected}: {record}"
        for who, attempts in schedules_of(record, 0).items():
            assert who in event.ends or attempts == event.attempts.get(who, 0), (
                f"{who} has spent {attempts} attempts: {event}"
            )
        expected_due = due_of(schedules, attempt.unfinished, self.now)
        if expected_due:
            assert abs(int(record["due"]) - expected_due) < CLOCK_SLACK_MS, f"{expected_due} expected: {record}"

    def _recorded_late(self, claim: Claim, ends: dict[str, str], before: dict[str, str]) -> None:
        """A late holder writes the ends of its own handlers, and nothing else; nothing at all after a replay."""
        event, after = self.oracle.events.get(claim.event_id), self.record(claim.event_id)
        ended = {who for who, how in ends.items() if how in {"done", "skipped", "give up"}}
        changed = {field for field in before.keys() | after.keys() if before.get(field) != after.get(field)}
        allowed = {f"{mark}{who}" for who in ended for mark in (HANDLER, PENDING, "c:")} | {
            PENDING + name for name in NAMES
        }
        assert changed <= allowed, f"a late holder has changed {changed - allowed}: {before} {after}"
        assert not changed or (event and claim.fence > event.since), f"{claim} is from before a replay: {changed}"
        for who in ended:
            if event and HANDLER + who in changed:
                was = before.get(HANDLER + who, "")
                assert not was.startswith(DONE), f"a late holder has changed the end of {who}: {was}"
                event.ends.pop(who, None)
                self.oracle.end(event.id, who, {"done": DONE, "skipped": SKIPPED}.get(ends[who], GIVEN_UP))
                event.attempts[who] = max(event.attempts.get(who, 0), claim.attempt(who))

    @precondition(lambda self: any(self.attempts.values()))
    @rule(name=st.sampled_from(WORKERS), fate=FATES)
    def renew(self, name: str, fate: Fate) -> None:
        """A worker renews its claims, and drops those that it has lost."""
        self.note("renew")
        if self.attempts[name]:
            self.fated("write", fate)
            self._renew(name)

    def _renew(self, name: str) -> None:
        claims = [attempt.claim for attempt in self.attempts[name]]
        lost: list[Claim] = []
        renewed: list[Claim] = []
        with suppress(ConnectionBroken):
            lost = self.run(self.claims[name].renew(claims))
            renewed = claims
        leases = self._leases()
        for claim in renewed:
            if claim in lost:
                assert not self._holds(claim), f"{claim} was not renewed"
            else:
                assert self._standing(claim), f"{claim} was renewed, though it is lost"
                assert int(leases[claim.event_id.encode()]) == self.now + LEASE_MS, f"{claim} was not prolonged"
        for held in self.oracle.held:
            if held.fence == self.oracle.events[held.event].fence:
                held.until = int(leases.get(held.event.encode(), held.until))

    @precondition(lambda self: any(self.attempts.values()))
    @rule(name=st.sampled_from(WORKERS), how=st.sampled_from(["own", "own", "ended", "host", "unseen"]))
    def die(self, name: str, how: Any) -> None:
        """A worker dies. Its supervisor notes it, or its neighbours, and its work goes on; or nobody notes it."""
        how = "own" if self.is_calm and how == "unseen" else how
        self.note(f"die {how}")
        self.attempts[name].clear()
        if how == "unseen":
            return
        ends = {event_id.decode(): int(until) for event_id, until in self._leases().items()}
        self.store.replies["reclaim"] = []
        assert reclaim(self.store, name, how)
        events = [event_id.decode() for event_id in self.store.replies["reclaim"]]
        self.oracle.bury(name, events, how, ends=ends, now=self.now)
        queued = cast("list[bytes]", self.redis.lrange(self.store.keys.jobs, 0, -1))
        for event_id in events:
            is_patient = (self.oracle.events[event_id].lapses or 9) > 2
            is_queued = job_id(self.store.queue, event_id).encode() in queued
            assert is_queued or is_patient, f"{event_id} does not go on though its worker is dead"
            assert self._leases().get(event_id.encode(), 0) <= self.now, f"{event_id} is still leased"

    # --- repairs

    @rule(
        name=st.sampled_from(["s1", "s2"]), script=st.sampled_from(["put_back", "replay", "bring_forward"]), fate=FATES
    )
    def sweep(self, name: str, script: Any, fate: Fate) -> None:
        """A round of a sweeper, of which one script may be cut."""
        self.note("sweep")
        self._sweep(name, is_well=self.fated(script, fate).is_kind)

    def _sweep(self, name: str, *, is_well: bool = True) -> None:
        with suppress(ConnectionBroken):
            self.sweepers[name].run()
        self.store.fates.clear()
        leases = self._leases()
        for held in self.oracle.held:  # After the clock was set back, a lease lasts no longer than a new one would.
            held.until = min(held.until, int(leases.get(held.event.encode(), held.until))) if held.fence else held.until
        for event in self.oracle.events.values():
            record = self.record(event.id)
            if event.state is State.UNHANDLED and record.get("state") == State.ACCEPTED:
                self.oracle.replay(event.id, int(record["fence"]), resume=True)
            elif is_well and self.sweepers[name].leads and event.state is State.WAITING and "due" in record:
                wait = int(record["due"]) - self.now
                assert wait <= event.wait + CLOCK_SLACK_MS, f"{event} waits for {wait} ms, longer than it was told to"
        longest = max(leases.values(), default=0) - self.now
        assert not is_well or not self.sweepers[name].leads or longest <= LEASE_MS, f"a lease lasts {longest} ms"

    # --- operators

    @precondition(lambda self: self.oracle.events)
    @rule(data=st.data(), what=st.sampled_from(["erase", "erase all", "", "now", "now", NAMES[0]]), fate=FATES)
    def operate(self, data: Any, what: Any, fate: Fate) -> None:
        """An operator erases an event or a resource, or replays an event or one of its handlers, whatever its state."""
        held = {held.event for held in self.oracle.held} & self.oracle.events.keys()
        settled = {event.id for event in self.oracle.events.values() if not event.is_open}
        names = sorted(self.oracle.events) + 3 * sorted(held | settled)
        event = self.oracle.events[data.draw(st.sampled_from(names))]
        if what.startswith("erase"):
            self._erase(event, fate, is_whole=what == "erase all", again=data.draw(st.booleans(), label="again"))
            return
        self.note(f"replay {event.state.value}")
        if self.is_calm and event.state is State.WAITING and "due" not in self.record(event.id):
            return  # It is in the queue already, and would be there twice.
        was_held, fate = event.id in held, self.fated("replay", fate)
        named: dict[str, Any] = {"handler": what, "types": WANTED} if what in NAMES else {"how": what}
        is_replayed = False
        for _ in range(1 if fate.is_kind else 2):  # A replay that was cut is asked for again.
            with suppress(ConnectionBroken):
                is_replayed = Replay(self.store)([Settled(event.id, event.state.value)], **named) == [b"replayed"]
                assert not (is_replayed and was_held), f"{event} was replayed although a worker has it"
        record = self.record(event.id)
        if not event.is_open and record["state"] == State.ACCEPTED:
            self.oracle.replay(event.id, int(record["fence"]), handler=what if what in NAMES else "")
        elif is_replayed:
            event.due = 0
            late = {who for who, due in schedules_of(record, 1).items() if due and who not in event.ends}
            assert not late, f"{late} are not due at once: {record}"

    def _erase(self, event: Event, fate: Fate, *, is_whole: bool, again: bool) -> None:
        events = self.oracle.of_resource(event.resource) if is_whole else [event]
        if self.is_calm and any(one.is_open for one in self.oracle.of_resource(event.resource)):
            return  # A job would stay in the queue, and blocked events would wait for the sweeper.
        self.note(f"erase {event.state.value}{', and its resource' if is_whole else ''}")
        fate = self.fated("erase", fate)
        erasure = Erasure(self.store, Selection(resource=event.resource) if is_whole else Selection())
        batch = [EventSummary(one.id) for one in events]
        for _ in range(2 if again or is_whole or fate.is_kind else 1):
            with suppress(ConnectionBroken):
                erasure(batch)
                erasure.finish(batch)
        for one in events:
            if not self.record(one.id):
                self.oracle.erase(one.id, now=self.now)
            else:  # It was cut, and nobody asks again: the event is there, and perhaps without its claim.
                assert not again
                one.lapses = None
                self.oracle.held = [held for held in self.oracle.held if held.event != one.id]
                self.oracle.half_erased.add((one.type, one.resource))
        if is_whole:
            self.oracle.marks["", event.resource] = self.now

    # --- the world

    @rule(milliseconds=st.sampled_from(STEPS))
    def pass_time(self, milliseconds: int) -> None:
        """Time passes for everybody. While nothing disturbs, workers renew their leases in time."""
        self.note("time")
        if self.is_calm and self.oracle.held:
            for name in WORKERS:
                self._renew(name)
            milliseconds = min(milliseconds, LEASE_MS // 2)
        self.clock.advance(milliseconds)
        self._expire()

    def _expire(self) -> None:
        self.oracle.lapse(now=self.now)
        for event in list(self.oracle.events.values()):
            if not event.is_open and not self.record(event.id):
                del self.oracle.events[event.id]

    @rule(what=st.sampled_from(MEDDLING), data=st.data())
    def meddle(self, what: str, data: Any) -> None:
        """RQ moves jobs, somebody deletes keys, an id comes with another resource, calls pause, a clock is set."""
        if self.is_calm and what not in HARMLESS:
            return
        self.note(what)
        keys = self.store.keys
        if what == "schedule":  # RQ's own scheduler counts whole seconds.
            due: Any = self.redis.zrangebyscore(keys.scheduled, 0, (self.now + 1_500) // 1_000)
            for job in due:
                self.redis.zrem(keys.scheduled, job)
                self.redis.rpush(keys.jobs, job)
        elif what == "conflict":
            for event in list(self.oracle.events.values())[:1]:
                assert run_accept(self.store, (event.id, event.type, "other")) == [b"conflict"]
        elif what == "pause":
            self.store.run("pause", [30_000, "503", 0, 0], keys=[self.platform, keys.heartbeats])
        elif what in STEPPING:
            self._step(STEPPING[what])
            self._expire()
        else:
            {"noticed": self._step_noticed, "FLUSHDB": self._flush}.get(what, lambda: self._delete(what, data))()

    def _delete(self, what: str, data: Any) -> None:
        """Delete a key of RQ, or the record of an event."""
        key = {"DEL jobs": self.store.keys.jobs, "DEL scheduled": self.store.keys.scheduled}.get(what)
        if key is None and self.oracle.events:
            event_id = data.draw(st.sampled_from(sorted(self.oracle.events)))
            key = self.store.keys.event + event_id
            self.oracle.lose(event_id)
        if key:
            self.redis.delete(key)

    def _step(self, milliseconds: int) -> None:
        self.clock.step(milliseconds)
        for event in self.oracle.events.values():
            event.due = 0

    def _step_noticed(self) -> None:
        """Set the clock ahead. A process sees it before anybody takes a lease for lapsed."""
        self._sweep("s1")
        self._step(STEPPING["far ahead"])
        self._sweep("s1")
        for held in self.oracle.held:
            if held.fence:
                held.until = int(self._leases()[held.event.encode()])
                assert held.until > self.now, f"{held} has lapsed because a clock was set"
        self._expire()

    def _flush(self) -> None:
        """Lose all that Redis has. The next round says how many events are lost, and deliveries are kept as before."""
        keys = self.store.keys
        lost = sum(self.redis.zcard(key) for key in (keys.open, keys.dead, keys.quarantined, *keys.all_unhandled))
        self._sweep("s1")  # It remembers what was there as it began.
        self._empty()
        self.oracle = Oracle()
        self.clock.advance(1)
        self.deliver("event-1", WELL)
        self._sweep("s1")
        counted: Any = self.redis.hget(keys.losses, "count")
        assert int(counted or 0) == lost, f"{counted} of {lost} lost events were counted"

    # --- what holds at every step

    @invariant()
    def promises_hold(self) -> None:
        """What is acknowledged is kept and would be found, handlers are as they ended, erased events stay away."""
        self.counts["step",] += 1
        hold_of_records(self.store, self.oracle)
        if self.is_calm:
            hold_of_places(self.store, self.oracle, self.now)

    def teardown(self) -> None:
        """The faults stop, and time passes: everything that is open comes to an end, and the lists agree."""
        self.counts["history", "calm" if self.is_calm else "disturbed"] += 1
        try:
            self._recover()
        finally:
            self.loop.close()

    def _recover(self) -> None:
        was_calm, self.is_calm = self.is_calm, False
        self.store.fates.clear()
        for attempts in self.attempts.values():
            attempts.clear()
        for _ in range(60):
            if not any(event.is_open for event in self.oracle.events.values()):
                break
            self.clock.advance(61_000)
            self._expire()
            self._sweep("s1")
            while self._take("w1", 10, Candidates.ALL):
                for attempt in list(self.attempts["w1"]):
                    self._end("w1", attempt, _Kind(), follow=False, fate=WELL)
        else:
            raise AssertionError(f"still open: {self.oracle.events} {everything(self.redis)}")
        for milliseconds in (61_000, 5_000_000, 61_000):  # RQ's record of a started job goes after ten minutes.
            self._take("w1", 10, Candidates.ALL)
            self.clock.advance(milliseconds)
            self._expire()
            self._sweep("s1")
        self.promises_hold()
        erased = {
            resource for kind, resource in self.oracle.marks if not kind and not self.oracle.of_resource(resource)
        }
        hold_at_the_end(self.store, self.oracle, erased, was_calm=was_calm)
        lost = {
            event_id
            for event_id in self.oracle.vanished
            if self.redis.zscore(self.store.keys.vanished, event_id) is None
        }
        assert not lost, f"nobody says that {lost} vanished"
        assert self._neighbours() == self.neighbours, "the queue beside ours was touched"


class _Kind:
    """Draws what lets an attempt succeed."""

    def draw(self, strategy: Any, label: str = "") -> Any:
        return {FETCH: "found", "version": (3, 1_000)}.get(label, "done")
