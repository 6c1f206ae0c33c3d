import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from waiting import until, until_async

from credhook.worker.api.auth import ClientCredentials
from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.errors import ApiError, InvalidRequest, NotAuthenticated, NotUnderstood, TryLater
from credhook.worker.api.tokens import Token, TokenCache
from credhook.worker.api.tokens import granted as read_token

TOKEN_URL = "https://id.example/realms/r/protocol/openid-connect/token"
API_URL = "https://api.example"


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Platform:
    """An identity provider and an API behind one transport. A token is good until `revoke`."""

    def __init__(self) -> None:
        self.granted = 0
        self.good: set[str] = set()
        self.token_requests: list[httpx.Request] = []
        self.api_requests: list[httpx.Request] = []
        self.refuse_tokens: Callable[[httpx.Request], httpx.Response] | None = None
        self.lifetime = 300

    def revoke(self) -> None:
        self.good.clear()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "id.example":
            return self._token(request)
        self.api_requests.append(request)
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.good:
            return httpx.Response(401, json={"errors": [{"detail": "Expired", "code": "UNAUTHORIZED"}]})
        return httpx.Response(200, json={"data": {"id": "p", "status": "verified"}})

    def _token(self, request: httpx.Request) -> httpx.Response:
        self.token_requests.append(request)
        if self.refuse_tokens:
            return self.refuse_tokens(request)
        self.granted += 1
        token = f"token-{self.granted}"
        self.good.add(token)
        return granted(token, self.lifetime)


def granted(token: str, lifetime: int = 300) -> httpx.Response:
    return httpx.Response(
        200,
        json={"access_token": token, "expires_in": lifetime, "refresh_expires_in": 0, "token_type": "Bearer"},
    )


class Held:
    """A platform whose token endpoint answers when the test lets it."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.failure: Exception | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "id.example":
            self.asked.set()
            await self.go.wait()
            if self.failure:
                self.platform.token_requests.append(request)
                raise self.failure
        return self.platform(request)


def credentials(clock: Clock | None = None, tokens: TokenCache | None = None) -> ClientCredentials:
    return ClientCredentials(TOKEN_URL, "me", "s3cret", clock=clock or Clock(), tokens=tokens)


def sync_api(platform: Callable[[httpx.Request], httpx.Response], auth: ClientCredentials) -> SyncApi:
    return SyncApi(API_URL, auth, transport=httpx.MockTransport(platform))


def async_api(platform: Any, auth: ClientCredentials) -> AsyncApi:
    return AsyncApi(API_URL, auth, transport=httpx.MockTransport(platform))


class Counted(TokenCache):
    """A token cache that counts how often it was asked: each request asks before it fetches or waits."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def get(self) -> Token | None:
        self.asked += 1
        return super().get()


# The flow alone, driven by hand: no client, no network.


def test_the_flow_asks_for_a_token_and_then_sends_the_request_with_it() -> None:
    request = httpx.Request("GET", f"{API_URL}/x", extensions={"timeout": {"read": 7.0}})
    flow = credentials().steps(request)
    ask = next(flow)
    assert isinstance(ask, httpx.Request)
    assert str(ask.url) == TOKEN_URL
    assert ask.method == "POST"
    assert ask.headers["content-type"] == "application/x-www-form-urlencoded"
    assert ask.content == b"grant_type=client_credentials&client_id=me&client_secret=s3cret"
    assert "authorization" not in ask.headers
    assert ask.extensions["timeout"] == {"read": 7.0}
    sent = flow.send(granted("t1"))
    assert sent is request
    assert request.headers["authorization"] == "Bearer t1"
    with pytest.raises(StopIteration):
        flow.send(httpx.Response(200))


def test_the_flow_ends_with_the_second_401() -> None:
    flow = credentials().steps(httpx.Request("GET", API_URL))
    next(flow)
    flow.send(granted("t1"))
    again = flow.send(httpx.Response(401))
    assert isinstance(again, httpx.Request)
    assert str(again.url) == TOKEN_URL
    retried = flow.send(granted("t2"))
    assert isinstance(retried, httpx.Request)
    assert retried.headers["authorization"] == "Bearer t2"
    with pytest.raises(StopIteration):
        flow.send(httpx.Response(401))


