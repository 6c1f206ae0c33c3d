"""Accepting events, for many requests in one round trip.

While one group is on its way to Redis, arriving requests wait for the next one: the group commit of databases. A group
is written whole or not at all, and a request whose client went away is still written with its group.
"""

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import structlog
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, NoScriptError, RedisError, ResponseError  # noqa: A004  Redis's own.

from credhook.events import Event
from credhook.receiver.inbox import metrics, script
from credhook.receiver.inbox.delivery_log import DeliveryLog
from credhook.receiver.inbox.line import Line
from credhook.receiver.inbox.script import Delivery, Outcome
from credhook.store.health import Check, ask, examine, promises
from credhook.store.hints import hint

log = structlog.get_logger("credhook.receiver")

#: The most events that one script writes: it blocks Redis for about 5 ms then, and its arguments stay below Lua's
#: limit.
MAX_GROUP: Final = 500

#: Deliveries that are answered within 0.2 ms.
_FEW: Final = 16

#: Seconds after which Redis is asked again whether it keeps what it is given: somebody may have changed that meanwhile.
_FACTS_LAST: Final = 10.0
#: Seconds that an answer about readiness lasts: the question is public, and each answer costs Redis a little.
_CHECKS_LAST: Final = 1.0


class StoreUnavailable(Exception):
    """Redis did not confirm that the event is written; the sender is asked to come again.

    Attributes:
        hint: what the operator should do about it, beside what the message says already.
    """

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


class _Waiting(NamedTuple):
    delivery: Delivery
    outcome: "asyncio.Future[Outcome]"


