"""The handlers of one event, as far as it takes nothing but them."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from waiting import until_async

from credhook.store import State
from credhook.worker.attempt.attempt import Attempt, Interruption
from credhook.worker.attempt.processor import Clients, Processor
from credhook.worker.handlers.registry import FetchedEvent, Handlers, Registry
from credhook.worker.queue.claims import Claim, Settlement

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


class Store:
    """Takes a while to write down that a handler has ended.

    Attributes:
        written: whose ends were, in order.
    """

    lease = 15.0

    def __init__(self) -> None:
        self.written: list[str] = []

    async def record(self, _: Claim, handler: str, *__: Any) -> None:
        self.written.append(handler)
        await asyncio.sleep(0.01)

    async def settle(self, _: Claim, settlement: Settlement, *, follow: bool) -> tuple[bool, None]:
        return not follow, None


NOTHING: Any = None


def processor(store: Store, handlers: Handlers[Any]) -> Processor:
    settings: Any = SimpleNamespace(concurrency=1, handler_timeout=60.0, max_attempts=3)
    clients = Clients(NOTHING, NOTHING, NOTHING)
    return Processor(
        settings, cast(Any, store), Registry([handlers]), NOTHING, clients=clients, snapshots=NOTHING, states={}
    )


async def test_the_end_of_each_of_many_handlers_is_written_once() -> None:
    handlers = Handlers("many")

    def handler(number: int) -> None:
        async def handle(event: Any, context: Any) -> None: ...

        handle.__name__ = f"h{number}"
        handlers.on("*")(handle)

    for number in range(100):
        handler(number)
    store, attempt = Store(), Attempt(CLAIM)
    event = FetchedEvent("openid4vc.issuance.completed", "i1", "e1", NOW, 1, NOTHING)
    await processor(store, handlers).run_handlers(attempt, event, list(handlers))
    assert sorted({*store.written, *attempt.unwritten}) == sorted(one.name for one in handlers)
    assert len(store.written) == 99
    assert len(attempt.unwritten) == 1  # Written together with the event's end.


async def test_an_event_that_follows_keeps_its_lease_while_it_waits_for_a_place_and_is_handed_back() -> None:
    made, attempt = processor(Store(), Handlers("none")), Attempt(CLAIM)
    await made._places.acquire()
    waiting = asyncio.create_task(made.handle(attempt))
    await until_async(lambda: made.leases._held)
    attempt.interrupt(Interruption.DRAINED)
    settlement, _ = await waiting
    assert settlement is not None
    assert (settlement.state, settlement.spend) == (State.ACCEPTED, False)
    assert not made.leases._held
    made._places.release()
    settlement, _ = await made.handle(Attempt(CLAIM))
    assert settlement is not None
    assert settlement.state is State.UNHANDLED
