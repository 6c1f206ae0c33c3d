"""Histories of receivers, workers, sweepers and operators over one store, as rules for Hypothesis."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model.ends import DONE, ENDS, FETCH_ENDS, GIVEN_UP, HANDLER_ENDS
from model.oracle import LEASE_MS, MOST_KILLED, MOST_LAPSES, Event, Oracle, Schedule
from model.promises import (
    PATIENT_FOR,
    Fields,
    end_of,
    hold_at_the_end,
    hold_of_forgotten,
    hold_of_lists,
    hold_of_places,
    hold_of_records,
    read,
)  # fmt: skip
from model.scripted_store import WELL, Clock, Fate, ScriptedStore
from redis import Redis
from redis.exceptions import ConnectionError as ConnectionBroken

from credhook.store import BACKFILLED, CLOCK_SLACK_MS, FETCH, GAVE_UP, PENDING, PROGRESS, State
from credhook.store.erase import Erasure
from credhook.store.job import job_id
from credhook.store.replay import Replay, Settled
from credhook.store.selection import EventSummary, Selection
from credhook.worker.attempt.attempt import Attempt, Interruption, failure_of
from credhook.worker.attempt.details import Fetched
from credhook.worker.attempt.retry import WorkerDied
from credhook.worker.handlers.registry import Handler
from credhook.worker.platform.limits import platform_key
from credhook.worker.queue.claims import Candidates, Claim, Claims, Settlement
from credhook.worker.queue.failure import WORKER_DIED
from credhook.worker.queue.leases import reclaim
from credhook.worker.queue.sweeper import Sweeper
from support.store.accepting import everything
from support.store.stores import run_accept
from support.virtual_time import OwnTimeLoop

T = TypeVar("T")
ISSUED, DATA, FAILED = "openid4vc.issuance.completed", "openid4vc.verification.data", "openid4vc.issuance.failed"


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
#: Ranks and times of the resource's state that is fetched.
VERSIONS: Final = ((3, 1_000), (0, 1_000), (1, 2_000), (3, 2_000))
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
STEPS: Final = (1, 900, 3_000, 6_000, 61_000, 600_000, 5_000_000, 90_000_000)


def _choose(data: Any, options: Sequence[T], label: str) -> T:
    """Let Hypothesis choose. Without its data, take the first option, which lets an attempt succeed."""
    return options[0] if data is None else cast(T, data.draw(st.sampled_from(options), label=label))


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
        #: The fields of events that the last rule may have left as they were.
        self.before: dict[str, Fields] = {}
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
        for state in {event.fields["state"] for event in self.oracle.events.values()} or {"no event"}:
            self.counts["rule", what, str(state)] += 1

    def fated(self, script: Any, fate: Fate) -> Fate:
        """Let this become of the next run of the script, unless nothing disturbs. Return what becomes of it."""
        self.store.fates.clear()  # An earlier rule may not have come to its script.
        if fate.is_kind or self.is_calm:
            return WELL
        self.counts["fault", f"{script}: {'cut' if fate.is_cut else 'reply lost'}"] += 1
        self.store.fates[script] = fate
        return fate

    def partly(self, *events: Event) -> None:
        """Expect that what comes next may not be written, or only some fields of it."""
        self.before |= {event.id: dict(event.fields) for event in events}

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
        self.note(f"deliver, {'again' if event_id in self.oracle.events else 'new'}")
        self.fated("accept", fate)
        expected, outcome = self.oracle.outcome(event_id, kind, resource, now=self.now), None
        with suppress(ConnectionBroken):
            (outcome,) = run_accept(self.store, (event_id, kind, resource))
        is_half_erased = outcome == b"erased" and (kind, resource) in self.oracle.half_erased
        assert is_half_erased or outcome in {None, expected}, f"{event_id} is {outcome!r}: {self.oracle.events}"
        self._accepted(event_id, kind, resource)

    def _accepted(self, event_id: str, kind: str, resource: str) -> None:
        """Tell the oracle of the event if its record is there, also if the reply was lost."""
        found = read(self.store, [event_id]).get(event_id)
        if not found:
            self.oracle.without_record.add(event_id)
        elif event_id not in self.oracle.events:
            event = self.oracle.accept(event_id, kind, resource, received=found["received"])
            assert self.now <= found["received"] <= self.now + CLOCK_SLACK_MS
            if event_id in self.oracle.without_record:  # Its lock and its lease may have outlived the record.
                event.fields |= {name: found.get(name, 0) for name in ("fence", "lapses", "holder", "lease", "kept")}

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
        self.note(f"take {candidates.value}")
        self.fated("take", fate)
        is_paused = self.redis.exists(self.platform + ":pause")
        try:
            work = self.claims[name].take(wanted, candidates=candidates, platform=(self.platform, 0, 0, 0))
            claims = self.run(work).claims
        except ConnectionBroken:
            claims = ()
            self._adopt_claims(name)
        assert not (is_paused and claims), f"{claims} during a pause of the platform"
        for claim in claims:
            self._begin(name, claim, is_alone=candidates is not Candidates.NONE)

    take_2 = take

    def _adopt_claims(self, name: str) -> None:
        """Tell the oracle of claims that the worker does not know: nobody else has these events until they lapse."""
        found = read(self.store, list(self.oracle.events))
        for event in self.oracle.events.values():
            fields = found.get(event.id, event.fields)
            is_same = (fields["state"], fields.get("fence", 0)) == (event.fields["state"], event.number("fence"))
            if not is_same and event.id not in self.before:
                self.partly(event)
                self.oracle.claim(event, name, now=self.now, is_alone=True)

    def _begin(self, name: str, claim: Claim, *, is_alone: bool) -> None:
        assert claim.event_id in self.oracle.events, f"{claim.event_id} was never acknowledged, or was erased"
        event = self.oracle.events[claim.event_id]
        assert (claim.killed, claim.lapses) == (event.number("killed"), event.number("lapses")), (claim, event)
        assert {name: end_of(how) for name, how in claim.ended.items()} == event.ended, (claim, event)
        assert claim.pending == event.pending, (claim, event)
        assert claim.progress.keys() == {
            name.removeprefix(PROGRESS) for name in event.fields if name.startswith(PROGRESS)
        }, (claim, event)
        for who, schedule in claim.schedules.items():
            assert event.schedule(who) == schedule[:2], (claim, event)
        assert claim.latest[1] * 100 + claim.latest[0] == self.oracle.latest(event.resource), (claim, event)
        self.oracle.claim(event, name, now=self.now, is_alone=is_alone)
        assert claim.fence == event.number("fence"), (claim, event)
        own = [handler for handler in HANDLERS if name != OLD_WORKER or handler.name == NAMES[0]]
        attempt = Attempt(claim)
        attempt.wanted = [handler for handler in own if not claim.only or handler.name in claim.only]
        awaited = (claim.only | claim.pending).difference(claim.ended, [handler.name for handler in own])
        attempt.missing = tuple(sorted(awaited))
        self.attempts[name].append(attempt)

    def _choose_attempt(self, data: Any) -> tuple[str, Attempt]:
        """Choose a worker that has attempts, and one of them."""
        name = _choose(data, [name for name, attempts in self.attempts.items() if attempts], "worker")
        return name, self.attempts[name][_choose(data, range(len(self.attempts[name])), "attempt")]

    def _event_of(self, claim: Claim) -> tuple[Event | None, bool]:
        """Return the event, and True if no later claim, replay or erasure has taken it from this claim.

        A lease that has run out and that nobody else has taken stands: its holder may still settle.
        """
        event = self.oracle.events.get(claim.event_id)
        return event, event is not None and event.is_open and event.number("fence") == claim.fence

    @precondition(lambda self: any(self.attempts.values()))
    @rule(data=st.data(), follow=st.booleans(), fate=FATES)
    def end(self, data: Any, follow: bool, fate: Fate) -> None:
        """An attempt ends, and is settled. Its claim may have been lost long ago."""
        name, attempt = self._choose_attempt(data)
        self.attempts[name].remove(attempt)
        claim = attempt.claim
        event, is_standing = self._event_of(claim)
        attempt.began = time.monotonic() - (self.now - claim.now) / 1_000
        ends = self._run(attempt, data)
        settlement = attempt.settlement()
        self.note(f"end as {settlement.state.value}{'' if is_standing else ', too late'}")
        fate, blocked = self.fated("write", fate), self._blocked(claim.resource_id)
        ours, following = self.run(self.claims[name].settle(claim, settlement, follow=follow))
        self.store.fates.clear()
        if event is None:
            assert not ours, f"{claim} was settled, though its event was erased"
            return
        if is_standing:
            assert ours or fate.is_cut, f"the settlement of {claim} was refused"
            self.oracle.settle(event, attempt, ends, now=self.now)
            assert settlement.state == event.fields["state"], (settlement, event)
            due = read(self.store, [event.id])[event.id]["due"]
            assert not event.due or abs(due - event.due) < CLOCK_SLACK_MS, (due, event)
        else:
            assert not ours or settlement.state == event.fields["state"], f"{claim} was settled, and was lost: {event}"
            self.oracle.record(event, attempt, ends)
        if following and self.is_calm:
            able = [one for one in blocked if not self.oracle.events[one].is_poison_candidate]
            assert able[:1] == [following.event_id], f"{following.event_id} overtakes {able}"
        if following:
            self._begin(name, following, is_alone=False)
        if not fate.is_kind:
            self._adopt_claims(name)

    # Most of a history are attempts: an alias is one more rule to choose.
    end_2 = end_3 = end

    def _blocked(self, resource: str) -> list[str]:
        """Return the events behind another one of their resource, as they were received."""
        ids = {job_id(self.store.queue, event_id): event_id for event_id in self.oracle.events}
        jobs: Any = self.redis.zrange(f"{self.store.keys.prefix}blocked:{resource}", 0, -1)
        return [ids[job.decode()] for job in jobs if job.decode() in ids]

    def _run(self, attempt: Attempt, data: Any) -> dict[str, str]:
        """Run the handlers that are due. Return how each has ended, or the fetch if it has failed."""
        claim, ends = attempt.claim, dict[str, str]()
        if claim.killed >= MOST_KILLED or claim.lapses >= MOST_LAPSES:
            attempt.given_up = WorkerDied()
            attempt.add_failure(WORKER_DIED)
        elif ready := self._ready(attempt):
            fetch = "found" if attempt.fetched else _choose(data, FETCH_ENDS, FETCH)
            if fetch == "drained":
                attempt.interruption = Interruption.DRAINED
            elif fetch != "found":
                attempt.calls_platform, ends[FETCH] = True, fetch
            else:
                self._dispatch(attempt, ready, data)
                ends = {handler.name: _choose(data, HANDLER_ENDS, handler.name) for handler in ready}
        for who, how in ends.items():
            end, handler = ENDS[how], next((handler for handler in HANDLERS if handler.name == who), None)
            if end.ended:
                attempt.statuses[who] = attempt.unwritten[who] = how if end.ended != GIVEN_UP else GAVE_UP + "no"
            if end.ended == DONE:
                attempt.durations[who] = 1.0
            if end.error and end.decision:
                attempt.failed(who, end.error, end.decision)
                if end.error is not end.decision:  # A handler that chooses to run again has not failed.
                    attempt.add_failure(failure_of(end.error, handler))
        return ends

    def _ready(self, attempt: Attempt) -> list[Handler]:
        """Return the handlers that are under way or due, unless the fetch has to wait.

        A worker that has lost the event may have recorded an end after this claim, so the worker asks before it begins.
        """
        claim = attempt.claim
        if not claim.is_due(FETCH):
            return []
        over = claim.ended.keys() | attempt.statuses.keys()
        due = [handler for handler in attempt.wanted if handler.name not in over and claim.is_due(handler.name)]
        ended = {
            one.name: self.run(self.claims["w1"].ended(claim, one.name))
            for one in due
            if not claim.first and one.name not in attempt.dispatched
        }
        attempt.statuses |= {name: how for name, how in ended.items() if how}
        return [handler for handler in due if not ended.get(handler.name)]

    def _dispatch(self, attempt: Attempt, handlers: list[Handler], data: Any) -> None:
        """Fetch the details, and begin with these handlers."""
        claim = attempt.claim
        if not attempt.fetched:
            attempt.calls_platform = True
            attempt.fetched = Fetched(None, claim.now, has_data=claim.type == DATA)  # type: ignore[arg-type]
            attempt.version = _choose(data, VERSIONS, "version")
        starting = [handler for handler in handlers if handler.name not in attempt.dispatched]
        attempt.dispatched = tuple({*attempt.dispatched, *(handler.name for handler in handlers)})
        event, is_standing = self._event_of(claim)
        for handler in starting if event and is_standing else ():
            self.oracle.may_run(cast(Event, event), handler.name)

    @precondition(lambda self: any(self.attempts.values()))
    @rule(data=st.data(), fate=FATES)
    def record_end(self, data: Any, fate: Fate) -> None:
        """One handler of an attempt is done, and its end is recorded at once. The attempt goes on."""
        name, attempt = self._choose_attempt(data)
        claim = attempt.claim
        if claim.killed >= MOST_KILLED or attempt.fetched or not (ready := self._ready(attempt)):
            return
        self.note("record")
        self._dispatch(attempt, ready, data)
        handler = ready[0].name
        attempt.statuses[handler], attempt.durations[handler] = DONE, 1.0
        self.fated("write", fate)
        self.run(self.claims[name].record(claim, handler, "done 1", attempt.pending))
        event, _ = self._event_of(claim)
        if event:
            self.oracle.record(event, attempt, {handler: "done"})

    @precondition(lambda self: any(self.attempts.values()))
    @rule(data=st.data(), fate=FATES)
    def save_progress(self, data: Any, fate: Fate) -> None:
        """A handler saves how far it has come, unless its worker has lost the claim."""
        name, attempt = self._choose_attempt(data)
        self.note("progress")
        self.fated("write", fate)
        event, is_standing = self._event_of(attempt.claim)
        ours = self.run(self.claims[name].save_progress(attempt.claim, NAMES[0], "half"))
        is_sure = is_standing and event and event.number("lease") > self.now
        assert bool(is_sure) <= ours <= is_standing, f"progress of {attempt.claim}: {event}"
        if event and ours:
            event.fields[PROGRESS + NAMES[0]] = "half"

    @precondition(lambda self: any(self.attempts.values()))
    @rule(name=st.sampled_from(WORKERS), fate=FATES)
    def renew(self, name: str, fate: Fate) -> None:
        """A worker renews its claims, and hears which of them it has lost."""
        self.note("renew")
        claims = [attempt.claim for attempt in self.attempts[name]]
        if claims:
            self.fated("write", fate)
        lost: list[Claim] | None = None
        with suppress(ConnectionBroken):
            lost = self.run(self.claims[name].renew(claims))
        for claim in claims:
            event, is_standing = self._event_of(claim)
            is_lost = lost is not None and claim in lost
            if event and is_standing:
                assert not is_lost or event.number("lease") <= self.now, f"{claim} was not renewed: {event}"
                if lost is None:
                    self.partly(event)
                if not is_lost:
                    event.fields["lease"] = self.now + LEASE_MS
            else:
                assert lost is None or is_lost, f"{claim} was renewed, though it is lost: {event}"

    @precondition(lambda self: any(self.attempts.values()))
    @rule(name=st.sampled_from(WORKERS), how=st.sampled_from(["own", "own", "ended", "host", "unseen"]), fate=FATES)
    def die(self, name: str, how: Any, fate: Fate) -> None:
        """A worker dies. Its supervisor notes it, or its neighbours, and its work goes on; or nobody notes it."""
        how = "own" if self.is_calm and how == "unseen" else how
        self.note(f"die {how}")
        self.attempts[name].clear()
        if how == "unseen":
            return
        fate = self.fated("reclaim", fate)
        held = self._bury(name, how, fate)
        if not fate.is_kind:  # A death that was not noted in full is noted once more.
            self._compare()
            self._bury(name, "host", WELL)
        queued = cast("list[bytes]", self.redis.lrange(self.store.keys.jobs, 0, -1))
        for event in held if fate.is_kind else ():
            others = [other for other in self.oracle.of_resource(event.resource) if other is not event]
            may_wait = event.number("lapses") > PATIENT_FOR or any(other.holds(self.now) for other in others)
            assert may_wait or job_id(self.store.queue, event.id).encode() in queued, f"{event} does not go on"

    def _bury(self, name: str, how: Any, fate: Fate) -> list[Event]:
        leased: Any = self.redis.zrange(self.store.keys.leases, 0, -1)
        theirs = [event for event in self.oracle.events.values() if event.fields.get("holder") == name]
        held = [event for event in theirs if event.is_open and event.id.encode() in leased]
        if fate.is_cut:
            self.partly(*held)
        self.oracle.bury(held, how, now=self.now)
        assert reclaim(self.store, name, how) or not fate.is_kind
        return held

    @precondition(lambda self: any(self.attempts.values()) and not self.is_calm)
    @rule(name=st.sampled_from(WORKERS))
    def stall(self, name: str) -> None:
        """All workers stall for longer than their leases, and one takes over. The others go on later."""
        self.note("stall")
        self.clock.advance(LEASE_MS + 1_000)
        self._sweep("s1")
        self.take(name, 4, Candidates.ALL, WELL)

    # --- repairs

    @rule(
        name=st.sampled_from(["s1", "s2"]), script=st.sampled_from(["put_back", "replay", "bring_forward"]), fate=FATES
    )
    def sweep(self, name: str, script: Any, fate: Fate) -> None:
        """A round of a sweeper, of which one script may be cut."""
        self.note("sweep")
        self._sweep(name, is_well=self.fated(script, fate).is_kind)

    def _sweep(self, name: str, *, is_well: bool = True) -> None:
        """Let a sweeper run. It frees what no worker has, resumes unhandled events, and brings times forward."""
        self._compare()
        self.partly(*self.oracle.events.values())
        with suppress(ConnectionBroken):
            self.sweepers[name].run()
        self.store.fates.clear()
        found, does_all = read(self.store, list(self.oracle.events)), is_well and self.sweepers[name].leads
        for event in self.oracle.events.values():
            fields = found[event.id]
            if event.fields["state"] == State.UNHANDLED and fields["state"] == State.ACCEPTED:
                self.oracle.replay(event, now=self.now, resume=True)
            assert not does_all or fields["state"] != State.UNHANDLED, f"{event} has a handler here"
            event.drop("holder", *[name for name in event.fields if name.startswith(PROGRESS) and not event.is_open])
            if event.number("lease"):  # It was prolonged after a step forward, or lasts no longer than a new lease.
                event.fields["lease"] = self.now + LEASE_MS
            for field in [name for name in fields if name.startswith(PENDING) and name in event.fields]:
                schedule = event.schedule(field.removeprefix(PENDING))
                if self.now <= fields[field].due < schedule.due:
                    event.fields[field] = Schedule(schedule.attempts, fields[field].due)
            wait = fields["due"] - self.now
            assert not does_all or wait <= event.wait + CLOCK_SLACK_MS, f"{event} waits for {wait} ms"
            assert not does_all or fields["lease"] <= self.now + LEASE_MS, f"the lease of {event} is too long"
        self._compare()

    # --- operators

    @precondition(lambda self: self.oracle.events)
    @rule(data=st.data(), what=st.sampled_from(["erase", "erase all", "", "now", "now", NAMES[0]]), fate=FATES)
    def operate(self, data: Any, what: Any, fate: Fate) -> None:
        """An operator erases an event or a resource, or replays an event or one of its handlers, whatever its state."""
        events = self.oracle.events
        settled = [event.id for event in events.values() if not event.is_open and event.type in WANTED]
        likely = settled + [event.id for event in events.values() if event.number("lease") > self.now]
        event = events[data.draw(st.sampled_from(sorted(events) + 3 * sorted(likely)))]
        if what.startswith("erase"):
            self._erase(event, fate, is_whole=what == "erase all", again=data.draw(st.booleans(), label="again"))
            return
        state = event.fields["state"]
        if self.is_calm and state == State.WAITING and not read(self.store, [event.id])[event.id]["due"]:
            return  # It is in the queue already, and would be there twice.
        selected = data.draw(st.sampled_from([state, state, state, State.DONE, State.DEAD]), label="selected")
        expected = "changed" if selected != state else "replayed"
        if event.is_open:
            is_idle = state == State.WAITING and event.number("lease") <= self.now
            expected = "replayed" if is_idle and what == "now" else "open"
        elif expected == "replayed" and event.type not in WANTED:
            expected = "unknown_type"
        self.note(f"replay {state}: {expected}")
        named: dict[str, Any] = {"handler": what, "types": WANTED} if what in NAMES else {"how": what}
        is_kind, outcome = self.fated("replay", fate).is_kind, ""
        for _ in range(1 if is_kind else 2):  # A replay that was cut is asked for again.
            with suppress(ConnectionBroken):
                outcome = Replay(self.store)([Settled(event.id, selected)], **named)[0].decode()
        assert outcome == expected or not is_kind, f"{outcome} in place of {expected}: {event}"
        if expected == "replayed" and event.is_open:
            self.oracle.hurry(event)
        elif expected == "replayed":
            self.oracle.replay(event, now=self.now, handler=what if what in NAMES else "")

    def _erase(self, event: Event, fate: Fate, *, is_whole: bool, again: bool) -> None:
        events = self.oracle.of_resource(event.resource) if is_whole else [event]
        if self.is_calm and any(one.is_open for one in self.oracle.of_resource(event.resource)):
            return  # A job would stay in the queue, and blocked events would wait for the sweeper.
        self.note(f"erase {event.fields['state']}{', and its resource' if is_whole else ''}")
        fate = self.fated("erase", fate)
        erasure = Erasure(self.store, Selection(resource=event.resource) if is_whole else Selection())
        batch = [EventSummary(one.id, one.type, one.fields["state"]) for one in events]
        is_again = again or is_whole or fate.is_kind
        for _ in range(2 if is_again else 1):
            with suppress(ConnectionBroken):
                erasure(batch)
                erasure.finish(batch)
        for one in events:
            if is_again or not read(self.store, [one.id]):
                self.oracle.erase(one, now=self.now)
            else:  # It was cut, and nobody asks again: the event is there, and perhaps without its claim.
                self.partly(one)
                one.drop("lease", "kept")
                self.oracle.half_erased.add((one.type, one.resource))
        if is_whole:
            self.oracle.marks["", event.resource] = self.now

    # --- the world

    @rule(milliseconds=st.sampled_from(STEPS))
    def pass_time(self, milliseconds: int) -> None:
        """Time passes for everybody. While nothing disturbs, workers renew their leases in time."""
        self.note("time")
        if self.is_calm and any(event.is_open for event in self.oracle.events.values()):
            for name in WORKERS:
                self.renew(name, WELL)
            milliseconds = min(milliseconds, LEASE_MS // 2)
        self.clock.advance(milliseconds)
        self._forget()

    def _forget(self) -> None:
        """Let the oracle forget the events that Redis has forgotten."""
        gone = self.oracle.events.keys() - read(self.store, list(self.oracle.events)).keys()
        for event_id in gone:
            hold_of_forgotten(self.oracle.events.pop(event_id), self.now)
        if gone:
            self._sweep("s1")

    @rule(what=st.sampled_from(MEDDLING), data=st.data())
    def meddle(self, what: str, data: Any) -> None:
        """RQ moves jobs, somebody deletes keys, an id comes with another resource, calls pause, a clock is set."""
        what = what if what in HARMLESS or not self.is_calm else "schedule"
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
        elif what in ("noticed", "FLUSHDB"):
            {"noticed": self._step_noticed, "FLUSHDB": self._flush}[what]()
        elif what == "DEL event":
            for event in [_choose(data, list(self.oracle.events.values()), "event")] if self.oracle.events else []:
                self.oracle.lose(event)
                self.redis.delete(keys.event + event.id)
        else:
            self.redis.delete({"DEL jobs": keys.jobs, "DEL scheduled": keys.scheduled}[what])

    def _step(self, milliseconds: int) -> None:
        self.clock.step(milliseconds)
        for event in self.oracle.events.values():
            event.due = 0
        self._forget()

    def _step_noticed(self) -> None:
        """Set the clock ahead. A process sees it before anybody takes a lease for lapsed."""
        self._sweep("s1")
        held = [event for event in self.oracle.events.values() if event.number("lease") > self.now]
        self._step(STEPPING["far ahead"])
        self._sweep("s1")
        for event in held:
            assert event.number("lease") > self.now, f"{event} has lapsed because a clock was set"

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
        """The fields of all events are as the oracle says, and each open event is listed where it would be found."""
        self.counts["step",] += 1
        self._compare()
        hold_of_lists(self.store, self.oracle, is_exact=self.is_calm)
        if self.is_calm:
            hold_of_places(self.store, self.oracle, self.now)

    def _compare(self) -> None:
        """Compare the fields of all events with the oracle's."""
        hold_of_records(self.store, self.oracle, self.before, now=self.now)
        self.before.clear()

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
            self._sweep("s1")
            self.take("w1", 10, Candidates.ALL, WELL)
            while self.attempts["w1"]:
                self.end(None, follow=True, fate=WELL)
        else:
            raise AssertionError(f"still open: {self.oracle.events} {everything(self.redis)}")
        for milliseconds in (61_000, 5_000_000, 61_000):  # RQ's record of a started job goes after ten minutes.
            self.take("w1", 10, Candidates.ALL, WELL)
            self.clock.advance(milliseconds)
            self._forget()
            self._sweep("s1")
        hold_of_lists(self.store, self.oracle, is_exact=True)
        hold_at_the_end(self.store, self.oracle, was_calm=was_calm)
        assert self._neighbours() == self.neighbours, "the queue beside ours was touched"
