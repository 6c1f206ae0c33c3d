"""Group commit: while one script is on its way, the next operations wait and go out together.

While Redis is away, full or read-only, operations wait without limit: the fence decides if a claim still stands. An
operation that a healthy Redis refuses fails alone.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from typing import Any, Final, NamedTuple

import structlog

from credhook.backoff import Backoff, Waits
from credhook.store.errors import is_unwell

log = structlog.get_logger("credhook.worker")

#: Operations in one script at most.
MOST_WRITTEN: Final = 200
#: Waits between two tries to write while Redis is away.
_BACKOFF: Final = Backoff(first=0.05, longest=1.0)
#: Its name, the number of its arguments, and these.
Operation = tuple[str | int | bytes, ...]


class _Write(NamedTuple):
    operation: Operation
    reply: "asyncio.Future[Any]"
    first: bool


class GroupCommit:
    """Operations of one process, on their way to Redis."""

    def __init__(self, run: Callable[[Sequence[Operation]], Awaitable[list[Any]]], *, window: float = 0.0) -> None:
        """Write groups by `run`, whose replies may hold errors of single operations.

        Settlements, which are written first, wait `window` seconds for other operations: no caller is in a hurry.
        """
        self._run = run
        self._window = window
        self._waiting: list[_Write] = []
        self._writer: asyncio.Task[None] | None = None
        #: Starts the writer at the end of the window.
        self._timer: asyncio.TimerHandle | None = None

    async def write(self, operation: Operation, *, first: bool = False) -> Any:
        """Write the operation with the next group, before others if it is `first`, and return its reply.

        Raises:
            ResponseError: Redis refuses the operation, and would do so again.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Write(operation, reply, first))
        if self._writer is None or self._writer.done():
            if not first:
                self._begin()
            elif self._timer is None:
                self._open_window()
        return await reply

    def _open_window(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._window, self._begin)

    def _begin(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        # It writes for all, so it does not run in the context of the first event.
        self._writer = asyncio.create_task(self._write_all(), context=Context())

    async def _write_all(self) -> None:
        waits = Waits(_BACKOFF)
        while self._waiting:
            # Settlements first: they free memory, and a full Redis lets a script pass that begins with one.
            waiting = sorted(self._waiting, key=lambda write: not write.first)
            group, self._waiting = waiting[:MOST_WRITTEN], waiting[MOST_WRITTEN:]
            try:
                replies = await self._run([write.operation for write in group])
            except Exception as error:  # noqa: BLE001  All waiting callers must hear of it.
                replies = [error] * len(group)
            unwritten: list[_Write] = []
            for write, reply in zip(group, replies, strict=True):
                if is_unwell(reply):
                    unwritten.append(write)
                    reason = type(reply).__name__
                elif write.reply.done():
                    continue
                elif isinstance(reply, Exception):
                    write.reply.set_exception(reply)
                else:
                    write.reply.set_result(reply)
            if unwritten:
                wait = waits.next()
                log.warning("store_unreachable", error=reason, waiting=len(unwritten), retry_in=wait)
                self._waiting = unwritten + self._waiting
                await asyncio.sleep(wait)
                continue
            waits.reset()
            if self._waiting and all(write.first for write in self._waiting):
                self._open_window()
                return


def operation(name: str, *arguments: str | int | Mapping[str, Any]) -> Operation:
    """Return the operation as write.lua reads it: its name, the number of its arguments, and these.

    Texts become UTF-8, although a handler's words may not be; mappings become JSON, or "" if they are empty.
    """
    return (
        name,
        len(arguments),
        *[one if type(one) is int or (type(one) is str and one.isascii()) else _encoded(one) for one in arguments],
    )


def _encoded(argument: str | int | Mapping[str, Any]) -> int | bytes:
    if isinstance(argument, str):
        return argument.encode(errors="replace")
    if isinstance(argument, int):
        return int(argument)
    return json.dumps(argument, ensure_ascii=False).encode(errors="replace") if argument else b""
