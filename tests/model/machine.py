"""Histories of receivers, workers, sweepers and operators over one store, step by step.

Hypothesis chooses each step from the table `RULES`, and whatever varies in it. A rule does its work with the real code,
and tells the oracle. Then the fields of all events are compared.

A fault meets one script: it is cut after some of its writes, or its reply is lost, or its process dies as well. What
somebody runs again must be complete afterwards. If nobody runs it again, each field is as before or as it should be.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from model import promises
from model.ends import DONE, ENDS, FETCH_ENDS, GIVEN_UP, HANDLER_ENDS
from model.oracle import (
    LEASE_MS,
    MOST_KILLED,
    MOST_LAPSES,
    OPEN,
    RETENTION_MS,
    Event,
    Fields,
    Oracle,
    Schedule,
)
from model.scripted_store import WELL, Clock, Died, Fate, ScriptedStore
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
from credhook.worker.queue.claims import Candidates, Claim, Claims
from credhook.worker.queue.failure import WORKER_DIED
from credhook.worker.queue.leases import reclaim
from credhook.worker.queue.sweeper import Sweeper
from support.store.stores import run_accept
from support.virtual_time import OwnTimeLoop

T = TypeVar("T")

#: Rule → its share of the steps, and what it needs.
RULES: Final = {
    "deliver": (5, "nothing"),
    "backfill": (1, "nothing"),
    "take": (9, "an open event"),
    "end": (12, "an attempt"),
    "record": (3, "an attempt"),
    "save_progress": (2, "an attempt"),
    "renew": (1, "an attempt"),
    "die": (3, "faults and a claim"),
    "stall": (3, "faults"),
    "sweep": (4, "faults"),
    "replay": (10, "a settled or waiting event"),
    "erase": (3, "an event"),
    "pass_time": (4, "nothing"),
    "schedule": (2, "nothing"),
    "conflict": (1, "an event"),
    "pause": (1, "nothing"),
    "set_clock": (2, "faults"),
    "delete": (2, "faults"),
    "flush": (1, "faults"),
}
#: What becomes of a script that a fault may meet.
FATES: Final = (*["well"] * 10, "lost", "cut", "cut", "died", "died")
#: Writes of a script that Redis keeps. Most scripts have few.
WRITES: Final = (*range(6), *range(6), *range(20))
A_MONTH_MS: Final = 30 * 86_400_000
#: Scripts of a round of the sweeper, of which a fault may meet one.
SWEEPING: Final = ("put_back", "replay", "bring_forward", "clock_step", "sweep")

ISSUED, DATA, FAILED = "openid4vc.issuance.completed", "openid4vc.verification.data", "openid4vc.issuance.failed"
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


def _handle(event: Any, context: Any) -> None: ...


HANDLERS: Final = [Handler(name, frozenset({ISSUED, DATA, FAILED}), _handle) for name in ("m.first", "m.second")]
NAMES: Final = tuple(handler.name for handler in HANDLERS)
WANTED: Final = dict.fromkeys((ISSUED, DATA, FAILED), NAMES)
#: The handler `m.second` came after the program of this worker.
OLD_WORKER: Final = "w3"
WORKERS: Final = ("w1", "w2", OLD_WORKER)
#: Ranks and times of the resource's state that is fetched.
VERSIONS: Final = ((3, 1_000), (0, 1_000), (1, 2_000), (3, 2_000))


class Histories(RuleBasedStateMachine):
    """One queue, and a neighbour. `redis` is empty at the start of each history."""

    redis: Redis
    #: Rules beside states of events, faults, steps and histories.
    counts: "Counter[tuple[str, ...]]"

    def __init__(self) -> None:
        super().__init__()
        #: What Hypothesis chooses with; None: each choice is the first one, with which everything succeeds.
        self.data: Any = None
        self.clock, self.oracle = Clock(self.redis), Oracle()
        self.store = ScriptedStore(self.redis, self.clock)
        self.loop = asyncio.Runner(loop_factory=OwnTimeLoop)
        lease = LEASE_MS / 1_000
        self.claims = {name: Claims(self.store.for_async_code(), lease=lease, worker=name) for name in WORKERS}
        #: Attempts of workers, also of those that have lost their claims.
        self.attempts: dict[str, list[Attempt]] = {name: [] for name in WORKERS}
        self.sweepers = {
            name: Sweeper(self.store, name=name, interval=1, lease=lease, wanted=WANTED, clock=self.clock.seconds)
            for name in ("s1", "s2")
        }
        self.platform = platform_key("https://platform.test", self.store.queue)
        #: True if there are no faults and no repairs: each open event is in one place, from which it comes out.
        self.is_calm = False
        #: What has become of the last script that a fault could meet.
        self.fate = WELL
        #: The fields of events that may stay as they were.
        self.before: dict[str, Fields] = {}
        self._empty()

    def _empty(self) -> None:
        """Empty Redis, and let a queue beside ours have events. Our queue's name begins its name."""
        self.redis.flushdb()
        self.neighbour, self.beside = ScriptedStore(self.redis, self.clock, self.store.queue + "2"), Oracle()
        for event_id in ("event-1", "event-5"):
            run_accept(self.neighbour, (event_id, *EVENTS[event_id]))
            self.beside.accept(event_id, *EVENTS[event_id], received=self.now)

    # --- steps and faults

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        self.data = data
        self.is_calm = self.choose("calm", (True, False, False))
        for _ in range(self.choose("deliveries", (1, 2, 3, 4))):
            self.deliver()
        self.take()

    @rule(data=st.data())
    def step(self, data: Any) -> None:
        """Follow one of the rules that have what they need."""
        self.data, events = data, self.oracle.events.values()
        has = {
            "nothing": True,
            "an event": bool(events),
            "an open event": any(event.is_open for event in events),
            "a settled or waiting event": any(event.fields["state"] != State.ACCEPTED for event in events),
            "an attempt": any(self.attempts.values()),
            "faults": not self.is_calm,
            "faults and a claim": not self.is_calm and any(event.fields.get("holder") for event in events),
        }
        possible = tuple(name for name, (share, need) in RULES.items() if has[need] for _ in range(share))
        getattr(self, self.choose("rule", possible))()

    def choose(self, what: str, options: Sequence[T]) -> T:
        """Let Hypothesis choose."""
        return options[0] if self.data is None else cast(T, self.data.draw(st.sampled_from(options), label=what))

    def note(self, what: str) -> None:
        """Count what happens, and beside which states of events."""
        self.counts["rule", what] += 1
        for state in {event.fields["state"] for event in self.oracle.events.values()} or {"no event"}:
            self.counts["rule", what, str(state)] += 1

    def meets(self, script: Any, run: Callable[[], T], *, again: bool = False, worker: str = "") -> T | None:
        """Run what runs this script, and let a fault meet it. Return None if its reply is lost.

        `again`: True if the script is run again after a fault, unless its process dies. A `worker` that dies forgets
        its attempts.
        """
        kind = "well" if self.is_calm else self.choose("fate", FATES)
        writes = self.choose("writes", WRITES) if kind in {"cut", "died"} else -1
        self.fate = Fate(writes, is_lost=kind != "well", is_last=kind == "died")
        self.store.fates[script] = self.fate
        self.counts["fault", f"{script}: {kind}"] += self.fate.is_lost
        if self.fate.is_last or (self.fate.is_lost and not again):
            self._expect_half()
        try:
            return run()
        except Died:
            if worker:
                self.note("die at a script")
                self.attempts[worker].clear()
        except ConnectionBroken:
            return run() if again else None
        finally:
            self.store.fates.clear()
        return None

    def _expect_half(self) -> None:
        """Expect that what comes next may not be written, or only some fields of it."""
        self.before = {event.id: dict(event.fields) for event in self.oracle.events.values()}

    def write(self, worker: str, work: Coroutine[Any, Any, T]) -> T | None:
        """Let a worker write, again after a fault, unless it dies. It runs on a loop of its own time."""
        return self.meets("write", lambda: self.loop.run(work), again=True, worker=worker)

    @property
    def now(self) -> int:
        return self.clock.now

    # --- receivers

    def deliver(self, event_id: str = "") -> None:
        """A delivery, perhaps a repetition. After a fault the receiver refuses it, and it may come again."""
        event_id = event_id or self.choose("event", tuple(EVENTS))
        kind, resource = EVENTS[event_id]
        self.note(f"deliver, {'again' if event_id in self.oracle.events else 'new'}")
        expected = self.oracle.outcome(event_id, kind, resource, now=self.now)
        (outcome,) = self.meets("accept", lambda: run_accept(self.store, (event_id, kind, resource))) or [None]
        is_half_erased = outcome == b"erased" and (kind, resource) in self.oracle.half_erased
        assert is_half_erased or outcome in {None, expected}, f"{event_id} is {outcome!r}: {self.oracle.events}"
        self._accepted(event_id, kind, resource)

    def _accepted(self, event_id: str, kind: str, resource: str) -> None:
        """Tell the oracle of the event if its record is there, also if the reply was lost."""
        found = promises.read(self.store, [event_id]).get(event_id)
        if not found:
            self.oracle.without_record.add(event_id)
        elif event_id not in self.oracle.events:
            event = self.oracle.accept(event_id, kind, resource, received=found["received"])
            assert self.now <= found["received"] <= self.now + CLOCK_SLACK_MS
            if event_id in self.oracle.without_record:  # Its lock and its lease may have outlived the record.
                event.fields |= {name: found.get(name, 0) for name in ("fence", "lapses", "holder", "lease", "kept")}
                event.has_lock = bool({"holder", "kept"} & found.keys())

    def backfill(self) -> None:
        """A backfill brings an event that no delivery has brought, unless one does so meanwhile."""
        kind, resource = self.choose("type", (ISSUED, FAILED)), "issuance-1"
        last, (_, _, erased, *arrived) = self.store.run("arrived", [resource, 0])
        events = self.oracle.of_resource(resource)
        assert {event.type for event in events if event.type in WANTED} <= {name.decode() for name in arrived}
        was_erased = self.oracle.was_erased(kind, resource, now=self.now, is_backfill=True)
        assert (kind.encode() in erased) >= was_erased, f"a backfill would bring back {kind}"
        if kind.encode() in {*arrived, *erased}:
            return
        is_late = self.choose("a delivery comes meanwhile", (False, True))
        self.note(f"backfill{', and a delivery' if is_late else ''}")
        if is_late:
            self.deliver("event-1" if kind == ISSUED else "event-7")
        has_arrived = any(event.type == kind for event in self.oracle.of_resource(resource))
        event = f"{BACKFILLED}{kind}:{resource}", kind, resource
        outcomes = self.meets("accept", lambda: run_accept(self.store, event, since=last.decode()))
        assert not outcomes or has_arrived <= (outcomes != [b"accepted"]) <= is_late, f"{outcomes} of a backfill"
        self._accepted(*event)

    def conflict(self) -> None:
        """A delivery has the id of an event, and another resource."""
        self.note("conflict")
        event = self._choose_event()
        assert run_accept(self.store, (event.id, event.type, "other")) == [b"conflict"]

    # --- workers

    def take(self, name: str = "", candidates: Candidates | None = None) -> None:
        """A worker takes events. If the reply is lost, it knows nothing of its claims."""
        name = name or self.choose("worker", (*WORKERS, OLD_WORKER))
        candidates = candidates or self.choose("candidates", (*[Candidates.NONE] * 4, Candidates.ONLY, Candidates.ALL))
        self.note(f"take {candidates.value}")
        is_paused = self.redis.exists(self.platform + ":pause")
        wanted, platform = self.choose("wanted", (4, 1, 2, 3)), (self.platform, 0, 0, 0)
        work = self.claims[name].take(wanted, candidates=candidates, platform=platform)
        taken = self.meets("take", lambda: self.loop.run(work), worker=name)
        assert not (is_paused and taken and taken.claims), f"{taken} during a pause of the platform"
        for claim in taken.claims if taken else ():
            self._begin(name, claim, is_alone=candidates is not Candidates.NONE)
        if not taken:
            self._adopt_claims(name)

    def _adopt_claims(self, name: str, settled: Claim | None = None) -> None:
        """Tell the oracle of claims that the worker does not know: nobody else has these events until they lapse.

        `settled`: a claim that the worker has settled, or was about to settle.
        """
        found = promises.read(self.store, list(self.oracle.events))
        for event in self.oracle.events.values():
            fields, fence = found.get(event.id, event.fields), event.number("fence")
            has_begun = event.fields["state"] == State.WAITING != fields["state"]
            if settled and settled.event_id == event.id:
                fence, has_begun = max(fence, settled.fence), False
            if has_begun or fields.get("fence", 0) > fence:
                self.before.setdefault(event.id, dict(event.fields))
                self.oracle.claim(event, name, now=self.now, is_alone=True)

    def _begin(self, name: str, claim: Claim, *, is_alone: bool) -> None:
        """Let a worker begin with a claim, which says all that the record says."""
        assert claim.event_id in self.oracle.events, f"{claim.event_id} was never acknowledged, or was erased"
        event = self.oracle.events[claim.event_id]
        ended = {name: promises.end_of(how) for name, how in claim.ended.items()}
        told = claim.killed, claim.lapses, claim.pending, ended
        assert told == (event.number("killed"), event.number("lapses"), event.pending, event.ended), (claim, event)
        assert {PROGRESS + who for who in claim.progress} == {name for name in event.fields if name[:2] == PROGRESS}
        for who, schedule in claim.schedules.items():
            assert event.schedule(who) == schedule[:2], (claim, event)
        assert claim.latest[1] * 100 + claim.latest[0] == self.oracle.latest(event.resource), (claim, event)
        self.oracle.claim(event, name, now=self.now, is_alone=is_alone)
        assert claim.fence == event.number("fence"), (claim, event)
        own = HANDLERS[:1] if name == OLD_WORKER else HANDLERS
        attempt = Attempt(claim)
        attempt.wanted = [handler for handler in own if not claim.only or handler.name in claim.only]
        awaited = (claim.only | claim.pending).difference(claim.ended, [handler.name for handler in own])
        attempt.missing = tuple(sorted(awaited))
        self.attempts[name].append(attempt)

    def _choose_attempt(self) -> tuple[str, Attempt]:
        """Choose a worker that has attempts, and one of them."""
        name = self.choose("worker", tuple(name for name, attempts in self.attempts.items() if attempts))
        return name, self.attempts[name][self.choose("attempt", range(len(self.attempts[name])))]

    def end(self) -> None:
        """An attempt ends, and is settled. Its claim may have been lost long ago."""
        name, attempt = self._choose_attempt()
        self.attempts[name].remove(attempt)
        claim = attempt.claim
        event, is_standing = self.oracle.event_of(claim)
        attempt.began = time.monotonic() - (self.now - claim.now) / 1_000
        ends = self._run(attempt)
        settlement = attempt.settlement()
        self.note(f"end as {settlement.state.value}{'' if is_standing else ', too late'}")
        settling = self.claims[name].settle(claim, settlement, follow=self.choose("follow", (True, False)))
        ours, following = self.write(name, settling) or (False, None)
        if event is None:
            assert not ours, f"{claim} was settled, though its event was erased"
            return
        if is_standing:
            if self.fate.is_lost and not event.holds(self.now):
                self._expect_half()  # Without its lock, a second run takes the settlement for complete.
            before = promises.effective(event.fields, self.now)
            self.oracle.settle(event, attempt, ends, now=self.now)
            assert settlement.state == event.fields["state"], (settlement, event)
            found = promises.read(self.store, [event.id])[event.id]
            is_retaken = found.get("fence", 0) > claim.fence + 1
            assert ours or is_retaken or self.fate.writes >= 0, f"the settlement of {claim} was refused"
            if settlement.state != State.ACCEPTED and not is_retaken:  # It takes effect at once, with its state.
                is_settled = found["state"] == settlement.state
                sure = promises.effective(event.fields, self.now) if is_settled else before
                assert found.items() >= sure.items(), f"{sure} is not in {found}"
            is_waiting = event.due and found["state"] == State.WAITING
            assert not is_waiting or abs(found["due"] - event.due) < CLOCK_SLACK_MS, (found, event)
            # If a clock was set, or will be and nothing says when the event moved, it may wait longer.
            if self.fate.is_last or not event.due:
                event.due, event.wait = 0, A_MONTH_MS
        else:
            assert not ours or settlement.state == event.fields["state"], f"{claim} was settled, and was lost: {event}"
            self.oracle.record(event, attempt, ends)
        if following:
            self._begin(name, following, is_alone=False)
        if self.fate.is_lost:
            self._adopt_claims(name, claim)

    def _run(self, attempt: Attempt) -> dict[str, str]:
        """Run the handlers that are due. Return how each has ended, or the fetch if it has failed."""
        claim, ends = attempt.claim, dict[str, str]()
        if claim.killed >= MOST_KILLED or claim.lapses >= MOST_LAPSES:
            attempt.given_up = WorkerDied()
            attempt.add_failure(WORKER_DIED)
        elif ready := self._ready(attempt):
            fetch = "found" if attempt.fetched else self.choose(FETCH, FETCH_ENDS)
            if fetch == "drained":
                attempt.interruption = Interruption.DRAINED
            elif fetch != "found":
                attempt.calls_platform, ends[FETCH] = True, fetch
            else:
                self._dispatch(attempt, ready)
                ends = {handler.name: self.choose(handler.name, HANDLER_ENDS) for handler in ready}
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
        for name in [handler.name for handler in due if not claim.first and handler.name not in attempt.dispatched]:
            if how := self.loop.run(self.claims["w1"].ended(claim, name)):
                attempt.statuses[name] = how
        return [handler for handler in due if handler.name not in attempt.statuses]

    def _dispatch(self, attempt: Attempt, handlers: list[Handler]) -> None:
        """Fetch the details, and begin with these handlers."""
        claim = attempt.claim
        if not attempt.fetched:
            attempt.calls_platform = True
            attempt.fetched = Fetched(None, claim.now, has_data=claim.type == DATA)  # type: ignore[arg-type]
            attempt.version = self.choose("version", VERSIONS)
        event, is_standing = self.oracle.event_of(claim)
        for handler in handlers:
            if event and is_standing and handler.name not in attempt.dispatched:
                self.oracle.may_run(event, handler.name)
        attempt.dispatched = tuple({*attempt.dispatched, *(handler.name for handler in handlers)})

    def record(self) -> None:
        """One handler of an attempt is done, and its end is recorded at once. The attempt goes on."""
        name, attempt = self._choose_attempt()
        claim = attempt.claim
        if claim.killed >= MOST_KILLED or attempt.fetched or not (ready := self._ready(attempt)):
            return
        self.note("record")
        self._dispatch(attempt, ready)
        handler = ready[0].name
        attempt.statuses[handler], attempt.durations[handler] = DONE, 1.0
        self.write(name, self.claims[name].record(claim, handler, "done 1", attempt.pending))
        event, _ = self.oracle.event_of(claim)
        if event:
            self.oracle.record(event, attempt, {handler: "done"})

    def save_progress(self) -> None:
        """A handler saves how far it has come, unless its worker has lost the claim."""
        name, attempt = self._choose_attempt()
        self.note("progress")
        event, is_standing = self.oracle.event_of(attempt.claim)
        ours = self.write(name, self.claims[name].save_progress(attempt.claim, NAMES[0], "half"))
        is_sure = is_standing and event and event.number("lease") > self.now
        assert ours is None or bool(is_sure) <= ours <= is_standing, f"progress of {attempt.claim}: {event}"
        if event and (is_standing if ours is None else ours):
            event.fields[PROGRESS + NAMES[0]] = "half"

    def renew(self, name: str = "") -> None:
        """A worker renews its claims, and hears which of them it has lost."""
        name = name or self.choose("worker", WORKERS)
        self.note("renew")
        claims = [attempt.claim for attempt in self.attempts[name]]
        lost = self.meets("write", lambda: self.loop.run(self.claims[name].renew(claims)), worker=name)
        for claim in claims:
            event, is_standing = self.oracle.event_of(claim)
            is_lost = lost is not None and claim in lost
            if event and is_standing:
                assert not is_lost or event.number("lease") <= self.now, f"{claim} was not renewed: {event}"
                if not is_lost:
                    event.fields["lease"] = self.now + LEASE_MS
            else:
                assert lost is None or is_lost, f"{claim} was renewed, though it is lost: {event}"

    def die(self) -> None:
        """A worker dies. Its supervisor notes it, or its neighbours, and its work goes on; or nobody notes it."""
        holders = {event.fields.get("holder") for event in self.oracle.events.values()}
        name = self.choose("worker", [worker for worker in WORKERS if worker in holders])
        how = self.choose("how", ("own", "own", "ended", "host"))
        self.note(f"die {how}")
        self.attempts[name].clear()
        deaths = {event.id: event.deaths for event in self.oracle.events.values()}
        held = self._note_death(name, how)
        self._compare()
        if self.fate.is_lost and not self.fate.is_last:  # The supervisor notes it once more.
            held = []
            self._note_death(name, how)
            self._compare()
        for event in self.oracle.events.values():
            assert event.deaths <= deaths[event.id] + 1, f"a death counts twice: {event}"
        queued = cast("list[bytes]", self.redis.lrange(self.store.keys.jobs, 0, -1))
        for event in [] if self.fate.is_lost else held:
            others = [other for other in self.oracle.of_resource(event.resource) if other is not event]
            may_wait = event.number("lapses") > promises.PATIENT_FOR or any(other.holds(self.now) for other in others)
            assert may_wait or job_id(self.store.queue, event.id).encode() in queued, f"{event} does not go on"

    def _note_death(self, name: str, how: Any) -> list[Event]:
        """Note the death, and return the events that the worker held."""
        leased: Any = self.redis.zrange(self.store.keys.leases, 0, -1)
        theirs = [event for event in self.oracle.events.values() if event.fields.get("holder") == name]
        held = [event for event in theirs if event.is_open and event.id.encode() in leased]
        assert self.meets("reclaim", lambda: reclaim(self.store, name, how)) or self.fate.is_lost
        self.oracle.bury(held, how, now=self.now)
        for event_id, fields in promises.read(self.store, [event.id for event in held]).items():
            event = self.oracle.events[event_id]
            event.fields["lease"] = min(self.now, fields["lease"])  # What is over may be there, or is gone.
            if event.number("kept") <= self.now:
                event.fields["kept"] = min(self.now, fields.get("kept", 0))
        return held

    def stall(self) -> None:
        """All workers stall for longer than their leases, and one takes over. The others go on later."""
        self.note("stall")
        self.clock.advance(LEASE_MS + 1_000)
        self._sweep()
        self.take(candidates=Candidates.ALL)

    # --- repairs

    def sweep(self) -> None:
        """A round of a sweeper, in which a fault may meet a script."""
        self.note("sweep")
        self._sweep(self.choose("sweeper", ("s1", "s2")), self.choose("script", SWEEPING))

    def _sweep(self, name: str = "s1", script: str = "") -> None:
        """Let a sweeper run. It frees what no worker has, resumes unhandled events, and brings times forward."""
        self._compare()
        self._expect_half()
        sweeper, unhandled = self.sweepers[name], promises.listed(self.store)["unhandled"]
        put_back = self.meets(script, sweeper.run) if script else sweeper.run()
        found, does_all = promises.read(self.store, list(self.oracle.events)), put_back is not None and sweeper.leads
        for event in self.oracle.events.values():
            fields = found[event.id]
            if event.fields["state"] == State.UNHANDLED and fields["state"] == State.ACCEPTED:
                self.oracle.replay(event, now=self.now, resume=True)
            is_left = fields["state"] == State.UNHANDLED and event.id in unhandled
            assert not (does_all and is_left), f"{event} has a handler here"
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

    def _choose_event(self) -> Event:
        """Choose an event, more likely a settled one."""
        events = self.oracle.events
        settled = sorted(event.id for event in events.values() if not event.is_open and event.type in WANTED)
        return events[self.choose("event", (*sorted(events), *6 * settled))]

    def replay(self) -> None:
        """An operator replays an event, or one of its handlers, whatever its state; or lets it wait no longer."""
        event, what = self._choose_event(), self.choose("what", ("", "", "now", *NAMES))
        state, job = event.fields["state"], job_id(self.store.queue, event.id)
        if self.is_calm and state == State.WAITING and self.redis.zscore(self.store.keys.scheduled, job) is None:
            return  # It is in the queue already, and would be there twice.
        selected = self.choose("selected", (*[state] * 6, State.DONE, State.DEAD))
        expected = "changed" if selected != state else "replayed"
        if event.is_open:
            is_idle = state == State.WAITING and event.number("lease") <= self.now
            expected = "replayed" if is_idle and what == "now" else "open"
        elif expected == "replayed" and event.type not in WANTED:
            expected = "unknown_type"
        self.note(f"replay {state}: {expected}")
        named: dict[str, Any] = {"handler": what, "types": WANTED} if what in NAMES else {"how": what}
        replay, batch = Replay(self.store), [Settled(event.id, selected)]
        outcomes = self.meets("replay", lambda: replay(batch, **named), again=True)
        assert self.fate.is_lost or outcomes == [expected.encode()], f"{outcomes} in place of {expected}: {event}"
        if expected == "replayed" and event.is_open:
            self.oracle.hurry(event)
        elif expected == "replayed":
            self.oracle.replay(event, now=self.now, handler=what if what in NAMES else "")

    def erase(self) -> None:
        """An operator erases an event, or a resource as a whole. A resource is erased until the erasure is complete."""
        event, is_whole = self._choose_event(), self.choose("its resource", (False, True))
        of_resource = self.oracle.of_resource(event.resource)
        if self.is_calm and any(one.is_open for one in of_resource):
            return  # A job would stay in the queue, and blocked events would wait for the sweeper.
        self.note(f"erase {event.fields['state']}{', and its resource' if is_whole else ''}")
        erasure = Erasure(self.store, Selection(resource=event.resource) if is_whole else Selection())
        events = of_resource if is_whole else [event]
        batch = [EventSummary(one.id, one.type, one.fields["state"]) for one in events]
        is_done = self.meets("erase", lambda: (erasure(batch), erasure.finish(batch)), again=True)
        if is_whole and not is_done:
            erasure(batch)
            erasure.finish(batch)
        there = promises.read(self.store, [one.id for one in events])
        assert not is_done or not there, f"{there} were not erased"
        for one in events:
            if one.id in there:  # It was cut, and nobody asks again: the event is there, and perhaps without its claim.
                one.drop("lease", "kept")
                self.oracle.half_erased.add((one.type, one.resource))
            else:
                self.oracle.erase(one, now=self.now)
        if is_whole:
            self.oracle.marks["", event.resource] = self.now
        if is_done:
            promises.hold_of_erased(self.store, self.oracle, {one.id for one in events}, is_exact=self.is_calm)

    # --- the world

    def pass_time(self) -> None:
        """Time passes for everybody. While nothing disturbs, workers renew their leases in time."""
        self.note("time")
        milliseconds = self.choose("ms", (1, 900, 3_000, 6_000, 6_000, 61_000, 600_000, 5_000_000, 90_000_000))
        if self.is_calm and any(event.is_open for event in self.oracle.events.values()):
            for name in WORKERS:
                self.renew(name)
            milliseconds = min(milliseconds, LEASE_MS // 2)
        self.clock.advance(milliseconds)
        self._forget()

    def _forget(self) -> None:
        """Let the oracle forget the events that Redis has forgotten."""
        gone = self.oracle.events.keys() - promises.read(self.store, list(self.oracle.events)).keys()
        for event_id in gone:
            promises.hold_of_forgotten(self.oracle.events.pop(event_id), self.now)
        self.oracle.without_record |= gone  # A settlement that was cut may have left the event open.
        if gone:
            self._sweep()

    def schedule(self) -> None:
        """RQ's own scheduler, which counts whole seconds, moves jobs that are due."""
        self.note("schedule")
        keys = self.store.keys
        due: Any = self.redis.zrangebyscore(keys.scheduled, 0, (self.now + 1_500) // 1_000)
        for job in due:
            self.redis.zrem(keys.scheduled, job)
            self.redis.rpush(keys.jobs, job)

    def pause(self) -> None:
        """The platform wants a pause."""
        self.note("pause")
        self.store.run("pause", [30_000, "503", 0, 0], keys=[self.platform, self.store.keys.heartbeats])

    def set_clock(self) -> None:
        """Redis's clock is set. A process may see it before anybody takes a lease for lapsed."""
        milliseconds = self.choose("ms", (-5_000, -600_000, 5_000, 120_000))
        is_seen = milliseconds > LEASE_MS and self.choose("seen", (True, False))
        self.note(f"clock {milliseconds:+}{', seen' if is_seen else ''}")
        if is_seen:
            self._sweep()
        held = [event for event in self.oracle.events.values() if event.number("lease") > self.now]
        self.clock.step(milliseconds)
        for event in self.oracle.events.values():
            event.due = 0
        self._forget()
        if is_seen:
            self._sweep()
        for event in held if is_seen else ():
            assert event.number("lease") > self.now, f"{event} has lapsed because a clock was set"

    def delete(self) -> None:
        """Somebody deletes a list of RQ's, or the record of an event."""
        keys = self.store.keys
        what = self.choose("what", (keys.jobs, keys.scheduled, "the record of an event"))
        self.note(f"DEL {what}")
        if what in {keys.jobs, keys.scheduled}:
            self.redis.delete(what)
        elif self.oracle.events:
            event = self._choose_event()
            self.oracle.lose(event)
            self.redis.delete(keys.event + event.id)

    def flush(self) -> None:
        """Redis loses all that it has. The next round says how many events are lost, and deliveries go on."""
        self.note("FLUSHDB")
        keys = self.store.keys
        lost = sum(self.redis.zcard(key) for key in (keys.open, keys.dead, keys.quarantined, *keys.all_unhandled))
        self._sweep()  # It remembers what was there as it began.
        self._empty()
        self.oracle = Oracle()
        self.clock.advance(1)
        run_accept(self.store, ("event-1", *EVENTS["event-1"]))
        self._accepted("event-1", *EVENTS["event-1"])
        self._sweep(script="emptied")
        self._sweep()
        counted: Any = self.redis.hget(keys.losses, "count")
        assert int(counted or 0) == lost, f"{counted} of {lost} lost events were counted"

    # --- what holds at every step, and at the end

    @invariant()
    def promises_hold(self) -> None:
        """The fields of all events are as the oracle says, and each open event is listed where it would be found."""
        self.counts["step",] += 1
        self._compare()
        promises.hold_of_lists(self.store, self.oracle, is_exact=self.is_calm)
        if self.is_calm:
            promises.hold_of_places(self.store, self.oracle, self.now)

    def _compare(self) -> None:
        """Compare the fields of all events with the oracle's."""
        promises.hold_of_records(self.store, self.oracle, self.before, now=self.now)
        self.before.clear()

    def teardown(self) -> None:
        """The faults stop, and time passes: everything that is open comes to an end, and the lists agree."""
        self.counts["history", "calm" if self.is_calm else "disturbed"] += 1
        try:
            self._recover()
        finally:
            self.loop.close()

    def _recover(self) -> None:
        self.data, was_calm = None, self.is_calm
        if was_calm:
            self._come_to_an_end(OPEN)
        self.is_calm = False
        for attempts in self.attempts.values():
            attempts.clear()
        self._come_to_an_end({*OPEN, State.UNHANDLED})
        for milliseconds in (61_000, 5_000_000, 61_000):  # RQ's record of a started job goes after ten minutes.
            self.take("w1", Candidates.ALL)
            self.clock.advance(milliseconds)
            self._forget()
            self._sweep()
        promises.hold_of_lists(self.store, self.oracle, is_exact=True)
        promises.hold_at_the_end(self.store, self.oracle)
        resources = {
            name
            for (kind, name), at in self.oracle.marks.items()  # Once a mark has expired, the resource may come back.
            if not kind and self.now < at + RETENTION_MS and not self.oracle.of_resource(name)
        }
        promises.hold_of_erased(self.store, self.oracle, self.oracle.erased | resources, is_exact=was_calm)
        promises.hold_of_records(self.neighbour, self.beside, {}, now=self.now)
        promises.hold_of_places(self.neighbour, self.beside, self.now)
        self.clock.advance(A_MONTH_MS)
        self._forget()
        self._sweep()
        promises.hold_of_nothing(self.store)

    def _come_to_an_end(self, states: Collection[State]) -> None:
        """Work until no event is in one of these states, in calm histories without a sweeper."""
        for _ in range(60):
            while any(self.attempts.values()):
                self.end()
            if not any(event.fields["state"] in states for event in self.oracle.events.values()):
                return
            self.clock.advance(61_000)
            if not self.is_calm:
                self._sweep()
            self.take("w1", Candidates.ALL)
        raise AssertionError(f"still open: {self.oracle.events}")
