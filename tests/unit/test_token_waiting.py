"""One fetch for all who wait for a token: what each is told, and who can take it away from the others."""

import asyncio

import httpx
import pytest
from token_endpoint import Clock, CountedCredentials, Held, Platform, client, credentials
from waiting import until_async

from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError, InvalidRequest, Unauthorized, Unavailable
from credhook.worker.api.models import Presentation
from credhook.worker.api.token import ClientCredentials

Task = asyncio.Task[Presentation]


async def waiting(api: AsyncApi, auth: CountedCredentials, number: int) -> list[Task]:
    """So many calls, each of which waits for the token."""
    before = auth.asked
    tasks = [asyncio.create_task(api.presentations.get("p")) for _ in range(number)]
    await until_async(lambda: auth.asked == before + number)
    return tasks


async def test_many_tasks_without_a_token_make_one_token_request() -> None:
    held, auth = Held(), credentials()
    async with client(held, auth) as api:
        tasks = await waiting(api, auth, 50)
        held.go.set()
        assert {each.id for each in await asyncio.gather(*tasks)} == {"p"}
    assert held.platform.granted == 1
    assert len(held.platform.api_requests) == 50


async def test_all_clients_of_the_same_credentials_share_one_token_request() -> None:
    held, auth = Held(), credentials()
    async with client(held, auth) as one, client(held, auth) as other:
        tasks = [*await waiting(one, auth, 2), *await waiting(other, auth, 2)]
        held.go.set()
        await asyncio.gather(*tasks)
    assert held.platform.granted == 1


@pytest.mark.parametrize(
    "failure",
    [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), ConnectionResetError("reset")],
    ids=["refused", "slow", "reset"],
)
async def test_a_token_request_without_an_answer_fails_all_who_waited(failure: Exception) -> None:
    held, auth = Held(), credentials()
    held.failure = failure
    async with client(held, auth) as api:
        tasks = await waiting(api, auth, 20)
        held.go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in outcomes] == [Unavailable] * 20
    assert len(held.platform.token_requests) == 1
    assert type(failure).__name__ in str(outcomes[-1])


async def test_a_refused_client_fails_all_who_waited_each_with_an_error_of_their_own() -> None:
    held, auth = Held(), credentials()
    held.platform.refuse_tokens = lambda _: httpx.Response(401, json={"error": "invalid_client"})
    async with client(held, auth) as api:
        tasks = await waiting(api, auth, 20)
        held.go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in outcomes] == [Unauthorized] * 20
    assert len({id(each) for each in outcomes}) == 20
    (message,) = {str(each) for each in outcomes}
    assert message.startswith(
        "token: the token endpoint refuses this client: 401 (invalid_client); check CREDHOOK_CLIENT"
    )
    assert {each.status for each in outcomes if isinstance(each, ApiError)} == {401}
    assert {each.__context__ for each in outcomes if isinstance(each, ApiError)} == {None}
    assert len(held.platform.token_requests) == 1


async def test_after_a_failed_request_there_is_a_pause_and_then_another_request() -> None:
    platform, clock = Platform(), Clock()
    told: list[ApiError | None] = []
    auth = credentials(clock)
    auth.on_fetch = told.append
    platform.refuse_tokens = lambda _: httpx.Response(503, headers={"retry-after": "30"})
    async with client(platform, auth) as api:
        for waited, left in ((0.0, 30.0), (10.0, 20.0), (19.0, 1.0)):
            clock.now += waited
            with pytest.raises(Unavailable) as caught:
                await api.presentations.get("p")
            assert caught.value.retry_after == pytest.approx(left)
            assert caught.value.operation == "token"
        assert len(platform.token_requests) == 1
        clock.now += 1.1
        platform.refuse_tokens = None
        assert (await api.presentations.get("p")).id == "p"
    assert [None if error is None else error.status for error in told] == [503, None]


async def test_pauses_after_refusals_grow_to_a_minute() -> None:
    platform, clock = Platform(), Clock()
    platform.refuse_tokens = lambda _: httpx.Response(401, json={"error": "invalid_client"})
    pauses = []
    async with client(platform, credentials(clock)) as api:
        for _ in range(8):
            with pytest.raises(Unauthorized) as caught:
                await api.presentations.get("p")
            pauses.append(caught.value.retry_after or 0.0)
            clock.now += pauses[-1]
    assert len(platform.token_requests) == 8
    assert 1.0 <= pauses[0] <= 2.0
    assert 30.0 <= pauses[-1] <= 60.0


async def test_a_token_url_that_is_none_fails_everyone_at_once() -> None:
    auth = ClientCredentials("https://id.example:port/", "me", "s3cret")
    async with client(Platform(), auth) as api:
        outcomes = await asyncio.gather(*(api.presentations.get("p") for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [InvalidRequest] * 3


# Who is cancelled, and who is not.


@pytest.mark.parametrize("who", [0, 1, 4], ids=["who asked first", "another", "the last"])
async def test_cancelling_one_who_waits_does_not_take_the_fetch_away_from_the_others(who: int) -> None:
    held, auth = Held(), credentials()
    async with client(held, auth) as api:
        tasks = await waiting(api, auth, 5)
        await held.asked.wait()
        tasks[who].cancel()
        await asyncio.wait([tasks[who]])
        held.go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes.pop(who), asyncio.CancelledError)
    assert [getattr(each, "id", each) for each in outcomes] == ["p"] * 4
    assert held.platform.granted == 1


async def test_cancelling_all_who_wait_leaves_the_token_to_whoever_comes_next() -> None:
    held, auth = Held(), credentials()
    async with client(held, auth) as api:
        tasks = await waiting(api, auth, 3)
        await held.asked.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        (late,) = await waiting(api, auth, 1)
        held.go.set()
        assert (await late).id == "p"
    assert held.platform.granted == 1


async def test_a_fetch_that_is_given_up_is_an_error_for_none_who_waited_and_the_next_fetches_anew() -> None:
    held, auth = Held(), credentials()
    async with client(held, auth) as api:
        tasks = await waiting(api, auth, 3)
        await held.asked.wait()
        await auth.aclose()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in outcomes] == [asyncio.CancelledError] * 3
        assert held.platform.token_requests == held.platform.api_requests == []
        held.go.set()
        assert (await api.presentations.get("p")).id == "p"
    assert held.platform.granted == 1


async def test_to_give_up_where_nothing_is_under_way_does_nothing() -> None:
    platform, auth = Platform(), credentials()
    await auth.aclose()
    async with client(platform, auth) as api:
        await api.presentations.get("p")
        await auth.aclose()
        await api.presentations.get("p")
    assert platform.granted == 1
