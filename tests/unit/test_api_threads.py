"""The client for plain functions in threads: calls are made on an event loop, and the thread gets what they come to."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from token_endpoint import Held, Platform, client, credentials
from waiting import until

from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.errors import Unavailable


async def test_while_a_thread_waits_the_loop_goes_on() -> None:
    held = Held()
    async with client(held, credentials()) as api, client(Platform(), credentials()) as beside:
        thread = asyncio.create_task(asyncio.to_thread(SyncApi(api).presentations.get, "p"))
        await held.asked.wait()
        assert (await beside.presentations.get("p")).id == "p"
        assert not thread.done()
        held.go.set()
        assert (await thread).id == "p"


# Where it cannot be sent.


async def test_on_the_loop_itself_it_is_a_mistake_with_a_remedy() -> None:
    platform = Platform()
    async with client(platform, credentials()) as api:
        with pytest.raises(RuntimeError, match=r"^presentations\.get: .*make the handler an `async def`"):
            SyncApi(api).presentations.get("p")
        await asyncio.sleep(0)
    assert platform.token_requests == platform.api_requests == []


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "stopped"])
def test_after_the_loop_has_ended_it_is_for_later(is_closed: bool) -> None:
    platform = Platform()
    loop = asyncio.new_event_loop()

    async def made() -> tuple[AsyncApi, SyncApi]:
        api = client(platform, credentials())
        return api, SyncApi(api)

    _, facade = loop.run_until_complete(made())
    if is_closed:
        loop.close()
    try:
        with ThreadPoolExecutor(1) as threads:
            error = threads.submit(facade.presentations.get, "p").exception()
    finally:
        loop.close()
    assert isinstance(error, Unavailable)
    assert str(error) == "presentations.get: not sent: the worker is stopping"
    assert (error.operation, error.status, error.retry_after) == ("presentations.get", None, None)
    assert platform.token_requests == []


def test_a_call_that_the_end_of_the_loop_breaks_off_is_for_later() -> None:
    asked, facades = threading.Event(), []

    async def never(_: httpx.Request) -> httpx.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def live() -> None:
        facades.append(SyncApi(client(never, credentials())))
        await asyncio.to_thread(asked.wait)  # And with that it ends, and cancels whatever is under way.

    with ThreadPoolExecutor(2) as threads:
        loop = threads.submit(lambda: asyncio.run(live()))
        (facade,) = until(lambda: facades)
        error = threads.submit(facade.presentations.get, "p").exception()
        loop.result()
    assert isinstance(error, Unavailable)
    assert error.operation == "presentations.get"


async def test_a_call_whose_token_is_given_up_is_for_later() -> None:
    held, auth = Held(), credentials()
    async with client(held, auth) as api:
        thread = asyncio.create_task(asyncio.to_thread(SyncApi(api).presentations.get, "p"))
        await held.asked.wait()
        await auth.aclose()
        with pytest.raises(Unavailable):
            await thread
