"""What a process writes down goes out in groups: while one script is on its way, the next operations wait for the next.

A Redis that is away, full or read-only is waited for, however long: a claim stands or falls by its fence, and not by
when Redis can be told. An operation that Redis, being well, refuses fails alone.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from typing import Any, Final, NamedTuple

import structlog
from redis.exceptions import (
    AuthenticationError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from credhook.backoff import Backoff, Waits

log = structlog.get_logger("credhook.worker")

#: Operations that one script writes at most.
MOST_WRITTEN: Final = 200
#: Waits between two tries to write while Redis is away.
_BACKOFF: Final = Backoff(first=0.05, longest=1.0)
#: What a Redis says that cannot write just now, or not for us; the last is how Redis 6.2 says NOPERM within a script.
#: From Redis 7 on the same comes from scripts as from commands: redis-py makes the first word a class and drops it.
_UNWELL: Final = (
    "OOM", "READONLY", "MISCONF", "NOREPLICAS", "BUSY", "LOADING", "MASTERDOWN", "NOAUTH", "NOPERM",
    "The user executing the script",
)  # fmt: skip
_UNWELL_CLASSES: Final = (OutOfMemoryError, ReadOnlyError, NoPermissionError, MasterDownError, AuthenticationError)


#: Its name, the number of its arguments, and these.
Operation = tuple[str | int | bytes, ...]


class _Written(NamedTuple):
    operation: Operation
    reply: "asyncio.Future[Any]"
    urgent: bool
    patient: bool
    large: bool


class GroupCommit:
    """Operations of one process, on their way to Redis."""

    def __init__(
        self,
        run: Callable[[Sequence[Operation]], Awaitable[list[Any]]],
        *,
        gather: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Write by `run`, which has the script run for a group; its replies may hold errors of single operations.

        Between two tries it waits by `sleep`, so many seconds. Urgent ones alone wait for others for `gather` seconds.
        """
        self._run = run
        self._gather = gather
        self._sleep = sleep
        self._waiting: list[_Written] = []
        self._writer: asyncio.Task[None] | None = None
        #: Starts the writer, once urgent ones have waited for others long enough.
        self._timer: asyncio.TimerHandle | None = None

    async def write(
        self, operation: Operation, *, urgent: bool = False, patient: bool = True, large: bool = False
    ) -> Any:
        """Have it written with the next group, before others if it is urgent; its reply.

        Of large ones a group has one: while Redis is busy with it, we are with the reply to the last.

        Raises:
            ResponseError: Redis refuses it, and would do so again.
            RedisError: Redis cannot be told, of one that is not to wait for that.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Written(operation, reply, urgent, patient, large))
        if self._writer is None or self._writer.done():
            if not urgent:  # Somebody waits for it.
                self._begin()
            elif self._timer is None:
                self._gather_more()
        return await reply

    def _gather_more(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._gather, self._begin)

    def _begin(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        # It writes for all, so it does not run in the context of the event that happens to be first.
        self._writer = asyncio.create_task(self._write_all(), context=Context())

    async def _write_all(self) -> None:
        waits = Waits(_BACKOFF)
        while self._waiting:
            group, self._waiting = _next_group(self._waiting)
            unwritten: list[_Written] = []
            reason: Any = None
            for one, reply in zip(group, await self._replies(group), strict=True):
                if one.patient and is_unwell(reply):
                    unwritten.append(one)
                    reason = reply
                else:
                    _tell(one, reply)
            if unwritten:
                wait = waits.next()
                log.warning("ledger_unreachable", error=type(reason).__name__, waiting=len(unwritten), retry_in=wait)
                self._waiting = unwritten + self._waiting
                await self._sleep(wait)
                continue
            waits.reset()
            if self._waiting and all(one.urgent for one in self._waiting):
                self._gather_more()
                return

    async def _replies(self, group: Sequence[_Written]) -> Sequence[Any]:
        """The reply to each of the group, or the error."""
        try:
            return await self._run([one.operation for one in group])
        except Exception as error:  # noqa: BLE001  Whoever waits must hear of it, whatever it is.
            return [error] * len(group)


def _next_group(waiting: Sequence[_Written]) -> tuple[list[_Written], list[_Written]]:
    """What is written now, and what later."""
    # Settlements first: they free memory, and a Redis that is full lets a script that begins so pass.
    ordered = sorted(waiting, key=lambda one: not one.urgent)
    large = [place for place, one in enumerate(ordered) if one.large]
    end = min(MOST_WRITTEN, *large[1:2], len(ordered))
    return ordered[:end], ordered[end:]


def operation(name: str, *arguments: str | int | Mapping[str, Any]) -> Operation:
    """As write.lua reads it: name, number of arguments, and these.

    Args:
        name: of the operation.
        arguments: texts, in which Redis wants UTF-8, though a handler's words may hold what is none; numbers; truths,
            as 1 or 0; and what goes as JSON, or as "" if it is empty.
    """
    # The first condition is `_readable`'s own: asked here, it spares a call for most of them.
    return name, len(arguments), *[one if type(one) is str and one.isascii() else _readable(one) for one in arguments]


def _readable(argument: str | int | Mapping[str, Any]) -> str | int | bytes:
    if isinstance(argument, str):
        return argument if argument.isascii() else argument.encode(errors="replace")
    if isinstance(argument, int):
        return int(argument)
    return json.dumps(argument, ensure_ascii=False).encode(errors="replace") if argument else ""


def is_unwell(reply: object) -> bool:
    """Whether it says that Redis cannot be told just now, rather than that it refuses this."""
    if isinstance(reply, ResponseError) and not isinstance(reply, _UNWELL_CLASSES):
        return any(word in str(reply) for word in _UNWELL)
    return isinstance(reply, RedisError | OSError)


def _tell(one: _Written, reply: object) -> None:
    if one.reply.done():
        return
    if isinstance(reply, Exception):
        one.reply.set_exception(reply)
    else:
        one.reply.set_result(reply)
