"""Running one handler, whatever it is and whatever it does: it ends as a value, and nothing of it is left behind.

A handler is other people's code. It may be a coroutine function or a plain one, or a plain one that returns a
coroutine; it may raise anything, swallow its cancellation, call `sys.exit`, or never return.
"""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Final

from credhook.logs.places import runs_now
from credhook.worker.attempt.remarks import remark_on_result
from credhook.worker.attempt.runs import Run, Runs, StillRunning
from credhook.worker.handlers.given import Context, FetchedEvent
from credhook.worker.handlers.handler import Handler

#: Seconds that a handler past its time, or no longer wanted, gets to clean up after itself; then it is told once more,
#: and gets as many again. Its first cancellation may have been lost: Python 3.11's `asyncio.wait_for` drops some.
GRACE: Final = 1.0


class HandlerTimeout(Exception):
    """The handler took longer than `CREDHOOK_HANDLER_TIMEOUT`."""


class HandlerCrashed(Exception):
    """The handler raised what ends processes or tasks; the message names it."""


class ThreadRunner:
    """Where plain functions run: a thread for each, up to a limit that counts those that hang as well."""

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)

    async def call(self, handler: Handler, event: FetchedEvent, context: Context[Any, Any], held: Run) -> object:
        """The plain function's result, from a thread that does not outlive the process. It is held for as long."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: object, error: BaseException | None) -> None:
            self._free.release()
            held.release()
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                future.set_exception(error)
            else:  # A future refuses it, or it would end the loop.
                future.set_exception(HandlerCrashed(type(error).__name__).with_traceback(error.__traceback__))

        def work() -> None:
            result: object = None
            failure: BaseException | None = None
            runs_now.set(handler.at)
            try:
                result = handler.function(event, context)
            except BaseException as error:  # noqa: BLE001  It crosses over to the loop, which judges it.
                failure = error
            with suppress(RuntimeError):  # The loop has ended, and with it all who would want to know.
                loop.call_soon_threadsafe(settle, result, failure)

        held.hold()
        here = contextvars.copy_context()  # What the handler's libraries trace belongs to the handler's span.
        try:
            threading.Thread(target=here.run, args=(work,), daemon=True, name=handler.name).start()
        except RuntimeError:  # The system has no more.
            self._free.release()
            held.release()
            raise
        return await future


async def run(
    handler: Handler,
    event: FetchedEvent,
    context: Context[Any, Any],
    *,
    timeout: float,  # noqa: ASYNC109  Ours must hold even for a handler that swallows it.
    threads: ThreadRunner,
    runs: Runs,
    grace: float = GRACE,
) -> Exception | None:
    """Run a handler for an event.

    Args:
        handler: what is run.
        event: its first argument.
        context: its second.
        timeout: seconds that it may take, and wait for a thread.
        threads: where it runs if it is a plain function.
        runs: those of this process, of which it is one until it has ended, however long that takes.
        grace: seconds that it gets to end once it was cancelled, and again once it was cancelled for the second time.

    Returns:
        What went wrong, or None. `StillRunning`, without having run it: an earlier run has not ended yet.
    """
    try:
        held = runs.begin(event.webhook_id, handler.name)
    except StillRunning as still_running:
        return still_running
    loop = asyncio.get_running_loop()
    enough: asyncio.Future[None] = loop.create_future()
    task = loop.create_task(_guarded(handler, event, context, threads, held, ended=enough))
    timer = loop.call_later(timeout, _set, enough)
    try:
        await enough
        if not task.done():
            runs.give_up(held)
            await _cancel(task, grace)
            return HandlerTimeout(f"longer than {timeout} s")
    except asyncio.CancelledError:
        runs.give_up(held)
        await _cancel(task, grace)
        raise
    finally:
        timer.cancel()
    if task.cancelled():
        return HandlerCrashed("CancelledError")
    error = task.exception()
    return error if isinstance(error, Exception) else None


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def _cancel(task: "asyncio.Task[None]", grace: float) -> None:
    task.add_done_callback(_over)
    for _ in range(2):
        task.cancel()
        await asyncio.wait({task}, timeout=grace)
        if task.done():
            return


def _over(task: "asyncio.Task[None]") -> None:
    """What it ends with after we have stopped waiting is nobody's business, least of all the log's."""
    if not task.cancelled():
        task.exception()


async def _guarded(
    handler: Handler,
    event: FetchedEvent,
    context: Context[Any, Any],
    threads: ThreadRunner,
    held: Run,
    *,
    ended: "asyncio.Future[None]",
) -> None:
    """The handler, with what would end the event loop turned into an error of its own.

    Whoever waits is told as it ends: `asyncio.wait`, and callbacks of its task, would take a turn of the loop more.
    """
    runs_now.set(handler.at)
    held.hold()
    try:
        if handler.is_async:
            result = handler.function(event, context)
        else:
            result = await threads.call(handler, event, context, held)
        if isinstance(result, Awaitable):  # Also of a plain function: a decorator may hide the `async def`.
            result = await result
        remark_on_result(handler, result)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:  # noqa: BLE001  It would end the loop, whatever it is.
        raise HandlerCrashed(type(error).__name__).with_traceback(error.__traceback__) from None
    finally:
        held.release()
        _set(ended)
