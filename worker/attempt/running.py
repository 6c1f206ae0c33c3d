"""Run one handler: with a timeout, in a thread if it is a plain function, and never twice at a time for one event.

A handler is other people's code. It may raise anything, swallow its cancellation, call `sys.exit`, or never return.
Only the end of the process ends a run that ignores its cancellation. Until then this process does not start the same
handler for the same event again. A process with too many such runs must be replaced.
"""

import asyncio
import contextvars
import inspect
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from traceback import walk_stack, walk_tb
from types import CoroutineType, FrameType, TracebackType
from typing import Any, Final

import structlog

from credhook.events import event_ids
from credhook.logs.places import runs_now
from credhook.worker.attempt.retry import Defer
from credhook.worker.handlers.arguments import Context, FailedRun, FetchedEvent
from credhook.worker.handlers.functions import definition, is_async
from credhook.worker.handlers.registry import Handler

log = structlog.get_logger("credhook.worker")

#: Seconds that a cancelled handler gets to clean up. Then it is cancelled again and gets as many: the first
#: cancellation may be lost, as Python 3.11's `asyncio.wait_for` loses some.
GRACE_SECONDS: Final = 1.0
#: Seconds after which an abandoned run counts as hung. Until then it may be cleaning up.
HUNG_AFTER_SECONDS: Final = 3.0
#: Seconds until an event that met its own earlier run is tried again. Another process may take it.
LOOK_AGAIN_SECONDS: Final = 2.0
#: Seconds that an event waits for its own abandoned run before the process is replaced.
LONGEST_AWAITED_SECONDS: Final = 60.0

#: Set by the worker of `credhook dev --debug`. A person in a debugger takes longer than a handler may.
untimed: Final = threading.Event()

#: Handlers that were reported for returning a value.
_reported: set[str] = set()


class HandlerTimeout(Exception):
    """The handler exceeded its timeout."""


class HandlerCrashed(Exception):
    """The handler raised an exception that ends processes or tasks. The message is its class."""


class CoroutineNotAwaited(Exception):
    """The handler called an `async def` without `await`, so the call has not run."""

    def __init__(self, coroutine: str) -> None:
        """`coroutine`: the name of the `async def`."""
        super().__init__(f"{coroutine} has not run: write await before the call")


class StillRunning(Defer):
    """An earlier run of the same handler for the same event has not ended. No attempt is spent."""

    def __init__(self) -> None:
        super().__init__(LOOK_AGAIN_SECONDS)


class Runs:
    """All runs of this process that have not ended."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit`: the process's concurrency, of threads too. If more than half of that hang, it must be replaced."""
        self.limit = limit
        #: The runs by event and handler.
        self.alive: dict[tuple[str, str], Run] = {}
        #: Free places for threads. Hanging threads keep their places.
        self.free_threads = asyncio.Semaphore(limit)
        self.clock = clock

    def defer_to(self, event_id: str, handler: str) -> bool:
        """Note that an attempt has to wait, and return True, if the handler still runs for the event."""
        run = self.alive.get((event_id, handler))
        if run is not None:
            run.is_awaited = True
        return run is not None

    def begin(self, event: FetchedEvent[Any], handler: Handler, failure: FailedRun | None = None) -> "Run | None":
        """Return a new run, or None if an earlier one has not ended."""
        return None if self.defer_to(event.webhook_id, handler.name) else Run(self, handler, event, failure)

    @property
    def hung(self) -> int:
        """Return how many abandoned runs still go on after the time for cleaning up."""
        return sum(age > HUNG_AFTER_SECONDS for age, _ in self._abandoned())

    @property
    def are_too_many(self) -> bool:
        """Return True if the process must be replaced to end its hung runs."""
        blocks_event = any(run.is_awaited and age > LONGEST_AWAITED_SECONDS for age, run in self._abandoned())
        return blocks_event or self.hung * 2 > self.limit

    def _abandoned(self) -> "list[tuple[float, Run]]":
        now = self.clock()
        return [(now - run.abandoned_at, run) for run in self.alive.values() if run.abandoned_at is not None]


