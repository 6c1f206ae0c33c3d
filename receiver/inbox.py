"""Store authenticated deliveries before they are acknowledged, many in one round trip to Redis.

If the script fails, the whole group is refused; events that it has written are then duplicates. A damaged record
refuses its own delivery. A request whose client has gone is still written with its group.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple

import structlog

from credhook.events import Event, event_ids
from credhook.group_commit import GroupCommit
from credhook.receiver import metrics
from credhook.store.connection import REDIS_TIMEOUT, Command, RedisConnection
from credhook.store.errors import STORE_ERRORS, ConnectionLost, StoreRefusal, hint, is_denied
from credhook.store.health import SharedExamination, ask, promises, replicas_wanted
from credhook.store.job import accept_arguments
from credhook.store.store import AsyncStore
from credhook.tracing import trace_id

log = structlog.get_logger("credhook.receiver")

#: Events in one script. It blocks Redis for about 5 ms then, and its arguments stay below Lua's limit.
MAX_GROUP: Final = 500
#: Events in one log line: collectors of logs cut long lines.
_MAX_LOGGED: Final = 50
#: Seconds after which Redis is asked again if it keeps what it is given: its configuration may have changed.
_FACTS_SECONDS: Final = 10.0


class StoreUnavailable(Exception):
    """Redis did not confirm that the event is written. The sender is asked to try again.

    Attributes:
        hint: what the operator should do, in addition to the message.
    """

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


class Outcome(Enum):
    """What became of a delivery. All but UNREADABLE are acknowledged. The values are the script's replies."""

    ACCEPTED = "accepted"
    #: Seen before: nothing was created.
    DUPLICATE = "duplicate"
    #: Seen before, but with another type or resource: kept aside.
    CONFLICT = "conflict"
    #: Of an unknown type: kept for replay. Or its id cannot be fetched.
    QUARANTINED = "quarantined"
    #: The key of its record is not a hash.
    UNREADABLE = "unreadable"


_OUTCOMES: Final = {outcome.value.encode(): outcome for outcome in Outcome}


class Delivery(NamedTuple):
    """An authenticated event, its webhook-id, and its trace if deliveries are traced."""

    id: str
    event: Event
    trace: str | None = None


