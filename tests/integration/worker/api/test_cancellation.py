"""A call to the platform that is cancelled after any turn of the event loop."""

import time

import pytest

from credhook.worker.api.token import ClientCredentials
from support.cancellation import TurningLoop, cancelled_after, on_turning_loop
from support.platform.scripted_server import PRESENTATION, TOKEN, answering, presentation
from support.platform.token_endpoint import Book
from support.platform.transports import api_over


def late(target: str, _: int) -> bytes:
    """Answer after turns of the loop in which the call can be cancelled while it waits."""
    name = target.removeprefix(PRESENTATION)
    time.sleep(0.1 if name.startswith("p") else 0)
    return presentation(name)


@pytest.mark.parametrize("kept", [False, True], ids=["over a new connection", "over a kept one"])
def test_a_call_can_be_cancelled_after_any_turn_of_the_loop(kept: bool, carrier: str) -> None:
    """It ends, its permit hears of it, and the next call gets its own answer."""

    async def work(loop: TurningLoop) -> int:
        guard = Book()
        auth = ClientCredentials(server.url + TOKEN, "me", "s3cret")
        for turns in range(1_000):
            async with api_over(carrier, server.url, auth, timeout=60.0, guard=guard) as api:
                if kept:
                    await api.presentations.get("before")
                task, was_asked = await cancelled_after(turns, api.presentations.get(f"p{turns}"), loop)
                assert task.cancelled() is was_asked, turns
                assert (await api.presentations.get("after")).id == "after"
            assert len(guard.heard) == len(guard.acquired), turns
            if not was_asked:
                assert ("cancelled",) in guard.heard
                return turns
        raise AssertionError("it did not come to an end")

    with answering(late) as server:
        assert on_turning_loop(work) > 1