class Run:
    """One run of a handler for an event. It ends when both its task and its thread have ended."""

    def __init__(self, runs: Runs, handler: Handler, event: FetchedEvent[Any], failure: FailedRun | None) -> None:
        self._runs, self.handler, self._event = runs, handler, event
        self._argument = failure or event
        self._key = event.webhook_id, handler.name
        self._parts = 0
        self.began = runs.clock()
        self.task: asyncio.Task[None] | None = None
        #: The thread of a plain function.
        self.thread: threading.Thread | None = None
        #: The coroutines that it has made and not awaited.
        self.dropped: tuple[str, ...] = ()
        #: Each `Retry` and `GiveUp` that it has made.
        self.decisions: tuple[Exception, ...] = ()
        #: When its attempt stopped waiting for it, or None.
        self.abandoned_at: float | None = None
        #: True if an attempt was deferred because of it.
        self.is_awaited = False

    @property
    def at(self) -> str:
        """Return where the handler begins."""
        return self.handler.at

    def fields(self) -> dict[str, Any]:
        """Return what each log line of the handler holds."""
        event = self._event
        ids: dict[str, Any] = event_ids(event.webhook_id, event.type, event.resource_id)
        return ids | {"attempt": event.attempt, "handler": self.handler.name}

    def where(self) -> TracebackType | None:
        """Return where the handler is now, as the traceback of an error that it raised there."""
        if self.thread is not None and (traceback := where_thread_is(self.thread.ident or 0)):
            return traceback
        return where_task_is(self.task)

    def hold(self) -> None:
        """Count its task or thread."""
        self._parts += 1
        self._runs.alive[self._key] = self

    def release(self) -> None:
        """Uncount its task or thread."""
        self._parts -= 1
        if self._parts == 0:
            del self._runs.alive[self._key]
            self.task = None  # Its context holds this run: only the collector would free the two.

    async def call(self, context: Context[Any, Any], ended: "asyncio.Future[None]") -> None:
        """Call the handler and set `ended`. Exceptions that would end the event loop become `HandlerCrashed`."""
        runs_now.set(self)
        self.hold()
        try:
            if self.handler.is_async:
                result = self.handler.function(self._argument, context)
            else:
                result = await self._call_in_thread(context)
            # A decorator may hide an `async def` behind a plain function, or return an awaitable of its own.
            if type(result) is CoroutineType or isinstance(result, Awaitable):
                result = await result
            if result is not None or self.dropped or self.decisions:
                await self._check_result(result)
        except (Exception, asyncio.CancelledError) as error:
            self._release_locals(error)
            raise
        except BaseException as error:  # noqa: BLE001  Such as SystemExit.
            raise _harmless(error) from None
        finally:
            self.decisions = ()  # A raised decision refers to this frame.
            self.release()
            _set(ended)

    def _release_locals(self, error: BaseException) -> None:
        """Release what the handler's frame and the error hold. Python then reports a lost coroutine as this run's.

        Other frames of the traceback may be of code that has caught the error and goes on.
        """
        code = getattr(definition(self.handler.function), "__code__", None)
        for frame in [frame for frame, _ in walk_tb(error.__traceback__) if frame.f_code is code][:1]:
            with suppress(RuntimeError):  # It is of a run that goes on.
                frame.clear()
        if type(error) is AttributeError:
            error.obj = None

    async def _call_in_thread(self, context: Context[Any, Any]) -> object:
        """Return the function's result. A daemon thread does not keep the process alive."""
        free = self._runs.free_threads
        await free.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(end: Callable[[], None]) -> None:
            free.release()
            self.release()
            if not future.cancelled():
                end()

        def work() -> None:
            try:
                end = partial(future.set_result, self.handler.function(self._argument, context))
            except BaseException as error:  # noqa: BLE001  It is judged on the event loop.
                end = partial(future.set_exception, _harmless(error))
            with suppress(RuntimeError):  # The loop was closed meanwhile.
                loop.call_soon_threadsafe(settle, end)

        self.hold()
        here = contextvars.copy_context()  # Spans of the handler's libraries belong below the handler's span.
        try:
            self.thread = threading.Thread(target=here.run, args=(work,), daemon=True, name=self.handler.name)
            self.thread.start()
        except RuntimeError:  # The system allows no more threads.
            free.release()
            self.release()
            raise
        return await future

    async def _check_result(self, result: object) -> None:
        """Await a result whose `return` lacks an await. Log any other, and a `Retry` that was not raised: no effect.

        Raises:
            CoroutineNotAwaited: a call has not run, so the handler is not done.
        """
        if isinstance(result, Awaitable):
            result = await result
        if self.dropped:
            raise CoroutineNotAwaited(self.dropped[0])
        name = self.handler.name
        unraised = [type(decision).__name__ for decision in self.decisions if decision.__traceback__ is None]
        if (result is not None or unraised) and name not in _reported:
            _reported.add(name)
            if result is not None:
                hint = "Results are ignored. Return nothing; raise Retry or GiveUp to decide"
                log.warning("handler_returned", handler=name, at=self.at, returned=type(result).__name__, hint=hint)
            else:
                hint = f"It has no effect, and the handler is done. Write raise before {unraised[0]}(…)"
                log.warning("decision_not_raised", handler=name, at=self.at, decision=unraised[0], hint=hint)