class Inbox:
    """Where authenticated events are written down before they are acknowledged.

    The way of a group is one of callbacks: a task would take a turn of the event loop between Redis's answer and the
    next group, up to 0.3 ms at half load, measured, in which nothing is on its way. Whatever is
    not as usual (no connection yet, no script, a question about Redis itself) is a task, `_write_carefully`.
    """

    def __init__(self, redis: Redis, *, queue: str, retention: int, strict: bool = False) -> None:
        """Write to `redis`; remember settled and quarantined events for `retention` seconds.

        With `strict`, an event counts as written only once it has been fsynced.
        """
        self._redis = redis
        self._queue = queue
        self._retention = retention
        self._strict = strict
        self._line: Line | None = None
        #: Whether this Redis replies before it has fsynced, so that it must be asked when it has.
        self._must_wait = False
        self._facts_until = 0.0
        self._checks: tuple[Check, ...] = ()
        self._checked_until = 0.0
        self._waiting: list[_Waiting] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._careful: asyncio.Task[None] | None = None
        self._report = DeliveryLog()
        self._acknowledged, self._last = 0, 0.0

    @property
    def acknowledged(self) -> tuple[int, float | None]:
        """How many deliveries were written since the start, and when the last, in monotonic seconds."""
        return self._acknowledged, self._last if self._acknowledged else None

    async def accept(self, delivery_id: str, event: Event, trace: str | None = None) -> Outcome:
        """Write the event down, once for all deliveries with that id.

        `trace`: of which trace the event is from now on, as the ledger has it; for all events of a process, or none.

        Raises:
            StoreUnavailable: it may or may not have been written; the same delivery may be accepted again safely.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Outcome] = loop.create_future()
        self._waiting.append(_Waiting(Delivery(delivery_id, event, trace), outcome))
        if self._idle.is_set():
            self._idle.clear()
            loop.call_soon(self._write, [])  # What else arrives in this turn of the loop comes along.
        return await outcome

    async def examine(self) -> tuple[Check, ...]:
        """Whether events would be kept just now, one check at a time; asked anew once a second at most."""
        if time.monotonic() > self._checked_until:
            self._checks = await examine(self._redis, strict=self._strict)
            self._checked_until = time.monotonic() + _CHECKS_LAST
        return self._checks

    async def aclose(self) -> None:
        """Finish what is waiting, then let go of the connections."""
        await self._idle.wait()
        self._report.tell()
        if self._line:
            self._line.close()
        await self._redis.aclose()

    def _take(self) -> list[_Waiting]:
        group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
        return group

    def _write(self, group: list[_Waiting]) -> None:
        """Write the group, or if it is empty the next one."""
        group = group or self._take()
        if not group:
            self._idle.set()
            return
        metrics.GROUP_SIZE.observe(len(group))
        began = time.monotonic()
        if self._line is None or not self._line.is_open or began > self._facts_until:
            self._careful = asyncio.create_task(self._write_carefully(group, began))
            return
        try:
            command = self._command(group)
        except Exception as error:  # noqa: BLE001  A defect of ours; whoever waits must hear of it, whatever it is.
            self._conclude(group, began, error)
        else:
            self._line.ask(command, partial(self._written, group, began), replies=self._replies)

    def _written(self, group: list[_Waiting], began: float, replies: list[Any] | Exception) -> None:
        if isinstance(replies, ConnectionError | NoScriptError):
            self._careful = asyncio.create_task(self._write_carefully(group, began))
            return
        self._conclude(group, began, replies)

    async def _write_carefully(self, group: list[_Waiting], began: float) -> None:
        """Write a group when things may not be as they were.

        After a connection that broke it tries again: the reply may have been lost after the script had run, and to run
        it again does no harm, since it then finds its own records and says `duplicate`.
        """
        try:
            try:
                replies: list[Any] | Exception = await self._exchange(group)
            except ConnectionError:
                replies = await self._exchange(group)
        except Exception as error:  # noqa: BLE001  Likewise.
            replies = error
        self._conclude(group, began, replies)

    async def _exchange(self, group: list[_Waiting]) -> list[Any]:
        line = self._line
        if line is None or not line.is_open:
            # Whatever answers next may be another one, after a restart or a failover.
            with suppress(RedisError, OSError):  # What is being asked just now may be answered.
                await self._redis.connection_pool.disconnect(inuse_connections=False)
            line = self._line = await Line.open(self._redis)
            self._facts_until = 0.0
        if time.monotonic() > self._facts_until:
            self._must_wait = await self._replies_too_early()
            self._facts_until = time.monotonic() + _FACTS_LAST
        try:
            return await line.answer(self._command(group), replies=self._replies)
        except NoScriptError:  # The server is a new one, and has done nothing yet.
            await line.answer(script.LOAD)
            return await line.answer(self._command(group), replies=self._replies)

    async def _replies_too_early(self) -> bool:
        """Whether this Redis replies before what was promised is so, and `WAITAOF` must follow.

        Raises:
            StoreUnavailable: it would not keep what is promised, however long one waits.
        """
        facts = await ask(self._redis)
        for check in promises(facts, strict=self._strict):
            if check.failed:
                raise StoreUnavailable(check.remedy)
        return self._strict and not facts.fsyncs_each_write

    def _command(self, group: list[_Waiting]) -> bytes:
        deliveries = [waiting.delivery for waiting in group]
        command = script.accept(deliveries, queue=self._queue, retention=self._retention)
        return command + script.synced(self._queue) if self._must_wait else command

    @property
    def _replies(self) -> int:
        """How many replies a command brings."""
        return 1 + script.SYNCED_REPLIES * self._must_wait

    def _conclude(self, group: list[_Waiting], began: float, replies: list[Any] | Exception) -> None:
        """Tell whoever waits what became of the group, and go on with the next."""
        metrics.STORE_SECONDS.observe(time.monotonic() - began)
        following: list[_Waiting] = []
        at_once = False
        try:
            outcomes = self._read(replies, len(group))
        except Exception as error:  # noqa: BLE001  Likewise.
            self._refuse(group, error)
        else:
            following = self._take()
            if at_once := _goes_before_answers(len(following), len(group)):
                self._write(following)
            self._acknowledged, self._last = self._acknowledged + len(group), time.monotonic()
            self._tell(group, outcomes)
        finally:
            if not at_once:
                asyncio.get_running_loop().call_soon(self._write, following)

    def _read(self, replies: list[Any] | Exception, number: int) -> list[Outcome]:
        if isinstance(replies, Exception):
            raise replies
        if self._must_wait and replies[-1][0] < 1:
            raise StoreUnavailable("Redis has not fsynced in time")
        outcomes = [script.OUTCOMES[reply] for reply in replies[0]]
        if len(outcomes) != number:
            raise StoreUnavailable("Redis has answered for another number of events")
        return outcomes

    def _tell(self, group: list[_Waiting], outcomes: list[Outcome]) -> None:
        for waiting, outcome in zip(group, outcomes, strict=True):
            if waiting.outcome.done():  # Its request may have been cancelled; the event stays.
                continue
            if outcome is Outcome.UNREADABLE:
                waiting.outcome.set_exception(StoreUnavailable("the ledger's record of it cannot be read"))
            else:
                waiting.outcome.set_result(outcome)
        for outcome in Outcome:
            if number := outcomes.count(outcome):
                metrics.DELIVERIES.add(outcome.value, by=number)
        self._report.add(zip((waiting.delivery for waiting in group), outcomes, strict=True))

    def _refuse(self, group: list[_Waiting], error: Exception) -> None:
        """One answer for all: each further group would only meet the same silence, seconds later."""
        if not isinstance(error, RedisError | OSError | StoreUnavailable):
            log.error("inbox_failed", exc_info=error)
        if self._line:
            self._line.close()
        refusal = error if isinstance(error, StoreUnavailable) else StoreUnavailable(_why(error), hint(error))
        group, self._waiting = group + self._waiting, []
        for waiting in group:
            if not waiting.outcome.done():
                waiting.outcome.set_exception(refusal)


def _goes_before_answers(following: int, answered: int) -> bool:
    """Whether the next group is sent before the answers to the last, by how many deliveries either has. Pure.

    If it is, Redis works while we answer. But of two groups of like size half of all senders would wait for the other
    half: they prepare their next requests once they are answered, while Redis works. Sent after the answers always, a
    large and a small group took turns for seconds, and Redis waited for us meanwhile: 20,470 deliveries a second at
    full load, and 22,859 like this, each the median of nine runs in turns.
    """
    return following > 0 and (answered <= _FEW or 2 * following < answered)


def _why(error: Exception) -> str:
    """The error in a word or two, as the log has it; what Redis says beyond its first word may repeat a value."""
    word = f" {str(error).partition(' ')[0][:32]}" if isinstance(error, ResponseError) else ""
    return type(error).__name__ + word
