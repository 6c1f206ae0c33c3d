"""A call to the platform that is cancelled after any turn of the event loop."""

import time
from collections import Counter

import pytest
from cancellation import TurningLoop, cancelled_after, on_turning_loop
from scripted_server import PRESENTATION, TOKEN, answering, presentation

from credhook.worker.api.client import AsyncApi, Permit
from credhook.worker.api.token import ClientCredentials


class Counting(Permit):
    """A guard, and all of its permits.

    Attributes:
        acquired: how many there were.
        ends: how they ended.
    """

    def __init__(self) -> None:
        self.acquired = 0
        self.ends: Counter[str] = Counter()

    async def __call__(self, operation: str) -> Permit:
        self.acquired += 1
        return self

    def ended(self, *_: object, **__: object) -> None:
        self.ends["ended"] += 1

    def cancelled(self) -> None:
        self.ends["cancelled"] += 1


def late(target: str, _: int) -> bytes:
    """Answer after turns of the loop in which the call can be cancelled while it waits."""
    name = target.removeprefix(PRESENTATION)
    time.sleep(0.1 if name.startswith("p") else 0)
    return presentation(name)


@pytest.mark.parametrize("kept", [False, True], ids=["over a new connection", "over a kept one"])
def test_a_call_can_be_cancelled_after_any_turn_of_the_loop(kept: bool) -> None:
    """It ends, its permit hears of it, and the next call gets its own answer."""

    async def work(loop: TurningLoop) -> int:
        guard = Counting()
        auth = ClientCredentials(server.url + TOKEN, "me", "s3cret")
        for turns in range(1_000):
            async with AsyncApi(server.url, auth, timeout=60.0, guard=guard) as api:
                if kept:
                    await api.presentations.get("before")
                task, was_asked = await cancelled_after(turns, api.presentations.get(f"p{turns}"), loop)
                assert task.cancelled() is was_asked, turns
                assert (await api.presentations.get("after")).id == "after"
            assert sum(guard.ends.values()) == guard.acquired, turns
            if not was_asked:
                assert guard.ends["cancelled"] > 0
                return turns
        raise AssertionError("it did not come to an end")

    with answering(late) as server:
        assert on_turning_loop(work) > 1