def test_a_second_flow_waits_for_the_first_ones_token() -> None:
    auth = credentials()
    first, second = (auth.steps(httpx.Request("GET", API_URL)) for _ in range(2))
    next(first)
    flight = next(second)
    assert isinstance(flight, Future)
    first.send(granted("t1"))
    request = second.send(None)
    assert isinstance(request, httpx.Request)
    assert request.headers["authorization"] == "Bearer t1"


def test_a_flow_given_up_hands_the_fetch_to_another() -> None:
    auth = credentials()
    first, second, third = (auth.steps(httpx.Request("GET", API_URL)) for _ in range(3))
    next(first)
    flight = next(second)
    next(third)
    first.close()
    assert isinstance(flight, Future)
    assert flight.done()
    ask = second.send(None)
    assert isinstance(ask, httpx.Request)
    assert str(ask.url) == TOKEN_URL
    assert isinstance(third.send(None), Future)


@pytest.mark.parametrize(
    ("lifetime", "used_until"),
    [(300, 270.0), (60, 30.0), (40, 20.0), (10, 5.0), (10**9, 86_370.0)],
    ids=str,
)
def test_a_token_is_renewed_30_seconds_early_or_at_half_of_a_short_life(lifetime: int, used_until: float) -> None:
    clock, platform = Clock(), Platform()
    platform.lifetime = lifetime
    with sync_api(platform, credentials(clock)) as api:
        api.presentations.get("p")
        clock.now += used_until - 0.001
        api.presentations.get("p")
        assert platform.granted == 1
        clock.now += 0.002
        api.presentations.get("p")
        assert platform.granted == 2


def test_the_lifetime_counts_from_the_question_not_from_the_answer() -> None:
    clock, platform = Clock(), Platform()

    def slow(request: httpx.Request) -> httpx.Response:
        clock.now += 100 if request.url.host == "id.example" else 0
        return platform(request)

    with sync_api(slow, credentials(clock)) as api:
        api.presentations.get("p")
        clock.now += 171
        api.presentations.get("p")
    assert platform.granted == 2


# After a 401.


def test_after_a_401_one_fresh_token_and_one_retry() -> None:
    platform = Platform()
    with sync_api(platform, credentials()) as api:
        api.presentations.get("p")
        platform.revoke()
        assert api.presentations.get("p").id == "p"
    assert platform.granted == 2
    assert len(platform.api_requests) == 3


def test_a_401_to_a_fresh_token_is_final() -> None:
    platform = Platform()

    def refuses(request: httpx.Request) -> httpx.Response:
        platform.revoke()
        return platform(request)

    with sync_api(refuses, credentials()) as api, pytest.raises(NotAuthenticated) as caught:
        api.presentations.get("p")
    assert caught.value.status == 401
    assert caught.value.errors[0].code == "UNAUTHORIZED"
    assert len(platform.token_requests) == 2
    assert len(platform.api_requests) == 2


def test_a_client_that_the_platform_does_not_like_asks_for_two_tokens_and_not_two_for_each_call() -> None:
    clock, platform = Clock(), Platform()

    def refuses(request: httpx.Request) -> httpx.Response:
        platform.revoke()
        return platform(request)

    with sync_api(refuses, credentials(clock)) as api:
        for _ in range(100):
            with pytest.raises(NotAuthenticated):
                api.presentations.get("p")
            clock.now += 0.09
    assert len(platform.token_requests) == 2
    assert len(platform.api_requests) == 101


def test_a_token_that_was_refused_when_fresh_is_renewed_after_ten_seconds() -> None:
    clock, platform = Clock(), Platform()
    is_refusing = True

    def refuses_for_a_while(request: httpx.Request) -> httpx.Response:
        if is_refusing:
            platform.revoke()
        return platform(request)

    with sync_api(refuses_for_a_while, credentials(clock)) as api:
        with pytest.raises(NotAuthenticated):
            api.presentations.get("p")
        is_refusing = False
        clock.now += 9.9
        with pytest.raises(NotAuthenticated):
            api.presentations.get("p")
        clock.now += 0.2
        assert api.presentations.get("p").id == "p"
    assert platform.granted == 3