async def run(
    handler: Handler,
    event: FetchedEvent[Any],
    context: Context[Any, Any],
    *,
    timeout: float,  # noqa: ASYNC109  A handler that swallows its cancellation must not delay the attempt.
    runs: Runs,
    grace: float = GRACE_SECONDS,
    failure: FailedRun | None = None,
) -> Exception | None:
    """Run the handler and return its error, or None if it succeeded.

    `failure`: the first argument of a function of `on_error` or `on_give_up`. Handlers get the event.

    Returns:
        `StillRunning`, without a run, if an earlier run for this event has not ended. `HandlerTimeout` after
        `timeout` seconds.
    """
    held = runs.begin(event, handler, failure)
    if held is None:
        return StillRunning()
    loop = asyncio.get_running_loop()
    # `asyncio.wait` would take two more turns of the loop, 5 us of an event's 100.
    ended: asyncio.Future[None] = loop.create_future()
    task = held.task = loop.create_task(held.call(context, ended))
    timer = loop.call_later(timeout, _set, ended)
    try:
        await ended
        if untimed.is_set():
            await asyncio.wait({task})
    except asyncio.CancelledError:
        held.abandoned_at = runs.clock()
        await _cancel(task, grace)
        raise
    finally:
        timer.cancel()
    if not task.done():
        held.abandoned_at = runs.clock()
        late = HandlerTimeout(f"longer than {timeout} s").with_traceback(held.where())
        await _cancel(task, grace)
        return late
    if task.cancelled():
        return HandlerCrashed("CancelledError")
    error = task.exception()
    if isinstance(error, CoroutineNotAwaited):
        error.__traceback__ = None  # It would name our line.
    return error if isinstance(error, Exception) else None


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def where_thread_is(ident: int) -> TracebackType | None:
    """Return where a thread is now, as the traceback of an error that it raised there."""
    innermost = sys._current_frames().get(ident)  # noqa: SLF001  It is documented.
    return _traceback(frame for frame, _ in walk_stack(innermost)) if innermost else None


def where_task_is(task: "asyncio.Task[None] | None") -> TracebackType | None:
    """Return where a task is now, as the traceback of an error that it raised there."""
    frames: list[FrameType] = []
    coroutine: object = task and task.get_coro()
    while inspect.iscoroutine(coroutine) and coroutine.cr_frame:
        frames.append(coroutine.cr_frame)
        coroutine = coroutine.cr_await
    return _traceback(reversed(frames))


def _traceback(frames: Iterable[FrameType]) -> TracebackType | None:
    """Return the traceback of these frames, the innermost first."""
    traceback = None
    for frame in frames:
        traceback = TracebackType(traceback, frame, max(0, frame.f_lasti), frame.f_lineno)
    return traceback


async def _cancel(task: "asyncio.Task[None]", grace: float) -> None:
    task.add_done_callback(retrieve)
    for _ in range(2):
        task.cancel()
        await asyncio.wait({task}, timeout=grace)
        if task.done():
            return


def retrieve(future: "asyncio.Future[Any]") -> None:
    """Retrieve the error, so that asyncio does not log it with its message."""
    if not future.cancelled():
        future.exception()


def _harmless(error: BaseException) -> Exception:
    """Return an error that does not end the event loop, and that a future takes."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return HandlerCrashed(type(error).__name__).with_traceback(error.__traceback__)


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call an `async def` on the loop, and a plain function in a thread because it may block."""
    if is_async(function):
        result = await function(*arguments)
        return await result if inspect.iscoroutine(result) else result  # Its `return` lacks an await.
    result = await asyncio.to_thread(function, *arguments)
    return await result if isinstance(result, Awaitable) else result
