"""The handlers of one event, as far as it takes nothing but them."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from credhook.worker.attempt.attempt import Attempt
from credhook.worker.attempt.processor import Processor
from credhook.worker.attempt.slots import Slot
from credhook.worker.handlers.registry import FetchedEvent, Handlers, Registry
from credhook.worker.queue.claims import Claim

NOW = datetime(2026, 11, 22, tzinfo=UTC)
CLAIM = Claim(
    event_id="e1",
    type="openid4vc.issuance.completed",
    resource_id="i1",
    received_at=NOW,
    now=int(NOW.timestamp() * 1_000),
    attempt=1,
    fence=1,
    first=True,
    ended={},
    seen=False,
    latest=(0, 0),
    job="j1",
)


class BreakableStore:
    """Takes a while to write down that a handler has ended.

    Attributes:
        written: whose ends were, in order.
    """

    def __init__(self) -> None:
        self.written: list[str] = []

    async def record(self, _: Claim, handler: str, *__: Any) -> None:
        self.written.append(handler)
        await asyncio.sleep(0.01)


async def test_the_end_of_each_of_many_handlers_is_written_once() -> None:
    handlers = Handlers("many")

    def handler(number: int) -> None:
        async def handle(event: Any, context: Any) -> None: ...

        handle.__name__ = f"h{number}"
        handlers.on("*")(handle)

    for number in range(100):
        handler(number)
    settings = cast(Any, SimpleNamespace(concurrency=1, handler_timeout=60.0, max_attempts=3))
    store, attempt = BreakableStore(), Attempt(CLAIM)
    nothing = cast(Any, None)
    processor = Processor(settings, cast(Any, store), Registry([handlers]), nothing, snapshots=nothing, states={})
    event = FetchedEvent("openid4vc.issuance.completed", "i1", "e1", NOW, 1, nothing)
    await processor.run_handlers(attempt, Slot(nothing, nothing, nothing), event, list(handlers), ())
    assert sorted({*store.written, *attempt.unwritten}) == sorted(one.name for one in handlers)
    assert len(store.written) == 99
    assert len(attempt.unwritten) == 1  # Written together with the event's end.
