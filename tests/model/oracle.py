"""What the store promises, as plain data: which events it has, how their handlers have ended, and who works on them.

An event is acknowledged once its delivery was answered, or once its record is there. From then on it is open until a
settlement or an erasure. Each handler of an event has its own number of attempts and its own end. The holder of an
event is the claim with the highest fence whose lease runs.
"""

from dataclasses import dataclass, field
from typing import Final

from credhook.events import REPEATABLE
from credhook.store import State

#: Seconds that the model's store remembers a settled event.
RETENTION_SECONDS: Final = 86_400

#: States of events that a worker may still take.
OPEN: Final = frozenset({State.ACCEPTED, State.WAITING})
DONE: Final = "done"
SKIPPED: Final = "skipped"
GIVEN_UP: Final = "given up"


@dataclass
class Event:
    """An acknowledged event.

    Attributes:
        state: as the record should have it.
        ends: handler → how it has ended.
        attempts: handler, or `fetch` → attempts that failures and ends have spent.
        fence: of its last claim or replay.
    """

    id: str
    type: str
    resource: str
    state: State = State.ACCEPTED
    ends: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    fence: int = 0

    @property
    def is_open(self) -> bool:
        """Return True if a worker may take it."""
        return self.state in OPEN


@dataclass
class Held:
    """A claim as its worker sees it.

    Attributes:
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
        #: Type and resource of an erased event → when it was erased, in ms of the model.
        self.marks: dict[tuple[str, str], int] = {}

    def accept(self, event_id: str, event_type: str, resource: str) -> None:
        """Take in a delivery that was stored. A repetition changes nothing: one delivery, one event."""
        if event_id not in self.events:
            self.events[event_id] = Event(event_id, event_type, resource)
            self.erased.discard(event_id)

    def claim(self, held: Held, *, now: int) -> None:
        """Take in a claim, and say whether it may be.

        Raises:
            AssertionError: the event is not open, or another worker holds the resource, or the fence is not higher.
        """
        event = self.events[held.event]
        assert event.is_open, f"{held.event} was claimed although it is {event.state}"
        for other in self.held:
            if other.resource == held.resource and other.until > now:
                raise AssertionError(f"{held} was claimed while {other} stands")
        assert held.fence > event.fence, f"the fence of {held} is not above {event.fence}"
        event.fence = held.fence
        self.held.append(held)

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

    def was_erased(self, event_type: str, resource: str, *, now: int) -> bool:
        """Return True if a delivery must not bring back what was erased, for as long as settled events are kept."""
        at = self.marks.get((event_type, resource))
        return at is not None and event_type not in REPEATABLE and now - at < 1_000 * RETENTION_SECONDS

    def erase(self, event_id: str, *, now: int) -> None:
        """Forget the event."""
        if event := self.events.pop(event_id, None):
            self.erased.add(event_id)
            self.marks[event.type, event.resource] = now
        self.held = [held for held in self.held if held.event != event_id]