def test_another_token_than_the_one_that_was_refused_when_fresh_is_renewed_at_once() -> None:
    clock, platform = Clock(), Platform()
    dislikes = {"token-1", "token-2"}

    def refuses_two(request: httpx.Request) -> httpx.Response:
        platform.good -= dislikes
        return platform(request)

    platform.lifetime = 8  # Renewed after four seconds.
    with sync_api(refuses_two, credentials(clock)) as api:
        with pytest.raises(NotAuthenticated):
            api.presentations.get("p")
        clock.now += 5
        assert api.presentations.get("p").id == "p"
        platform.revoke()
        assert api.presentations.get("p").id == "p"
    assert platform.granted == 4


@pytest.mark.parametrize(
    ("expires_in", "used_until"),
    [("null", 270.0), ("300.5", 270.5), ('"300"', 270.0), ('"60.5"', 30.5), ("1e999", 86_370.0), (None, 270.0)],
)
def test_a_lifetime_is_read_in_every_form_that_servers_give_it(expires_in: str | None, used_until: float) -> None:
    stated = f',"expires_in":{expires_in}' if expires_in else ""
    for type_ in ("", ',"token_type":null', ',"token_type":"bearer"'):
        token = read_token(httpx.Response(200, content=f'{{"access_token":"t"{stated}{type_}}}'), 1_000.0)
        assert (token.value, token.renew_at) == ("t", 1_000.0 + used_until)


def test_a_retried_post_carries_its_body_again() -> None:
    platform = Platform()
    with sync_api(platform, credentials()) as api:
        api.presentations.get("p")
        platform.revoke()
        with pytest.raises(NotUnderstood):
            api.wallet.accept("openid-credential-offer://x")
    first, second = platform.api_requests[-2:]
    assert first.content == second.content == b'{"credentialOffer":"openid-credential-offer://x"}'


async def test_many_requests_refused_at_once_fetch_one_token() -> None:
    platform = Platform()
    async with async_api(platform, credentials()) as api:
        await api.presentations.get("p")
        platform.revoke()
        await asyncio.gather(*(api.presentations.get("p") for _ in range(50)))
    assert platform.granted == 2


def test_invalidating_an_old_token_leaves_the_new_one() -> None:
    tokens, old, new = TokenCache(), Token("old", 1.0), Token("new", 2.0)
    tokens.replace(old)
    tokens.replace(new)
    tokens.invalidate(old)
    assert tokens.get() == new
    tokens.invalidate(new)
    assert tokens.get() is None


# One flight for all who wait.


async def test_many_tasks_without_a_token_make_one_token_request() -> None:
    held, tokens = Held(Platform()), Counted()
    async with async_api(held, credentials(tokens=tokens)) as api:
        tasks = [asyncio.create_task(api.presentations.get("p")) for _ in range(50)]
        await until_async(lambda: tokens.asked == 50)
        held.go.set()
        assert {each.id for each in await asyncio.gather(*tasks)} == {"p"}
    assert held.platform.granted == 1
    assert len(held.platform.api_requests) == 50


def test_many_threads_without_a_token_make_one_token_request() -> None:
    platform, tokens = Platform(), Counted()

    def held(request: httpx.Request) -> httpx.Response:
        if request.url.host == "id.example":
            until(lambda: tokens.asked == 16)
        return platform(request)

    with sync_api(held, credentials(tokens=tokens)) as api, ThreadPoolExecutor(16) as threads:
        assert {each.id for each in threads.map(api.presentations.get, ["p"] * 16)} == {"p"}
    assert platform.granted == 1


async def test_tasks_and_threads_share_one_token_request() -> None:
    held, tokens = Held(Platform()), Counted()
    auth = credentials(tokens=tokens)
    async with async_api(held, auth) as api:
        with sync_api(held.platform, auth) as other:
            task = asyncio.create_task(api.presentations.get("p"))
            await held.asked.wait()
            thread = asyncio.create_task(asyncio.to_thread(other.presentations.get, "p"))
            await until_async(lambda: tokens.asked == 2)
            held.go.set()
            await asyncio.gather(task, thread)
    assert held.platform.granted == 1


