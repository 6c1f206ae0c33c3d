"""An attempt that is broken off after any turn of the event loop: no handler begins any more, and none runs on."""

import asyncio
from itertools import count
from typing import Any, Final

import pytest

from credhook.store import State
from credhook.worker.attempt.attempt import Attempt, Interruption
from credhook.worker.handlers.registry import Handlers
from credhook.worker.queue.claims import Settlement
from support.cancellation import TurningLoop, on_turning_loop
from support.worker.attempts import Attempts, attempts
from support.worker.fleet_harness import Stub

DATA: Final = "openid4vc.verification.data"

#: Turns in which what has begun may still be told.
SLACK = 3


class Notes:
    """When which handler did what, in turns of the loop."""

    def __init__(self, loop: TurningLoop) -> None:
        self.taken: list[tuple[int, str]] = []
        self._loop = loop
        self.handlers = Handlers("test")
        for name in ("first", "second"):
            self.handlers.on(DATA)(self._handler(name))

    def note(self, what: str) -> None:
        self.taken.append((self._loop.turns, what))

    def _handler(self, name: str) -> Any:
        async def handler(event: Any, context: Any) -> None:
            self.note(f"{name} begins")
            try:
                await context.api.presentations.get(event.resource_id)  # It asks Redis whether it may.
            except asyncio.CancelledError:
                for _ in range(2 * SLACK):
                    await asyncio.sleep(0)
                self.note(f"{name} is gone")
                raise
            self.note(f"{name} ends")

        handler.__name__ = name
        return handler

    def after(self, what: str) -> list[str]:
        """What handlers have done more than a few turns after it."""
        (at,) = (turn for turn, noted in self.taken if noted == what)
        return [noted for turn, noted in self.taken if turn > at + SLACK and noted.endswith("s")]


#: What each interruption makes of the event; a plain cancellation writes nothing down.
ENDS = {Interruption.DRAINED: State.ACCEPTED, Interruption.LEASE_LOST: State.ACCEPTED, None: None}


async def broken_off(
    made: Attempts, notes: Notes, loop: TurningLoop, turns: int, why: Interruption | None
) -> tuple[bool, Settlement | None]:
    """Break an attempt off so many turns after its beginning: whether it was in time, and what it came to."""
    await made.accept(f"e{turns}", DATA, f"pre_{turns}")
    attempt, cut = Attempt(await made.claim()), False
    task = loop.create_task(made.make(attempt))

    def cut_off() -> None:
        nonlocal cut
        cut = not task.done()
        notes.note("cut off")
        attempt.interrupt(why) if why else task.cancel()

    notes.taken.clear()
    loop.after(turns, cut_off)
    await asyncio.wait({task})
    loop.after(-1, cut_off)
    notes.note("over")
    cut = cut and (task.cancelled() or attempt.interruption is not None)
    assert not task.cancelled() or why is None
    return cut, None if task.cancelled() else task.result()[0]


@pytest.mark.parametrize("why", ENDS, ids=str)
def test_interrupted_attempt_runs_no_handler(redis_url: str, stub: Stub, why: Interruption | None) -> None:
    async def work(loop: TurningLoop) -> int:
        notes = Notes(loop)
        settings = {"RATE": "10000", "SNAPSHOT_KEY": "k" * 32}
        async with attempts(redis_url, stub, notes.handlers, **settings) as made:
            for turns in count():
                cut, settlement = await broken_off(made, notes, loop, turns, why)
                if not cut:
                    return turns
                for _ in range(2 * SLACK):
                    await asyncio.sleep(0)
                assert notes.after("cut off") == [] == notes.after("over"), turns
                assert notes.taken[-1][1] == "over"  # Handlers had their time to clean up.
                if settlement is not None and settlement.state is not State.DONE:
                    assert settlement.state is ENDS[why], turns
        raise AssertionError

    assert on_turning_loop(work) > 0
