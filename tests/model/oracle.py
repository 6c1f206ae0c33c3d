"""What the store promises, as plain data: which events it has, how their handlers have ended, and who works on them.

An event is acknowledged once its delivery was answered, or once its record is there. From then on it is open until a
settlement or an erasure. Each handler of an event has its own number of attempts and its own end. The holder of an
event is the claim with the highest fence whose lease runs. Only the holder settles. A worker that has lost its claim
writes the ends of its handlers and nothing else, and not even these if the event was replayed or erased since.
"""

from dataclasses import dataclass, field
from typing import Final

from credhook.events import REPEATABLE
from credhook.store import BACKFILLED, FETCH, State

#: Seconds that the model's store remembers a settled event.
RETENTION_SECONDS: Final = 86_400

#: States of events that a worker may still take.
OPEN: Final = frozenset({State.ACCEPTED, State.WAITING})
DONE: Final = "done"
SKIPPED: Final = "skipped"
GIVEN_UP: Final = "given up"
#: Ms that RQ's scheduler may be early.
EARLY_MS: Final = 2_000
#: Deaths of workers with several events, after which a process takes an event alone.
COMMON_DEATHS: Final = 2


@dataclass
class Event:
    """An acknowledged event.

    Attributes:
        since: when it was received or last replayed, in ms of the model. Earlier claims write nothing.
        state: as the record should have it.
        ends: handler → how it has ended.
        attempts: handler, or `fetch` → attempts that failures and ends have spent.
        awaited: handlers that have begun, or were replayed: the event is not done without them.
        progress: handler → what it has saved, until the event has ended.
        fence: of its last claim or replay.
        worker: that made the last claim.
        lapses: claims that no settlement has ended, the running claim among them. None: a fault has hidden the number.
        killed: workers that died with nothing else under way.
        deaths: workers that died with this event among others.
        latest: `updatedAt` and rank of the latest state of the resource that its handlers have seen.
        wait: ms that a waiting event was told to wait.
        due: until when it waits, in ms of the model; 0 if it was hurried, or a clock has stepped since.
    """

    id: str
    type: str
    resource: str
    since: int
    state: State = State.ACCEPTED
    ends: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    progress: dict[str, str] = field(default_factory=dict)
    fence: int = 0
    worker: str = ""
    lapses: int | None = 0
    killed: int = 0
    deaths: int = 0
    latest: tuple[int, int] = (0, 0)
    wait: int = 0
    due: int = 0

    @property
    def is_open(self) -> bool:
        """Return True if a worker may take it."""
        return self.state in OPEN

    @property
    def is_poison_candidate(self) -> bool:
        """Return True if only a process that takes nothing else may take it."""
        return self.killed > 0 or self.deaths >= COMMON_DEATHS

    def close(self) -> None:
        """Forget what only an open event has."""
        self.lapses, self.killed, self.deaths = 0, 0, 0


@dataclass
class Held:
    """A claim as its worker sees it.

    Attributes:
        fence: of the claim; 0 if its worker has died, and the resource is kept for the event until its lease would end.
        until: when its lease ends, in ms of the model.
    """

    event: str
    resource: str
    worker: str
    fence: int
    until: int