@pytest.mark.parametrize(
    "failure",
    [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), ConnectionResetError("reset")],
    ids=["refused", "slow", "reset"],
)
async def test_a_token_request_without_an_answer_fails_all_who_waited(failure: Exception) -> None:
    held, tokens = Held(Platform()), Counted()
    held.failure = failure
    async with async_api(held, credentials(tokens=tokens)) as api:
        tasks = [asyncio.create_task(api.presentations.get("p")) for _ in range(20)]
        await until_async(lambda: tokens.asked == 20)
        held.go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in outcomes] == [TryLater] * 20
    assert len(held.platform.token_requests) == 1
    assert type(failure).__name__ in str(outcomes[-1])


def test_a_token_request_without_an_answer_fails_all_threads_that_waited() -> None:
    asked: list[httpx.Request] = []
    tokens = Counted()

    def unreachable(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        until(lambda: tokens.asked == 8)
        raise httpx.ConnectError("refused")

    with sync_api(unreachable, credentials(tokens=tokens)) as api, ThreadPoolExecutor(8) as threads:

        def get(_: int) -> ApiError:
            with pytest.raises(ApiError) as caught:
                api.presentations.get("p")
            return caught.value

        assert {type(each) for each in threads.map(get, range(8))} == {TryLater}
    assert len(asked) == 1


async def test_a_refused_client_fails_all_who_waited_each_with_an_error_of_their_own() -> None:
    held, tokens = Held(Platform()), Counted()
    held.platform.refuse_tokens = lambda _: httpx.Response(401, json={"error": "invalid_client"})
    async with async_api(held, credentials(tokens=tokens)) as api:
        tasks = [asyncio.create_task(api.presentations.get("p")) for _ in range(20)]
        await until_async(lambda: tokens.asked == 20)
        held.go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in outcomes] == [NotAuthenticated] * 20
    assert len({id(each) for each in outcomes}) == 20
    (message,) = {str(each) for each in outcomes}
    assert message.startswith(
        "token: the token endpoint refuses this client: 401 (invalid_client); check CREDHOOK_CLIENT"
    )
    assert {each.status for each in outcomes if isinstance(each, ApiError)} == {401}
    assert len(held.platform.token_requests) == 1


async def test_cancelling_the_one_who_fetches_does_not_fail_the_others() -> None:
    held, tokens = Held(Platform()), Counted()
    async with async_api(held, credentials(tokens=tokens)) as api:
        tasks = [asyncio.create_task(api.presentations.get("p")) for _ in range(5)]
        await until_async(lambda: tokens.asked == 5)
        tasks[0].cancel()
        held.go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert [getattr(each, "id", each) for each in outcomes[1:]] == ["p"] * 4
    assert held.platform.granted == 1


async def test_cancelling_one_who_waits_does_not_cancel_the_fetch() -> None:
    held, tokens = Held(Platform()), Counted()
    async with async_api(held, credentials(tokens=tokens)) as api:
        tasks = [asyncio.create_task(api.presentations.get("p")) for _ in range(3)]
        await until_async(lambda: tokens.asked == 3)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        held.go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert [getattr(each, "id", each) for each in (outcomes[0], outcomes[2])] == ["p", "p"]
    assert held.platform.granted == 1


async def test_after_a_failed_fetch_the_next_request_tries_again() -> None:
    platform = Platform()
    platform.refuse_tokens = lambda _: httpx.Response(503, headers={"retry-after": "3"})
    async with async_api(platform, credentials()) as api:
        with pytest.raises(TryLater) as caught:
            await api.presentations.get("p")
        assert caught.value.retry_after == 3.0
        assert caught.value.operation == "token"
        platform.refuse_tokens = None
        assert (await api.presentations.get("p")).id == "p"


