"""Help authors to find code that blocks the event loop.

In `credhook dev` and in the test kit, calls that block are refused. `credhook dev` also names slow handlers, and other
code that blocks, while they run.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, Final

import structlog

from credhook.logs.places import authors_frames, runs_now
from credhook.worker.attempt.running import Run, where_thread_is

log = structlog.get_logger("credhook.worker")

#: Functions that blockbuster would replace, but that may block. Files and SQLite answer within a moment. A debugger
#: waits for input.
_ALLOWED: Final = ("os.", "io.", "sqlite3.", "builtins.")
#: The functions in which asyncio starts a process without waiting for its end.
_ASYNCIO: Final = ("asyncio/base_events.py", {"subprocess_exec", "subprocess_shell"})


#: Seconds for which a handler may block the event loop before it is named. The loop shows twice a second that it runs.
BLOCKED_SECONDS: Final = 1.0
#: Seconds that a handler may run before it is named.
SLOW_SECONDS: Final = 5.0
#: Seconds between two log lines about the events that wait for their turn with a handler.
WAITS_SECONDS: Final = 10.0


class SlowCode:
    """Names a handler once while it blocks the event loop of the main thread, and once while it runs for long.

    While events wait for their turn with a handler, the handler is named every ten seconds.
    """

    def __init__(
        self,
        runs: Callable[[], Iterable[Run]],
        clock: Callable[[], float] = time.monotonic,
        turns: Callable[[], Mapping[str, tuple[int, float]]] = dict,
    ) -> None:
        """`runs`: returns the runs that have not ended. `clock`: that of the runs. `turns`: see `Processor.turns`."""
        self._runs, self._turns, self._clock = runs, turns, clock
        #: Handler → when it was named last because events wait for it.
        self._named_at: dict[str, float] = {}
        self._ticked, self._is_named = clock(), False
        self._slow: weakref.WeakSet[Run] = weakref.WeakSet()

    def tick(self) -> None:
        """Note that the event loop runs."""
        self._ticked, self._is_named = self._clock(), False

    def look(self) -> None:
        """Log what blocks or is slow now. Another thread than the loop's calls this."""
        now = self._clock()
        if now - self._ticked > BLOCKED_SECONDS and not self._is_named:
            main = threading.main_thread().ident or 0
            if at := authors_frames(TimeoutError().with_traceback(where_thread_is(main))):
                self._is_named = True
                hint = "Make the handler a plain def, which runs in a thread"
                log.warning("handler_blocks", at=at[-1:], hint=hint)
        for run in self._runs():
            if now - run.began > SLOW_SECONDS and run not in self._slow:
                self._slow.add(run)
                at = authors_frames(TimeoutError().with_traceback(run.where()))[-1:] or [run.at]
                log.warning("handler_slow", **run.fields(), seconds=round(now - run.began, 1), at=at)
        for handler, (events, seconds) in self._turns().items():
            if now - self._named_at.get(handler, -WAITS_SECONDS) >= WAITS_SECONDS:
                self._named_at[handler] = now
                log.info("turns_awaited", handler=handler, events=events, seconds=seconds)


@cache
def refuse_blocking_calls() -> None:
    """Let `time.sleep`, locks, sockets and `subprocess` raise `BlockingError` for the rest of the process.

    They do so only on an event loop, and only while a handler runs. Threads of plain functions may block.

    Raises:
        ModuleNotFoundError: the package blockbuster is not installed.
    """
    from blockbuster import BlockBuster, BlockBusterFunction

    functions = {name: function for name, function in BlockBuster().functions.items() if not name.startswith(_ALLOWED)}
    processes = BlockBusterFunction(None, "subprocess.Popen.__init__", can_block_functions=[_ASYNCIO])
    for function in (*functions.values(), processes):
        function.can_block_predicate = partial(_may_block, function.can_block_predicate)
        function.activate()


def _may_block(predicate: Callable[..., bool], *arguments: Any, **options: Any) -> bool:
    return runs_now.get() is None or predicate(*arguments, **options)
