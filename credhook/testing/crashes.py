"""Crash points: end a handler at one of its awaits, as if its process had died.

The handler's coroutine is stepped by hand. Each object that the author's code awaits and that suspends it is one crash
point. An await that completes without suspending is none: let fakes `await asyncio.sleep(0)`.

The crash is an exception that `except Exception` does not catch. A real crash runs no `finally` and no `__aexit__`.
Here they run, as a database rolls back for a lost connection.
"""

import asyncio
import functools
import inspect
import sysconfig
import traceback
import types
import warnings
from collections.abc import Awaitable, Collection, Coroutine, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

#: Folders of code that is not the author's.
_OTHERS: Final = (
    "<frozen",
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    f"{Path(__file__).parents[1]}/",
)
#: Seconds that cancelled tasks get to end.
_GRACE_SECONDS: Final = 0.1


class Crashed(BaseException):
    """The handler's process has died."""


class CrashPoint:
    """One run of a handler that counts its awaits and may die at one of them.

    Attributes:
        awaits: how many awaits the run has made.
        crashed_at: where it died, as `file:line`, or "".
    """

    def __init__(self, at: int | None = None, *, own: types.CodeType | None = None) -> None:
        """`at`: the await to die at, counted from 1. `own`: the handler's code, author's wherever it is installed."""
        self._at = at
        self._own = own
        self.awaits = 0
        self.crashed_at = ""

    async def run(self, result: Awaitable[object]) -> None:
        """Await the handler's result.

        Raises:
            Crashed: the run reached its crash point.
        """
        before = asyncio.all_tasks()
        try:
            await (self._stepped(result) if inspect.iscoroutine(result) else result)
        except BaseException as error:
            if not self.crashed_at:
                raise
            with warnings.catch_warnings():  # Coroutines in the frames will never be awaited.
                warnings.simplefilter("ignore", RuntimeWarning)
                traceback.clear_frames(error.__traceback__)
        if self.crashed_at:
            await end_tasks(asyncio.all_tasks() - before)
            raise Crashed

    @types.coroutine
    def _stepped(self, coroutine: Coroutine[Any, Any, object]) -> Generator[Any, None, None]:
        """Await a coroutine step by step."""
        error: BaseException | None = None
        previous: object = None
        while True:
            try:
                future = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration:
                return
            error = None
            try:
                awaited, place = self._find_await(coroutine)
                if awaited is not None and awaited is not previous:
                    previous = awaited
                    self._count(place)
                yield future
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as raised:  # noqa: BLE001  It belongs to the coroutine.
                if isinstance(raised, Crashed) and isinstance(future, asyncio.Future):
                    future.add_done_callback(_retrieve)
                error = raised

    def _find_await(self, coroutine: Coroutine[Any, Any, object]) -> tuple[object, str]:
        """Return what the innermost function of the author awaits, and its place; (None, "") if there is none."""
        awaited: object = None
        inner: object = coroutine
        place = ""
        while inspect.iscoroutine(inner):
            code = inner.cr_code
            if inner.cr_frame and (code is self._own or not _is_others(code.co_filename)):
                awaited, place = inner.cr_await, f"{code.co_filename}:{inner.cr_frame.f_lineno}"
            inner = inner.cr_await
        return awaited, place

    def _count(self, place: str) -> None:
        if self.crashed_at:
            return
        self.awaits += 1
        if self.awaits == self._at:
            self.crashed_at = place
            raise Crashed


async def end_tasks(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """End the tasks, including those that swallow their cancellation."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_GRACE_SECONDS)
    for task in tasks:
        coroutine = task.get_coro()
        if not task.done() and inspect.iscoroutine(coroutine):
            with suppress(BaseException):
                coroutine.close()
            task.add_done_callback(_retrieve)
            task.cancel()
    await asyncio.sleep(0)


def _retrieve(future: "asyncio.Future[Any]") -> None:
    """Retrieve the error, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


@functools.cache
def _is_others(path: str) -> bool:
    return path.startswith(_OTHERS)