async def test_a_token_url_that_is_none_fails_everyone_at_once() -> None:
    auth = ClientCredentials("https://id.example:port/", "me", "s3cret")
    async with async_api(Platform(), auth) as api:
        outcomes = await asyncio.gather(*(api.presentations.get("p") for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [InvalidRequest] * 3


# What the token endpoint may answer.


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(400, json={"error": "unauthorized_client"}), NotAuthenticated),
        (httpx.Response(400, json={"error": {"not": "a code"}}), NotAuthenticated),
        (httpx.Response(401, content=b"<html>"), NotAuthenticated),
        (httpx.Response(403), NotAuthenticated),
        (httpx.Response(404, json={"error": "Realm does not exist"}), NotAuthenticated),
        (httpx.Response(408), TryLater),
        (httpx.Response(429), TryLater),
        (httpx.Response(500), TryLater),
        (httpx.Response(302, headers={"location": "https://elsewhere.example/"}), NotUnderstood),
        (httpx.Response(200, content=b"not json"), NotUnderstood),
        (httpx.Response(200, content=b"[" * 100_000), NotUnderstood),
        (httpx.Response(200, json=[]), NotUnderstood),
        (httpx.Response(200, json={"token_type": "Bearer"}), NotUnderstood),
        (httpx.Response(200, json={"access_token": "a", "token_type": ""}), NotUnderstood),
        (httpx.Response(200, json={"access_token": "a", "token_type": "mac"}), NotUnderstood),
        (httpx.Response(200, json={"access_token": "", "token_type": "Bearer"}), NotUnderstood),
        (httpx.Response(200, json={"access_token": "a\r\nx: y", "token_type": "Bearer"}), NotUnderstood),
        (httpx.Response(200, json={"access_token": "ä", "token_type": "Bearer"}), NotUnderstood),
        *(
            (httpx.Response(200, text=f'{{"access_token": "a", "expires_in": {value}}}'), NotUnderstood)
            for value in ("-1", "true", '"soon"', '""', "[]", "{}", '"nan"')
        ),
        (httpx.Response(200, content=b"x" * (4 * 1024 * 1024 + 1)), NotUnderstood),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value.status_code),
)
def test_what_is_not_a_token_is_an_error_of_the_right_kind(answer: httpx.Response, error: type[ApiError]) -> None:
    platform = Platform()
    platform.refuse_tokens = lambda _: answer
    with sync_api(platform, credentials()) as api, pytest.raises(error) as caught:
        api.presentations.get("p")
    assert type(caught.value) is error
    assert platform.api_requests == []
    assert "\n" not in str(caught.value)


def test_a_token_without_a_lifetime_is_used_for_the_specified_one() -> None:
    clock, platform = Clock(), Platform()
    platform.refuse_tokens = lambda _: httpx.Response(200, json={"access_token": "a", "token_type": "bearer"})
    platform.good = {"a"}
    with sync_api(platform, credentials(clock)) as api:
        api.presentations.get("p")
        clock.now += 269
        api.presentations.get("p")
        assert len(platform.token_requests) == 1
        clock.now += 2
        api.presentations.get("p")
        assert len(platform.token_requests) == 2


# What nobody gets to see.


def test_no_repr_shows_the_secret_or_a_token() -> None:
    platform, tokens = Platform(), TokenCache()
    auth = ClientCredentials(TOKEN_URL, "me", "s3cret", tokens=tokens)
    with sync_api(platform, auth) as api:
        api.presentations.get("p")
        shown = f"{auth!r} {auth} {vars(auth)} {tokens!r} {vars(tokens)} {tokens.get()!r} {api!r}"
    assert "s3cret" not in shown
    assert "token-1" not in shown
    assert "client_id='me'" in shown


def test_the_token_endpoint_never_sees_a_token_and_the_api_never_the_secret() -> None:
    platform = Platform()
    with sync_api(platform, credentials()) as api:
        api.presentations.get("p")
        platform.revoke()
        api.presentations.get("p")
    assert all("authorization" not in request.headers for request in platform.token_requests)
    assert all(b"s3cret" not in request.content + request.url.raw_path for request in platform.api_requests)
