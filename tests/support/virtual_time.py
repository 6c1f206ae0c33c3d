"""An event loop on a clock of its own: when nothing is left to do, the clock jumps to the next timer.

Sleeps and time-outs take no time and come in the same order each time. Only timers can be waited for: no socket, no
process, no thread.
"""

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds that a turn takes: who waits for next to nothing does not wait for ever.
A_LITTLE: Final = 1e-9


class OwnTimeLoop(asyncio.SelectorEventLoop):
    """Has its own seconds, which begin at a thousand."""

    _scheduled: list[asyncio.TimerHandle]
    _ready: Sequence[asyncio.Handle]
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._now = 1_000.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1
        assert self._scheduled or self._ready, "everybody waits, and for nothing that could happen"
        if not self._ready:
            self._now = max(self._now, self._scheduled[0].when())
        self._now += A_LITTLE
        super()._run_once()  # type: ignore[misc]  # It is no part of the interface; a loop has nothing else to turn on.


def in_own_time(work: Coroutine[Any, Any, T]) -> T:
    """Run the work on such a loop, and return its result."""
    with asyncio.Runner(loop_factory=OwnTimeLoop) as runner:
        return runner.run(work)


def on_own_clock(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Let a test run on such a loop."""

    @wraps(test)
    def run(*arguments: P.args, **options: P.kwargs) -> T:
        return in_own_time(test(*arguments, **options))

    return run