class Oracle:
    """What should be in the store."""

    def __init__(self) -> None:
        self.events: dict[str, Event] = {}
        self.held: list[Held] = []
        #: Ids of erased events that did not come again.
        self.erased: set[str] = set()
        #: Type and resource of an erased event, or "" and an erased resource → when it was erased, in ms of the model.
        self.marks: dict[tuple[str, str], int] = {}
        #: The same of events whose erasure was cut: the mark may be there, and the event, too.
        self.half_erased: set[tuple[str, str]] = set()
        #: Events whose records somebody has deleted, and those of them that were open.
        self.deleted: set[str] = set()
        self.vanished: set[str] = set()

    # --- deliveries

    def accept(self, event_id: str, event_type: str, resource: str, *, now: int) -> None:
        """Take in a delivery that was stored. A repetition changes nothing: one delivery, one event."""
        if event_id not in self.events:
            event = self.events[event_id] = Event(event_id, event_type, resource, since=now)
            event.lapses = None if event_id in self.deleted else 0  # Its lock may have outlived the record.
            self.erased.discard(event_id)
            self.vanished.discard(event_id)

    def was_erased(self, event_type: str, resource: str, *, now: int, is_backfill: bool = False) -> bool:
        """Return True if a delivery must not bring back what was erased, for as long as settled events are kept."""
        whole = self.marks.get(("", resource))
        at = self.marks.get((event_type, resource)) if is_backfill or event_type not in REPEATABLE else None
        return any(mark is not None and now - mark < 1_000 * RETENTION_SECONDS for mark in (whole, at))

    def was_backfilled(self, event_type: str, resource: str) -> bool:
        """Return True if a backfill has accepted what a delivery of this type brings late."""
        return event_type not in REPEATABLE and f"{BACKFILLED}{event_type}:{resource}" in self.events

    def of_resource(self, resource: str) -> list[Event]:
        """Return the events of a resource."""
        return [event for event in self.events.values() if event.resource == resource]

    # --- workers

    def claim(self, held: Held, *, lapses: int, alone: bool, now: int) -> None:
        """Take in a claim, and say whether it may be.

        Raises:
            AssertionError: the event is not open, or another worker holds the resource, or the fence is not higher, or
                the event may have killed a worker and this worker has other events, or its lapses are miscounted.
        """
        event = self.events[held.event]
        assert event.is_open, f"{held.event} was claimed although it is {event.state}"
        assert event.due <= now + EARLY_MS, f"{event} was claimed before it is due"
        for other in self.held:
            is_kept_for_it = other.fence == 0 and other.event == held.event
            if other.resource == held.resource and other.until > now and not is_kept_for_it:
                raise AssertionError(f"{held} was claimed while {other} stands")
        assert held.fence > event.fence, f"the fence of {held} is not above {event.fence}"
        assert alone or not event.is_poison_candidate, f"{event} was claimed beside other events"
        assert event.lapses in {None, lapses}, f"{lapses} lapses of {event}"
        self.held = [other for other in self.held if other.event != held.event or other.fence]
        self.held.append(held)
        event.state = State.ACCEPTED
        event.fence, event.worker, event.lapses = held.fence, held.worker, lapses + 1

    def latest(self, resource: str) -> tuple[int, int]:
        """Return the latest state of a resource that any handler has seen: a worker tells earlier ones to be stale."""
        return max((event.latest for event in self.of_resource(resource)), default=(0, 0))

    def may_run(self, event_id: str, handler: str) -> None:
        """Say whether this handler may start.

        Raises:
            AssertionError: it has ended, and was not replayed since.
        """
        ended = self.events[event_id].ends.get(handler) if event_id in self.events else None
        assert ended not in {DONE, SKIPPED}, f"{handler} of {event_id} starts again, though it is {ended}"

    def end(self, event_id: str, handler: str, how: str) -> None:
        """Take in the end of a handler. Done stays done."""
        event = self.events[event_id]
        if event.ends.get(handler) not in {DONE, SKIPPED}:
            event.ends[handler] = how

    def spend(self, event_id: str, who: str) -> None:
        """Count an attempt of a handler, or of the fetch."""
        attempts = self.events[event_id].attempts
        attempts[who] = attempts.get(who, 0) + 1

    def settle(self, event_id: str, state: State, *, lapses: int) -> None:
        """Take in a settlement. This claim has not lapsed.

        Raises:
            AssertionError: the event is done although a handler that has begun has not ended.
        """
        event = self.events[event_id]
        event.state = state
        if event.lapses is not None:
            event.lapses = lapses
        if not event.is_open:
            event.close()
            missing = event.awaited - event.ends.keys()
            assert state is not State.DONE or not missing, f"{event} is done without {missing}"
        if not event.is_open and state is not State.UNHANDLED:
            event.progress.clear()
        self.held = [held for held in self.held if held.event != event_id]

    def bury(self, worker: str, events: list[str], how: str, *, ends: dict[str, int], now: int) -> None:
        """Take in the noted death of a worker that held these events. `ends`: event → end of its lease.

        An event that the worker held alone has killed it, if the process ended by itself. If there were several, each
        of them may have, and no lapse is counted. The resource is kept for the event until its lease would have ended.
        """
        for event in map(self.events.__getitem__, events):
            assert event.worker == worker, f"{worker} died, and {event} was taken from {event.worker}"
            if len(events) > 1 and how != "host":
                event.deaths += 1
                event.lapses = event.lapses and event.lapses - 1
            elif how == "own":
                event.killed += 1
            self.held = [held for held in self.held if held.event != event.id]
            if ends[event.id] > now:
                self.held.append(Held(event.id, event.resource, "", 0, ends[event.id]))
        lost = [held for held in self.held if held.worker == worker and held.until > now]
        assert not lost, f"{worker} died, and kept {lost}"

    # --- operators

    def replay(self, event_id: str, fence: int, *, handler: str = "", resume: bool = False) -> None:
        """Take in that a settled event starts again, or one handler of it; or goes on where it stood."""
        event = self.events[event_id]
        if not resume:
            again = {name for name, how in event.ends.items() if how == GIVEN_UP or event.state is State.DONE}
            again = {handler} if handler else again
            event.ends = {name: how for name, how in event.ends.items() if name not in again}
            event.awaited |= again
            event.attempts = {name: spent for name, spent in event.attempts.items() if name in event.ends}
        event.state, event.fence, event.since = State.ACCEPTED, fence, fence

    def erase(self, event_id: str, *, now: int) -> None:
        """Forget the event."""
        if event := self.events.pop(event_id, None):
            self.erased.add(event_id)
            self.marks[event.type, event.resource] = now
        self.held = [held for held in self.held if held.event != event_id]

    def lose(self, event_id: str) -> None:
        """Take in that somebody has deleted the record of an event."""
        event = self.events.pop(event_id)
        self.deleted.add(event_id)
        if event.is_open:
            self.vanished.add(event_id)
        self.held = [held for held in self.held if held.event != event_id]

    def lapse(self, *, now: int) -> None:
        """Let go of claims whose lease has run out. They may be taken from their holders for good."""
        self.held = [held for held in self.held if held.until > now]


def due_of(schedules: dict[str, int], unfinished: list[str], now: int) -> int | None:
    """Return when an event should be due: its fetch if that has to wait, or else the earliest of its handlers."""
    names = [FETCH] if schedules.get(FETCH, 0) > now else unfinished
    return min((schedules[name] for name in names if schedules.get(name, 0) > now), default=None)
