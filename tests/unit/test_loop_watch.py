"""A handler that keeps the loop from moving is named, once, with the line that it was in."""

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from structlog.testing import capture_logs

from credhook.worker.handlers.registry import Handler
from credhook.worker.process.loop_watch import LOOK_SECONDS, LoopWatch


class Loop:
    """A loop's thread as it is seen from beside: who runs in it, and what time it is."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stack: FrameType | None = None
        self.watch = LoopWatch(
            [Handler("a.careless", frozenset(), careless), Handler("a.other", frozenset(), other)],
            clock=lambda: self.now,
            stack=lambda: self.stack,
        )

    def goes_on(self, seconds: float, *, beats: bool) -> None:
        """It is looked at for so long."""
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            if beats:
                self.watch.beat()
            self.watch.look()


async def careless(event: Any, context: Any) -> None:
    blocks(event)


async def other(event: Any, context: Any) -> None:
    blocks(event)


def blocks(seen_from: Callable[[FrameType], None]) -> None:
    seen_from(sys._getframe())


def running(loop: Loop, handler: Any, seconds: float, *, beats: bool = False) -> None:
    """The handler is on the stack for so long, and then it is not."""

    def see(frame: FrameType) -> None:
        loop.stack = frame
        loop.goes_on(seconds, beats=beats)
        loop.stack = None

    with pytest.raises(StopIteration):
        handler(see, None).send(None)
    loop.goes_on(LOOK_SECONDS, beats=True)


def test_it_is_named_once_with_its_line_and_how_long() -> None:
    loop = Loop()
    with capture_logs() as lines:
        running(loop, careless, 2.0)
        running(loop, careless, 2.0)
        running(loop, other, 2.0)
    assert [(line["event"], line["handler"], line["seconds"]) for line in lines] == [
        ("handler_blocks_loop", "a.careless", pytest.approx(1.0, abs=0.25)),
        ("handler_blocks_loop", "a.other", pytest.approx(1.0, abs=0.25)),
    ]
    assert lines[0]["at"].startswith("unit/test_loop_watch.py:")
    assert lines[0]["at"].endswith(" blocks")


def test_what_is_short_or_lets_the_loop_move_is_not() -> None:
    loop = Loop()
    with capture_logs() as lines:
        running(loop, careless, 0.8)
        running(loop, careless, 5.0, beats=True)
        for _ in range(10):
            running(loop, other, 0.6)
    assert lines == []


def test_a_loop_that_waits_is_nobodys_fault() -> None:
    loop = Loop()
    with capture_logs() as lines:
        loop.stack = sys._getframe()
        loop.goes_on(10.0, beats=False)
    assert lines == []


def test_the_real_stack_is_that_of_the_main_thread() -> None:
    watch = LoopWatch([Handler("a.careless", frozenset(), careless)], clock=time.monotonic)
    watch.look()
    assert watch._call is None

    def see(_: FrameType) -> None:
        watch.look()

    with pytest.raises(StopIteration):
        careless(see, None).send(None)
    assert watch._call is not None
    assert watch._call[0] == "a.careless"
