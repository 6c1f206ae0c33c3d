"""Group commit, as databases have it: while one group is written, arriving operations wait and go out together.

The receiver writes deliveries this way, and the worker the results of handlers. An error among the replies goes to the
caller of that operation. If `is_temporary` returns True for the error, the operation is written again instead.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Final, Generic, TypeVar

import structlog

from credhook.backoff import Backoff, Waits
from credhook.store.errors import hint

log = structlog.get_logger("credhook.store")

#: Waits between two tries to write while Redis is away.
_BACKOFF: Final = Backoff(first=0.05, longest=1.0)

Operation = TypeVar("Operation")
Reply = TypeVar("Reply")
#: An operation, the future of its reply, and whether the operation is `first`. A NamedTuple costs eight times as much.
_Waiting = tuple[Operation, asyncio.Future[Reply], bool]


class WrongReply(Exception):
    """The reply does not have an outcome for each operation, so it may be the reply to something else."""


class GroupCommit(Generic[Operation, Reply]):
    """Operations of one process, on their way to Redis."""

    def __init__(
        self,
        run: Callable[[list[Operation]], Awaitable[Sequence[Reply | Exception]]],
        *,
        limit: int,
        window_seconds: float = 0.0,
        is_temporary: Callable[[Exception], bool] = lambda _: False,
    ) -> None:
        """Write groups of up to `limit` operations by `run`, which returns or raises their errors.

        `window_seconds`: how long operations that are `first` wait for others, since their callers are in no hurry.
        `is_temporary`: returns True for an error after which the operation is written again, without limit.
        """
        self._run = run
        self._limit = limit
        self._window_seconds = window_seconds
        self._is_temporary = is_temporary
        #: These go out before the others.
        self._first: list[_Waiting[Operation, Reply]] = []
        self._others: list[_Waiting[Operation, Reply]] = []
        self._writer: asyncio.Task[None] | None = None
        #: Starts the writer at the end of the window.
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Return how many operations wait for the next group."""
        return len(self._first) + len(self._others)

    def write(self, operation: Operation, *, first: bool = False) -> "asyncio.Future[Reply]":
        """Write the operation with the next group, before others if it is `first`. Return the future of its reply."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        (self._first if first else self._others).append((operation, reply, first))
        if self._writer is None or self._writer.done():
            if not first:
                self._begin()
            elif self._timer is None:
                self._open_window()
        return reply

    def refuse_waiting(self, error: Exception) -> None:
        """Give the error to all callers whose operations wait for the next group."""
        waiting = self._first + self._others
        self._first, self._others = [], []
        for _, reply, _ in waiting:
            _refuse(reply, error)

    async def drain(self) -> None:
        """Return when all operations are written. A window ends at once."""
        if self._timer:
            self._begin()
        while self._writer and not self._writer.done():
            await self._writer
            if self._timer:
                self._begin()

    def _open_window(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._window_seconds, self._begin)

    def _begin(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        # The writer serves all callers. An empty context keeps out the trace and the log fields of the first caller.
        self._writer = asyncio.create_task(self._write_all(), context=Context())

    async def _write_all(self) -> None:
        waits = Waits(_BACKOFF)
        while self.waiting:
            group = self._take_group()
            try:
                outcomes: Sequence[Reply | Exception] = await self._run([operation for operation, _, _ in group])
            except Exception as error:  # noqa: BLE001  All callers of the group must hear of it.
                outcomes = [error] * len(group)
            if len(outcomes) != len(group):
                outcomes = [WrongReply()] * len(group)
            again: list[_Waiting[Operation, Reply]] = []
            for waiting, outcome in zip(group, outcomes, strict=True):
                _, reply, _ = waiting
                if not isinstance(outcome, Exception):
                    if not reply.done():  # Otherwise its caller was cancelled.
                        reply.set_result(outcome)
                elif self._is_temporary(outcome):
                    again.append(waiting)
                    reason, advice = type(outcome).__name__, hint(outcome)
                else:
                    _refuse(reply, outcome)
            if again:
                self._first[:0] = [waiting for waiting in again if waiting[2]]
                self._others[:0] = [waiting for waiting in again if not waiting[2]]
                wait = waits.next()
                log.warning("store_unreachable", error=reason, waiting=len(again), retry_in=wait, hint=advice)
                await asyncio.sleep(wait)
                continue
            waits.reset()
            await asyncio.sleep(0)  # Let the next operations of the answered callers join the next group.
            if self._first and not self._others:
                self._open_window()
                return

    def _take_group(self) -> list[_Waiting[Operation, Reply]]:
        # A full Redis accepts a script whose first write frees memory, so `first` operations lead the group.
        group = self._first[: self._limit]
        self._first = self._first[self._limit :]
        free = self._limit - len(group)
        group += self._others[:free]
        self._others = self._others[free:]
        return group


def _refuse(reply: "asyncio.Future[Reply]", error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
