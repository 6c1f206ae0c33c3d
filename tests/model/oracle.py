"""What the store promises, as plain data: the fields of each event, and what each rule does to them.

An event is acknowledged once its delivery was answered, or once its record is there. From then on it is open until a
settlement or an erasure. A claim holds it until its lease ends: one event of a resource at a time, with a fence above
all earlier ones. Whoever has the last fence settles. An earlier claim adds the ends of its handlers and nothing else,
and not even these after a replay. Each handler has its own end, its own attempts and its own due time.

The fields have the names of the record, as credhook/store/__init__.py lists them. A claim's fields (`fence`, `lapses`,
`holder`) are in the lock of its resource until the claim ends. Two more come from leases and locks: `lease`, when the
lease of the event ends, and `kept`, until when its resource is kept for it since its worker died.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from model.ends import DONE, ENDS, GIVEN_UP, SKIPPED, End

from credhook.events import EVENT_TYPES, REPEATABLE
from credhook.store import BACKFILLED, FETCH, GAVE_UP, HANDLER, ONLY, PENDING, PROGRESS, State
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.queue.claims import Claim

#: Fields of an event, by name.
Fields = dict[str, Any]
#: Ms that the model's store remembers a settled event.
RETENTION_MS: Final = 86_400_000
LEASE_MS: Final = 60_000
#: States of events that a worker may still take.
OPEN: Final = frozenset({State.ACCEPTED, State.WAITING})
#: Ms that RQ's scheduler may be early.
EARLY_MS: Final = 2_000
#: Deaths of workers with several events, after which a process takes an event alone.
COMMON_DEATHS: Final = 2
#: Deaths with nothing else under way after which an event is given up, and claims without a settlement.
MOST_KILLED, MOST_LAPSES = 2, 30


class Schedule(NamedTuple):
    """Attempts that a handler, or the fetch, has spent, and when it is tried again, in ms; 0: at once."""

    attempts: int = 0
    due: int = 0


@dataclass
class Event:
    """An acknowledged event.

    Attributes:
        fields: as they should be in Redis. A field that is 0 or empty counts as absent.
        wait: ms that a waiting event was told to wait.
        due: until when it waits, in ms of the model; 0 if it was hurried, or a clock has stepped since.
        has_lock: True if no other event of its resource was claimed since.
        late: handlers whose end came from a claim of a record that was deleted, after this record was made.
    """

    id: str
    type: str
    resource: str
    fields: Fields = field(default_factory=dict)
    wait: int = 0
    due: int = 0
    has_lock: bool = False
    late: set[str] = field(default_factory=set)

    def number(self, name: str) -> int:
        """Return a field that is a number; 0 if it is absent."""
        return int(self.fields.get(name, 0))

    @property
    def is_open(self) -> bool:
        """Return True if a worker may take it."""
        return self.fields["state"] in OPEN

    @property
    def deaths(self) -> int:
        """Return how many workers have died while they held it."""
        return self.number("killed") + self.number("deaths")

    @property
    def is_poison_candidate(self) -> bool:
        """Return True if only a process that takes nothing else may take it."""
        return self.number("killed") > 0 or self.number("deaths") >= COMMON_DEATHS

    @property
    def ended(self) -> dict[str, str]:
        """Return how handlers have ended."""
        return {name.removeprefix(HANDLER): how for name, how in self.fields.items() if name.startswith(HANDLER)}

    @property
    def pending(self) -> set[str]:
        """Return the handlers that have begun, or were replayed, and have not ended."""
        names = {name.removeprefix(PENDING) for name in self.fields if name.startswith(PENDING)}
        return names.difference(self.ended, [FETCH])

    def schedule(self, who: str) -> Schedule:
        """Return the schedule of a handler, or of the fetch."""
        return Schedule(*self.fields.get(PENDING + who, ()))

    def end(self, who: str, end: End, *, spent: int, now: int = 0) -> None:
        """Take in the end of a handler, or of the fetch. A handler that ends at its first attempt has no schedule."""
        attempts = spent + end.spends
        if end.ended:
            self.fields[HANDLER + who] = end.ended
        if end.wait or end.state or attempts > 1:
            self.fields[PENDING + who] = Schedule(attempts, now + end.wait if end.wait else 0)

    def drop(self, *names: str) -> None:
        """Remove these fields."""
        self.fields = {name: value for name, value in self.fields.items() if name not in names}

    def holds(self, now: int) -> bool:
        """Return True if it has its resource: its lease runs, or its worker has died a while ago."""
        return self.has_lock and max(self.number("lease"), self.number("kept")) > now


def unfinished(attempt: Attempt) -> set[str]:
    """Return the handlers of this worker that have not ended."""
    return {handler.name for handler in attempt.wanted} - attempt.claim.ended.keys() - attempt.statuses.keys()


def begun(attempt: Attempt) -> set[str]:
    """Return the handlers that have begun now or earlier, also on other workers, and have not ended."""
    names = attempt.claim.pending.union(attempt.missing, attempt.dispatched)
    return names - attempt.claim.ended.keys() - attempt.statuses.keys()


class Oracle:
    """What should be in the store."""

    def __init__(self) -> None:
        self.events: dict[str, Event] = {}
        #: Ids of erased events that did not come again.
        self.erased: set[str] = set()
        #: Type and resource of an erased event, or "" and an erased resource → when it was erased, in ms of the model.
        self.marks: dict[tuple[str, str], int] = {}
        #: The same of events whose erasure was cut: the mark may be there, and the event, too.
        self.half_erased: set[tuple[str, str]] = set()
        #: Events that may be listed without a record: their delivery was cut, or somebody has deleted the record.
        self.without_record: set[str] = set()
        #: Open events whose records somebody has deleted.
        self.vanished: set[str] = set()

    # --- deliveries

    def accept(self, event_id: str, event_type: str, resource: str, *, received: int) -> Event:
        """Take in a delivery that was stored."""
        state = State.ACCEPTED if event_type in EVENT_TYPES else State.QUARANTINED
        fields = {"type": event_type, "resource": resource, "state": state, "received": received}
        event = self.events[event_id] = Event(event_id, event_type, resource, fields)
        self.erased.discard(event_id)
        self.vanished.discard(event_id)
        return event

    def outcome(self, event_id: str, event_type: str, resource: str, *, now: int) -> bytes:
        """Return what the store says of a delivery: one delivery, one event, and nothing erased comes back."""
        if self.was_erased(event_type, resource, now=now):
            return b"erased"
        was_backfilled = event_type not in REPEATABLE and f"{BACKFILLED}{event_type}:{resource}" in self.events
        if event_id in self.events or was_backfilled:
            return b"duplicate"
        return b"accepted" if event_type in EVENT_TYPES else b"quarantined"

    def was_erased(self, event_type: str, resource: str, *, now: int, is_backfill: bool = False) -> bool:
        """Return True if a delivery must not bring back what was erased, for as long as settled events are kept."""
        whole = self.marks.get(("", resource))
        mark = self.marks.get((event_type, resource)) if is_backfill or event_type not in REPEATABLE else None
        return any(at is not None and now - at < RETENTION_MS for at in (whole, mark))

    def of_resource(self, resource: str) -> list[Event]:
        """Return the events of a resource."""
        return [event for event in self.events.values() if event.resource == resource]

    def latest(self, resource: str) -> int:
        """Return the latest state of a resource that any handler has seen: a worker tells earlier ones to be stale."""
        return max((event.number("latest") for event in self.of_resource(resource)), default=0)

    # --- workers

    def event_of(self, claim: Claim) -> tuple[Event | None, bool]:
        """Return the event, and True if no later claim, replay or erasure has taken it from this claim.

        A claim whose lease has run out stands as long as nobody else has the event: its worker may still settle.
        """
        event = self.events.get(claim.event_id)
        return event, event is not None and event.is_open and event.number("fence") == claim.fence

    def claim(self, event: Event, worker: str, *, now: int, is_alone: bool) -> None:
        """Let a worker have the event. Its fence follows the clock, and is above all earlier ones.

        Raises:
            AssertionError: the event may not be claimed now, or not beside other events.
        """
        assert event.is_open, f"{event} was claimed"
        assert event.due <= now + EARLY_MS, f"{event} was claimed before it is due"
        assert event.number("lease") <= now, f"{event} was claimed while another worker has it"
        others = [other for other in self.of_resource(event.resource) if other is not event]
        assert not any(other.holds(now) for other in others), f"{event} was claimed while another has its resource"
        assert is_alone or not event.is_poison_candidate, f"{event} was claimed beside other events"
        fence = max(now, event.number("received") + 1, event.number("fence") + 1)
        claim = {"fence": fence, "lapses": event.number("lapses") + 1, "holder": worker, "lease": now + LEASE_MS}
        event.fields |= {"state": State.ACCEPTED, **claim}
        for other in (event, *others):
            other.has_lock = other is event
            other.drop("kept")

    def may_run(self, event: Event, handler: str) -> None:
        """Raise AssertionError if this handler has ended, and was not replayed since.

        The first claim of a new record does not look for ends that the holder of a deleted record writes meanwhile.
        """
        has_ended = event.ended.get(handler) in {DONE, SKIPPED} and handler not in event.late
        assert not has_ended, f"{handler} starts again: {event}"

    def state_after(self, event: Event, attempt: Attempt, ends: Mapping[str, str]) -> State:
        """Return the state in which an attempt leaves the event."""
        if attempt.interruption:  # The worker hands it back.
            return State.ACCEPTED
        if event.number("killed") >= MOST_KILLED or attempt.claim.lapses >= MOST_LAPSES:
            return State.DEAD
        if decided := next((ENDS[how].state for how in ends.values() if ENDS[how].state), None):
            return decided
        if unfinished(attempt):
            return State.WAITING
        if attempt.missing or not attempt.wanted:
            return State.UNHANDLED
        ended = {**attempt.claim.ended, **attempt.statuses}.values()  # As this worker knows: others may add ends later.
        return State.DEAD if any(how.startswith(GAVE_UP) for how in ended) else State.DONE

    def settle(self, event: Event, attempt: Attempt, ends: Mapping[str, str], *, now: int) -> None:
        """Take in the settlement of the event's last claim. That claim has not lapsed.

        `ends`: handler, or `FETCH` → its end in the table `ENDS`. Other handlers were recorded before.
        """
        claim = attempt.claim
        for who in {*ends, *attempt.statuses}:
            event.end(who, ENDS[ends[who]] if who in ends else End(), spent=claim.attempt(who) - 1, now=now)
        for name in begun(attempt):
            event.fields.setdefault(PENDING + name, Schedule())
        if attempt.fetched:
            event.drop(PENDING + FETCH)
        state = event.fields["state"] = self.state_after(event, attempt, ends)
        if attempt.version and (attempt.durations or state is State.DONE):
            event.fields["latest"] = max(version[1] * 100 + version[0] for version in (attempt.version, claim.latest))
        names = [FETCH] if event.schedule(FETCH).due > now else unfinished(attempt)
        dues = [event.schedule(name).due for name in names if event.schedule(name).due > now]
        event.due = min(dues, default=0) if state is State.WAITING else 0
        event.wait = max(0, event.due - now)
        event.drop("holder", "lease", "kept")
        if state in OPEN:
            event.fields |= {"fence": claim.fence + 1, "lapses": claim.lapses}
            return
        event.fields["settled"] = max(now, claim.fence)
        event.drop("fence", "lapses", "killed", "deaths")
        if state is not State.UNHANDLED:
            event.drop(ONLY, *[name for name in event.fields if name.startswith(PROGRESS)])

    def record(self, event: Event, attempt: Attempt, ends: Mapping[str, str]) -> None:
        """Take in ends of handlers, from the last claim or an earlier one. After a replay earlier ones write nothing.

        Done replaces what is not done, and nothing else replaces an end. Pending handlers are remembered by name: the
        next worker may lack them.
        """
        claim = attempt.claim
        if claim.fence <= max(event.number("received"), event.number("replayed")):
            return
        for who, how in ends.items():
            end, before = ENDS[how], event.ended.get(who)
            if not end.ended or (before and (end.ended != DONE or before == DONE)):
                continue
            event.end(who, end, spent=claim.attempt(who) - 1)
            if round(claim.received_at.timestamp() * 1_000) != event.number("received"):
                event.late.add(who)
            for name in begun(attempt) if event.is_open else ():
                event.fields.setdefault(PENDING + name, Schedule())

    def bury(self, events: list[Event], how: str, *, now: int) -> None:
        """Take in the noted death of a worker that held these events.

        An event that the worker held alone has killed it, if the process ended by itself. If there were several, each
        of them may have, and no lapse is counted. The resource is kept for the event until its lease would have ended.
        """
        for event in events:
            if event.number("lease") > now and event.has_lock:
                event.fields["kept"] = event.fields["lease"]
            event.drop("holder", "lease")
            if len(events) > 1 and how != "host":
                event.fields |= {"deaths": event.number("deaths") + 1, "lapses": max(0, event.number("lapses") - 1)}
            elif how == "own":
                event.fields["killed"] = event.number("killed") + 1

    # --- operators

    def replay(self, event: Event, *, now: int, handler: str = "", resume: bool = False) -> None:
        """Take in that a settled event starts again, or one handler of it; or goes on where it stood.

        All handlers of a done event run again, otherwise those that gave up. A named handler of a done event runs
        alone.
        """
        since = max(now, event.number("settled"))
        if not resume:
            was_done = event.fields["state"] == State.DONE
            again = {name for name, how in event.ended.items() if how == GIVEN_UP or was_done}
            again = {handler} if handler else again
            to_run = again | event.pending
            event.drop("lapses", "killed", "deaths", ONLY, PENDING + FETCH, *[HANDLER + name for name in again])
            event.fields |= {PENDING + name: Schedule() for name in to_run}
            if handler and was_done:
                event.fields[ONLY] = handler
        event.drop("settled", "lease", "kept")
        event.fields |= {"state": State.ACCEPTED, "fence": since, "replayed": since}

    def hurry(self, event: Event) -> None:
        """Let a waiting event, and each handler of it, be due at once."""
        for name in event.fields.keys() & {PENDING + who for who in event.pending | {FETCH}}:
            event.fields[name] = Schedule(event.fields[name].attempts)
        event.due = 0

    def erase(self, event: Event, *, now: int) -> None:
        """Forget the event."""
        del self.events[event.id]
        self.erased.add(event.id)
        self.marks[event.type, event.resource] = now

    def lose(self, event: Event) -> None:
        """Take in that somebody has deleted a record. The sweeper misses it, unless it was being erased."""
        del self.events[event.id]
        self.without_record.add(event.id)
        if event.is_open and (event.type, event.resource) not in self.half_erased:
            self.vanished.add(event.id)