class Inbox:
    """Writes events to Redis, one group at a time."""

    def __init__(self, store: AsyncStore, *, durability: str = "standard") -> None:
        """`durability`: the value of `CREDHOOK_DURABILITY`."""
        self._store = store
        self._durability, self._replicas = durability, replicas_wanted(durability)
        self._connection = RedisConnection(store.redis)
        #: Sent after each group if a reply of this Redis does not mean that the group is kept.
        self._confirmation: list[Command] = []
        self._facts_until = 0.0
        #: Checks whether events would be kept now.
        self.examine = SharedExamination(store, durability=durability)
        self._commit = GroupCommit[Delivery, Outcome](self._write_group, limit=MAX_GROUP)
        #: Deliveries written since the start, and when the last was, in monotonic seconds.
        self.acknowledged, self.last_acknowledged = 0, 0.0
        #: Conflicts since the start, and when the last came, in monotonic seconds.
        self.conflicts, self.last_conflict = 0, 0.0
        #: Why the last group was refused, "" if it was written: `problem; remedy`.
        #: And since when, in monotonic seconds.
        self.unavailable, self._unavailable_since = "", 0.0
        #: True if Redis denied a command to the last group. No check of Redis shows when that is over.
        self.denied = False

    async def accept(self, delivery_id: str, event: Event, trace: str | None = None) -> Outcome:
        """Write the event, once for all deliveries with that id.

        `trace`: what the record says of its trace. Give it for all events of a process, or for none.

        Raises:
            StoreUnavailable: it may or may not have been written; the same delivery may be accepted again safely.
        """
        return await self._commit.write(Delivery(delivery_id, event, trace))

    async def aclose(self) -> None:
        """Write the waiting events, then close the connections."""
        await self._commit.drain()
        await self._connection.aclose()
        await self._store.redis.aclose()

    async def _write_group(self, group: list[Delivery]) -> Sequence[Outcome | StoreUnavailable]:
        metrics.WAITING.set(len(group) + self._commit.waiting)
        try:
            outcomes = await self._write(group)
        except Exception as error:  # noqa: BLE001  A defect must reach all waiting requests, too.
            refusal = self._begin_outage(error)
            # The next groups would only run into the same time-out.
            self._commit.refuse_waiting(refusal)
            return [refusal] * len(group)
        finally:
            metrics.WAITING.set(self._commit.waiting)
        damaged_records = outcomes.count(Outcome.UNREADABLE)
        self._report(group, outcomes, kept=len(group) - damaged_records)
        if not damaged_records:
            return outcomes
        refusal = StoreUnavailable("the key of its record holds something else")
        return [refusal if outcome is Outcome.UNREADABLE else outcome for outcome in outcomes]

    async def _write(self, group: list[Delivery]) -> list[Outcome]:
        metrics.GROUP_SIZE.observe(len(group))
        began = time.monotonic()
        try:
            queue, retention = self._store.queue, self._store.retention
            arguments = accept_arguments(group, queue=queue, retention=retention, now=datetime.now(UTC))
            try:
                replies = await self._store.run_through(self._send, "accept", arguments)
            except ConnectionLost:
                # If the script has run, it now says `duplicate`.
                replies = await self._store.run_through(self._send, "accept", arguments)
        finally:
            metrics.STORE_SECONDS.observe(time.monotonic() - began)
        if self._replicas and (reached := replies[-1]) < self._replicas:
            await self._connection.aclose()  # Perhaps another one is the master by now: Sentinel is asked again.
            raise StoreUnavailable(f"{reached} of {self._replicas} replicas have the event in time")
        if not self._replicas and self._confirmation and replies[-1][0] < 1:
            raise StoreUnavailable("Redis has not fsynced in time")
        return [_OUTCOMES[reply] for reply in replies[0]]

    async def _send(self, *command: Any) -> list[Any]:
        """Return the replies to the command and to the confirmation."""
        if not self._connection.is_open or time.monotonic() > self._facts_until:
            await self._prepare()
        return await self._connection.send(command, *self._confirmation)

    async def _prepare(self) -> None:
        """Connect, and check that this Redis keeps what it is given.

        Raises:
            StoreUnavailable: this Redis would not keep events.
        """
        if not self._connection.is_open:
            await self._connection.open()
        facts = await ask(self._store)
        for check in promises(facts, durability=self._durability):
            if check.failed:
                raise StoreUnavailable(check.remedy)
        milliseconds = int(REDIS_TIMEOUT * 900)  # A little less than we wait for an answer.
        wait: Command = ()
        if self._replicas:
            wait = ("WAIT", self._replicas, milliseconds)
        elif self._durability == "strict" and not facts.fsyncs_each_write:
            wait = ("WAITAOF", 1, 0, milliseconds)
        # WAIT and WAITAOF cover what their own connection has written. A group of duplicates writes nothing, and a
        # broken connection may have written these events: after a SET, WAIT and WAITAOF cover that, too.
        self._confirmation = [("SET", self._store.keys.synced, 1, "EX", 60), wait] if wait else []
        self._facts_until = time.monotonic() + _FACTS_SECONDS

    def end_outage(self) -> None:
        """Log the end of an outage, if there is one: Redis has answered as it should."""
        if self.unavailable:
            log.info("redis_recovered", seconds=round(time.monotonic() - self._unavailable_since, 1))
            self.unavailable, self.denied = "", False

    def _begin_outage(self, error: Exception) -> StoreUnavailable:
        if not isinstance(error, (*STORE_ERRORS, StoreUnavailable)):
            log.error("inbox_failed", exc_info=error)
        refusal = error if isinstance(error, StoreUnavailable) else StoreUnavailable(_reason(error), hint(error))
        self._unavailable_since = self._unavailable_since if self.unavailable else time.monotonic()
        self.unavailable = "; ".join(filter(None, (str(refusal), refusal.hint)))
        self.denied = is_denied(error)
        return refusal

    def _report(self, group: list[Delivery], outcomes: list[Outcome], *, kept: int) -> None:
        now = time.monotonic()
        if kept:
            self.acknowledged, self.last_acknowledged = self.acknowledged + kept, now
        self.end_outage()
        for outcome in set(outcomes):
            deliveries = [delivery for delivery, each in zip(group, outcomes, strict=True) if each is outcome]
            metrics.DELIVERIES.add(outcome.value, by=len(deliveries))
            if outcome is Outcome.CONFLICT:
                self.conflicts, self.last_conflict = self.conflicts + len(deliveries), now
            _log(outcome, deliveries)


def _reason(error: Exception) -> str:
    """Return the error's class, and the first word of what Redis said: the rest may repeat a value."""
    word = f" {str(error).partition(' ')[0][:32]}" if isinstance(error, StoreRefusal) else ""
    return type(error).__name__ + word


def _log(outcome: Outcome, deliveries: list[Delivery]) -> None:
    """Log one line for many deliveries that went as expected, and one for each other delivery."""
    ids = [_ids(delivery) for delivery in deliveries]
    if outcome in {Outcome.ACCEPTED, Outcome.DUPLICATE}:
        for first in range(0, len(ids), _MAX_LOGGED):
            log.info("events_" + outcome.value, events=ids[first : first + _MAX_LOGGED])
    elif outcome is Outcome.UNREADABLE:
        for each in ids:
            log.error("event_unreadable", **each, hint="repair or delete the key of its record, which is no hash")
    else:
        for each in ids:
            log.warning("event_" + outcome.value, **each)


def _ids(delivery: Delivery) -> dict[str, str]:
    event = delivery.event
    ids = event_ids(delivery.id, event.type, event.resource_id)
    if delivery.trace is not None and (trace := trace_id(delivery.trace)):
        ids["trace_id"] = trace
    return ids
