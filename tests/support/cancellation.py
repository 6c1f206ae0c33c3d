"""Cancelling after each turn of an event loop: what is waited for does not count, so that few turns are all of them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class TurningLoop(asyncio.SelectorEventLoop):
    """Counts its turns, and calls back after so many more."""

    def __init__(self) -> None:
        super().__init__()
        #: How many it has had.
        self.turns = 0
        self._left = 0
        self._call: Callable[[], object] = lambda: None

    def after(self, turns: int, call: Callable[[], object]) -> None:
        """Call once so many turns have passed, in none of them but between two."""
        self._left, self._call = turns + 1, call  # The one under way is none of them.

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]  # It is no part of the interface; a loop has nothing else to turn on.
        self.turns += 1
        if self._left:
            self._left -= 1
            if not self._left:
                self._call()


def on_turning_loop(work: Callable[[TurningLoop], Coroutine[Any, Any, T]]) -> T:
    """Run the work on such a loop, and return its result."""
    loop = TurningLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work(loop))


async def cancelled_after(
    turns: int, work: Coroutine[Any, Any, T], loop: TurningLoop
) -> "tuple[asyncio.Task[T], bool]":
    """Cancel the work after so many turns. Return its task, which has ended, and True if it was cancelled in time."""
    asked: list[bool] = []
    task = loop.create_task(work)
    loop.after(turns, lambda: asked.append(task.cancel()))
    await asyncio.wait({task})
    loop.after(-1, task.cancel)
    return task, any(asked)
