"""Crash points: a process that dies while a handler awaits something, played within one that lives on.

A handler's awaits are where effects come about: the other end has acted, or not yet, and the handler does not know.
Each coroutine that the author's own code awaits is such a place when it begins and when it has returned, and so is each
suspension of that code on anything else, a future or a task. Frames are watched by `sys.settrace`, which needs no
source and holds for `async with` as well; a coverage tool's own trace function is put back after each step.

A crash is an exception that no `except Exception` catches. A real one would not run `finally` and `__aexit__` either;
here they run, since a database does the same for a connection that it has lost: it rolls back.
"""

import asyncio
import dis
import functools
import inspect
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Awaitable, Collection, Coroutine, Generator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Literal, NamedTuple

#: Whose awaits are not the author's.
_OTHERS: Final = tuple(
    f"{folder}/"
    for folder in {
        *(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parents[1]),
    }
)

#: Seconds that cancelled tasks get to end.
_GRACE: Final = 0.1


class Crash(NamedTuple):
    """When a handler's process dies.

    Attributes:
        at: at which of its awaits, counted from 1 as they are made.
        when: before what it awaits has begun, or once that has returned.
    """

    at: int
    when: Literal["before", "after"] = "after"


class Crashed(BaseException):
    """The process is no more, as far as the handler can tell."""


class CrashInjector:
    """One run of a handler: counts its awaits, and ends at one if it is to."""

    def __init__(self, crash: Crash | None = None, *, own: CodeType | None = None) -> None:
        """Watch one run; `own` is code that is the author's wherever it is installed: the handler's."""
        self._crash = crash
        self._own = own
        #: How many awaits it has made.
        self.awaits = 0
        #: Where it has died, `file:line`; empty as long as it lives.
        self.crashed_at = ""
        #: The awaits under way, by the frame of what is awaited.
        self._begun: dict[FrameType, int] = {}

    async def run(self, result: Awaitable[object]) -> None:
        """Await what the handler has returned.

        Raises:
            Crashed: it was time.
        """
        before = asyncio.all_tasks()
        try:
            await (_Steps(result, self) if inspect.iscoroutine(result) else result)
        except BaseException as error:
            if not self.crashed_at:
                raise
            _forget(error)
        finally:
            self._begun.clear()
        if self.crashed_at:
            await end(asyncio.all_tasks() - before)  # Nothing that it has started outlives it.
            raise Crashed

    def step(self, coroutine: Coroutine[Any, Any, object], error: BaseException | None) -> Any:
        """Let it go on until it is suspended; what it then waits for is returned."""
        previous = sys.gettrace()
        sys.settrace(self._called)
        try:
            return coroutine.send(None) if error is None else coroutine.throw(error)
        finally:
            sys.settrace(previous)

    def suspended(self, coroutine: Coroutine[Any, Any, object]) -> tuple[int, str] | None:
        """The await at which the author's own code is suspended, and its place; None if what it awaits is watched."""
        frame: FrameType | None = None
        inner: object = coroutine
        while inspect.iscoroutine(inner):
            frame, inner = inner.cr_frame, inner.cr_await
        if frame is None or not self._is_authors(frame):
            return None
        self.awaits += 1
        return self.awaits, _place(frame)

    def meet(self, at: int, when: Literal["before", "after"], place: str) -> None:
        """Die if it is time.

        Raises:
            Crashed: it is.
        """
        if not self.crashed_at and self._crash == (at, when):
            self.crashed_at = place
            raise Crashed

    def _called(self, frame: FrameType, event: str, _: object) -> Any:
        """A function has been called; the trace function of its frame, or None."""
        if event != "call" or self.crashed_at or not frame.f_code.co_flags & inspect.CO_COROUTINE:
            return None
        caller = frame.f_back
        if caller is None or not _is_asynchronous(caller) or not self._is_authors(caller):
            return None
        frame.f_trace_lines = False
        if frame not in self._begun:
            self.awaits += 1
            self._begun[frame] = self.awaits
            self.meet(self.awaits, "before", _place(caller))
        return self._returns

    def _returns(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "return" and frame.f_back is not None and _has_returned(frame):
            self.meet(self._begun[frame], "after", _place(frame.f_back))
        return self._returns

    def _is_authors(self, frame: FrameType) -> bool:
        return frame.f_code is self._own or not _is_others(frame.f_code.co_filename)


async def end(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """End the tasks, those as well that swallow their cancellation."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_GRACE)
    for task in tasks:
        coroutine = task.get_coro()
        if not task.done() and inspect.iscoroutine(coroutine):
            with suppress(BaseException):  # Whatever it says to that, it is over.
                coroutine.close()
            task.add_done_callback(_look_at)
            task.cancel()
    await asyncio.sleep(0)


class _Steps:
    """Awaits a coroutine step by step."""

    def __init__(self, coroutine: Coroutine[Any, Any, object], injector: CrashInjector) -> None:
        self._coroutine = coroutine
        self._mortal = injector

    def __await__(self) -> Generator[Any, None, None]:
        error: BaseException | None = None
        while True:
            try:
                waits_for = self._mortal.step(self._coroutine, error)
            except StopIteration:
                return
            error = None
            try:
                place = self._mortal.suspended(self._coroutine)
                if place:
                    _abandon(waits_for)
                    self._mortal.meet(place[0], "before", place[1])
                yield waits_for
                if place:
                    self._mortal.meet(place[0], "after", place[1])
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as raised:  # noqa: BLE001  It is the coroutine's.
                error = raised


def _abandon(waits_for: object) -> None:
    """Have nobody complain that what it fails with was not looked at."""
    if isinstance(waits_for, asyncio.Future):
        waits_for.add_done_callback(_look_at)


def _look_at(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled():
        future.exception()


def _forget(error: BaseException) -> None:
    """Let go of what the frames hold. Coroutines among it have not been awaited, and now nobody will."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        traceback.clear_frames(error.__traceback__)


@functools.cache
def _is_others(path: str) -> bool:
    return path.startswith((*_OTHERS, "<frozen"))


def _is_asynchronous(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))


def _has_returned(frame: FrameType) -> bool:
    """Whether it is left for good and with a result, rather than suspended or by an exception."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
