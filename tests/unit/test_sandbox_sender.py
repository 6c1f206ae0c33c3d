"""When the sandbox delivers, on a clock of the test's own: at once or late, again after a failure, in which order."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import httpx
from virtual_time import in_own_time

from credhook.sandbox.deliveries import (
    REORDER_SECONDS,
    RETRY_SECONDS,
    DeliveryAttempt,
    PendingDelivery,
    Reply,
    SandboxEndpoint,
    Sender,
)
from credhook.sandbox.tenant import Faults, FaultSwitch, StateFile

COMPLETED = "openid4vc.issuance.completed"


def now() -> float:
    return asyncio.get_running_loop().time()


def today() -> datetime:
    return datetime(2026, 11, 1, tzinfo=UTC) + timedelta(seconds=now())


class Scene:
    """A sender, and a receiver that answers `status` and notes each delivery with its time in seconds."""

    def __init__(self) -> None:
        self.status = 202
        self.came: list[tuple[float, str]] = []
        self.began = now()
        self.state = StateFile()
        self.faults = FaultSwitch(Faults())
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Never used: `post` is a double.
        self.sender = Sender(self.state, self.faults, [], trust, 1.0, today, self.post)
        endpoint = SandboxEndpoint(
            id="e", url="https://inbox.example", filter_types=[COMPLETED], created_at=today(), updated_at=today()
        )
        self.state.of(SandboxEndpoint).put("e", endpoint)

    async def post(self, _: httpx.AsyncClient, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Reply:
        self.came.append((round(now() - self.began, 3), dict(headers)["webhook-id"]))
        return Reply(status=self.status)

    def happens(self) -> str:
        (webhook_id,) = self.sender.announce(COMPLETED, "iss_1")
        return webhook_id


@asynccontextmanager
async def sending() -> AsyncIterator[Scene]:
    scene = Scene()
    async with scene.sender.sending():
        yield scene
    scene.state.close()


def test_a_delivery_is_as_late_as_was_asked_for_and_holds_up_no_other() -> None:
    async def work() -> None:
        async with sending() as scene:
            scene.faults.on = Faults(delay_ms=2_000)
            late = scene.happens()
            scene.faults.on = Faults()
            prompt = scene.happens()
            await asyncio.sleep(60.0)
            assert scene.came == [(0.0, prompt), (2.0, late)]

    in_own_time(work())


def test_a_failure_is_tried_again_after_longer_and_longer_and_given_up() -> None:
    async def work() -> None:
        async with sending() as scene:
            scene.status = 500
            webhook_id = scene.happens()
            await asyncio.sleep(sum(RETRY_SECONDS) + 1.0)
            times = [0.0, *accumulate(map(float, RETRY_SECONDS))]
            assert scene.came == [(at, webhook_id) for at in times]
            outcomes = [attempt.outcome for attempt in reversed(scene.state.of(DeliveryAttempt).latest(100))]
            assert outcomes == ["retrying"] * len(RETRY_SECONDS) + ["givenUp"]
            assert scene.state.of(PendingDelivery).count() == 0

    in_own_time(work())


def test_deliveries_that_are_held_back_go_out_the_last_first_or_after_a_while() -> None:
    async def work() -> None:
        async with sending() as scene:
            scene.faults.on = Faults(reorder=3)
            ids = [scene.happens() for _ in range(4)]
            await asyncio.sleep(60.0)
            assert [webhook_id for _, webhook_id in scene.came] == [ids[2], ids[1], ids[0], ids[3]]
            assert scene.came[-1][0] == REORDER_SECONDS

    in_own_time(work())
