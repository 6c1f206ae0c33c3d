"""Store authenticated deliveries before they are acknowledged, many in one round trip to Redis.

If the script fails, the whole group is refused; events that it has written are then duplicates. A damaged record
refuses its own delivery. A request whose client has gone is still written with its group.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple

import structlog

from credhook.events import Event, event_ids
from credhook.group_commit import GroupCommit
from credhook.receiver import metrics
from credhook.store.bulk import batched
from credhook.store.connection import REDIS_TIMEOUT, Command, RedisConnection
from credhook.store.errors import STORE_ERRORS, ConnectionLost, StoreRefusal, hint, is_denied
from credhook.store.health import Facts, SharedExamination, ask, promises, replicas_wanted
from credhook.store.job import accept_arguments
from credhook.store.store import AsyncStore
from credhook.tracing import trace_id

log = structlog.get_logger("credhook.receiver")

#: Events in one script. So many block Redis for about 5 ms, and their arguments stay below Lua's limit.
MAX_GROUP: Final = 500
#: Events in one log line, since collectors of logs cut long lines.
_MAX_LOGGED: Final = 50
#: Seconds after which the configuration of Redis is checked again, since it may have changed.
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
    """The result of a delivery. All but UNREADABLE are acknowledged. The values are the script's replies."""

    ACCEPTED = "accepted"
    #: Seen before: nothing was created.
    DUPLICATE = "duplicate"
    #: Seen before, but with another type or resource: kept aside.
    CONFLICT = "conflict"
    #: Kept for replay, since its type is unknown or its id cannot be fetched.
    QUARANTINED = "quarantined"
    #: It was erased, or its resource was: nothing is written.
    ERASED = "erased"
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
        #: Sent after each group if the script's reply alone does not mean that this Redis keeps the group.
        self._confirmation: list[Command] = []
        self._facts_until = 0.0
        #: Checks whether events would be kept now.
        self.examine = SharedExamination(self._ask, durability=durability)
        #: Held while the connection is in use.
        self._in_use = asyncio.Lock()
        self._commit = GroupCommit[Delivery, Outcome](self._write_group, limit=MAX_GROUP)
        #: Deliveries written since the start.
        self.acknowledged = 0
        #: When the last delivery was written, in monotonic seconds.
        self.last_acknowledged = 0.0
        #: Conflicts since the start.
        self.conflicts = 0
        #: When the last conflict came, in monotonic seconds.
        self.last_conflict = 0.0
        #: Why the last group was refused, as `problem; remedy`; "" if it was written.
        self.unavailable = ""
        #: When the first group of this outage was refused, in monotonic seconds.
        self._unavailable_since = 0.0
        #: True if access rules denied a command of the last refused group. No check of Redis shows when that ends.
        self.denied = False

    async def accept(self, delivery_id: str, event: Event, trace: str | None = None) -> Outcome:
        """Write the event, once for all deliveries with that id.

        `trace`: the text about its trace that the record keeps. Give it for all events of a process, or for none.

        Raises:
            StoreUnavailable: the event may or may not have been written. The delivery may be accepted again safely.
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
        self._report(group, outcomes, written=len(group) - damaged_records)
        if not damaged_records:
            return outcomes
        refusal = StoreUnavailable("the key of the event's record is not a hash")
        return [refusal if outcome is Outcome.UNREADABLE else outcome for outcome in outcomes]

    async def _write(self, group: list[Delivery]) -> list[Outcome]:
        metrics.GROUP_SIZE.observe(len(group))
        began = time.monotonic()
        try:
            queue, retention = self._store.queue, self._store.retention
            arguments = accept_arguments(group, queue=queue, retention=retention, now=datetime.now(UTC))
            # The whole way: Sentinels, connecting, login, the script and its reply.
            async with asyncio.timeout(REDIS_TIMEOUT), self._in_use:
                try:
                    replies = await self._store.run_through(self._send, "accept", arguments)
                except ConnectionLost:
                    # If the script has run, the second run answers `duplicate`.
                    replies = await self._store.run_through(self._send, "accept", arguments)
        finally:
            metrics.STORE_SECONDS.observe(time.monotonic() - began)
        if self._replicas and (reached := replies[-1]) < self._replicas:
            await self._connection.aclose()  # Another server may be the master by now: ask Sentinel again.
            raise StoreUnavailable(f"{reached} of {self._replicas} replicas have the event in time")
        if not self._replicas and self._confirmation and replies[-1][0] < 1:
            raise StoreUnavailable("Redis has not fsynced in time")
        return [_OUTCOMES[reply] for reply in replies[0]]

    async def _send(self, *command: Any) -> list[Any]:
        """Return the replies to the command and to the confirmation. Check before that this Redis keeps events."""
        if not self._connection.is_open or time.monotonic() > self._facts_until:
            _, reason = await self._connect()
            if reason:
                raise StoreUnavailable(reason)
        return await self._connection.send(command, *self._confirmation)

    async def _connect(self) -> tuple[Facts, str]:
        """Connect if need be, and return what Redis says about itself, and why it would not keep events, or ""."""
        if not self._connection.is_open:
            await self._connection.open()
        facts = await ask(self._store, self._connection)
        if reason := self._adopt(facts):
            await self._connection.aclose()  # Another server may be the master by now: ask Sentinel again.
        return facts, reason

    def _adopt(self, facts: Facts) -> str:
        """Take in what Redis says about itself. Return why it would not keep events, or ""."""
        for check in promises(facts, durability=self._durability):
            if check.failed:
                self._facts_until = 0.0
                return check.remedy
        milliseconds = int(REDIS_TIMEOUT * 800)  # Less than we wait for the whole group.
        wait: Command = ()
        if self._replicas:
            wait = ("WAIT", self._replicas, milliseconds)
        elif self._durability == "strict" and not facts.fsyncs_each_write:
            wait = ("WAITAOF", 1, 0, milliseconds)
        # WAIT and WAITAOF cover the writes up to the last write of their own connection. A group of duplicates writes
        # nothing, and the broken connection before may have written these events. The SET makes them covered, too.
        self._confirmation = [("SET", self._store.keys.synced, 1, "EX", 60), wait] if wait else []
        self._facts_until = time.monotonic() + _FACTS_SECONDS
        return ""

    async def _ask(self) -> Facts:
        """Ask over the connection that deliveries take. So it is never idle for so long that a box forgets it."""
        async with asyncio.timeout(REDIS_TIMEOUT), self._in_use:
            facts, _ = await self._connect()
            return facts

    def end_outage(self) -> None:
        """Log the end of the outage, if there was one."""
        if self.unavailable:
            log.info("redis_recovered", seconds=round(time.monotonic() - self._unavailable_since, 1))
            self.unavailable = ""

    def _begin_outage(self, error: Exception) -> StoreUnavailable:
        if not isinstance(error, (*STORE_ERRORS, StoreUnavailable)):
            log.error("inbox_failed", exc_info=error)
        refusal = error if isinstance(error, StoreUnavailable) else StoreUnavailable(_reason(error), hint(error))
        self._unavailable_since = self._unavailable_since if self.unavailable else time.monotonic()
        self.unavailable = "; ".join(filter(None, (str(refusal), refusal.hint)))
        self.denied = is_denied(error)
        return refusal

    def _report(self, group: list[Delivery], outcomes: list[Outcome], *, written: int) -> None:
        now = time.monotonic()
        if written:
            self.acknowledged, self.last_acknowledged = self.acknowledged + written, now
        self.end_outage()
        for outcome in set(outcomes):
            deliveries = [delivery for delivery, result in zip(group, outcomes, strict=True) if result is outcome]
            metrics.DELIVERIES.add(outcome.value, by=len(deliveries))
            if outcome is Outcome.CONFLICT:
                self.conflicts, self.last_conflict = self.conflicts + len(deliveries), now
            _log(outcome, deliveries)


def _reason(error: Exception) -> str:
    """Return the error's class and the first word of Redis's message. The rest of the message may repeat a value."""
    word = f" {str(error).partition(' ')[0][:32]}" if isinstance(error, StoreRefusal) else ""
    return type(error).__name__ + word


def _log(outcome: Outcome, deliveries: list[Delivery]) -> None:
    """Log one line for many deliveries that went as expected, and one for each other delivery."""
    ids = [_log_fields(delivery) for delivery in deliveries]
    if outcome in {Outcome.ACCEPTED, Outcome.DUPLICATE}:
        for page in batched(ids, _MAX_LOGGED):
            log.info("events_" + outcome.value, events=page)
    elif outcome is Outcome.ERASED:
        log.info("events_erased", events=len(deliveries))  # Without the ids that somebody wanted to be gone.
    elif outcome is Outcome.UNREADABLE:
        for fields in ids:
            log.error("event_unreadable", **fields, hint="repair or delete the key of its record, which is not a hash")
    else:
        for fields in ids:
            log.warning("event_" + outcome.value, **fields)


def _log_fields(delivery: Delivery) -> dict[str, str]:
    event = delivery.event
    ids = event_ids(delivery.id, event.type, event.resource_id)
    if delivery.trace is not None and (trace := trace_id(delivery.trace)):
        ids["trace_id"] = trace
    return ids
