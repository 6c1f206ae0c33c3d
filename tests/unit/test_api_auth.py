"""Which token a request goes with, for how long, and what follows when the platform refuses it."""

import asyncio

import httpx
import pytest
from token_endpoint import TOKEN_URL, Clock, Platform, client, credentials

from credhook.worker.api.errors import InvalidResponse, Unauthorized
from credhook.worker.api.token import ClientCredentials, Token


async def test_a_token_is_asked_for_and_then_the_request_is_sent_with_it() -> None:
    platform = Platform()
    async with client(platform, credentials(), timeout=7.0) as api:
        await api.presentations.get("p")
    [ask], [sent] = platform.token_requests, platform.api_requests
    assert (ask.method, str(ask.url)) == ("POST", TOKEN_URL)
    assert ask.headers["content-type"] == "application/x-www-form-urlencoded"
    assert ask.content == b"grant_type=client_credentials&client_id=me&client_secret=s3cret"
    assert "authorization" not in ask.headers
    assert ask.extensions["timeout"]["read"] == 7.0
    assert sent.headers["authorization"] == "Bearer token-1"


@pytest.mark.parametrize(
    ("lifetime", "used_until"),
    [(300, 270.0), (60, 30.0), (40, 20.0), (10, 5.0), (10**9, 86_370.0)],
    ids=str,
)
async def test_a_token_is_renewed_30_seconds_early_or_at_half_of_a_short_life(lifetime: int, used_until: float) -> None:
    clock, platform = Clock(), Platform()
    platform.lifetime = lifetime
    async with client(platform, credentials(clock)) as api:
        await api.presentations.get("p")
        clock.now += used_until - 0.001
        await api.presentations.get("p")
        assert platform.granted == 1
        clock.now += 0.002
        await api.presentations.get("p")
        assert platform.granted == 2


async def test_the_lifetime_counts_from_the_question_not_from_the_answer() -> None:
    clock, platform = Clock(), Platform()

    def slow(request: httpx.Request) -> httpx.Response:
        clock.now += 100 if request.url.host == "id.example" else 0
        return platform(request)

    async with client(slow, credentials(clock)) as api:
        await api.presentations.get("p")
        clock.now += 171
        await api.presentations.get("p")
    assert platform.granted == 2


# After a 401.


async def test_after_a_401_one_fresh_token_and_one_retry() -> None:
    platform = Platform()
    async with client(platform, credentials()) as api:
        await api.presentations.get("p")
        platform.revoke()
        assert (await api.presentations.get("p")).id == "p"
    assert platform.granted == 2
    sent = [request.headers["authorization"] for request in platform.api_requests]
    assert sent == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]


async def test_a_401_to_a_fresh_token_is_final() -> None:
    platform = Platform()

    def refuses(request: httpx.Request) -> httpx.Response:
        platform.revoke()
        return platform(request)

    async with client(refuses, credentials()) as api:
        with pytest.raises(Unauthorized) as caught:
            await api.presentations.get("p")
    assert caught.value.status == 401
    assert caught.value.errors[0].code == "UNAUTHORIZED"
    assert len(platform.token_requests) == 2
    sent = [request.headers["authorization"] for request in platform.api_requests]
    assert sent == ["Bearer token-1", "Bearer token-2"]


async def test_a_client_that_the_platform_does_not_like_asks_for_two_tokens_and_not_two_for_each_call() -> None:
    clock, platform = Clock(), Platform()

    def refuses(request: httpx.Request) -> httpx.Response:
        platform.revoke()
        return platform(request)

    async with client(refuses, credentials(clock)) as api:
        for _ in range(100):
            with pytest.raises(Unauthorized):
                await api.presentations.get("p")
            clock.now += 0.09
    assert len(platform.token_requests) == 2
    assert len(platform.api_requests) == 101


async def test_a_token_that_was_refused_when_fresh_is_renewed_after_ten_seconds() -> None:
    clock, platform = Clock(), Platform()
    is_refusing = True

    def refuses_for_a_while(request: httpx.Request) -> httpx.Response:
        if is_refusing:
            platform.revoke()
        return platform(request)

    async with client(refuses_for_a_while, credentials(clock)) as api:
        with pytest.raises(Unauthorized):
            await api.presentations.get("p")
        is_refusing = False
        clock.now += 9.9
        with pytest.raises(Unauthorized):
            await api.presentations.get("p")
        clock.now += 0.2
        assert (await api.presentations.get("p")).id == "p"
    assert platform.granted == 3


async def test_another_token_than_the_one_that_was_refused_when_fresh_is_renewed_at_once() -> None:
    clock, platform = Clock(), Platform()
    dislikes = {"token-1", "token-2"}

    def refuses_two(request: httpx.Request) -> httpx.Response:
        platform.good -= dislikes
        return platform(request)

    platform.lifetime = 8  # Renewed after four seconds.
    async with client(refuses_two, credentials(clock)) as api:
        with pytest.raises(Unauthorized):
            await api.presentations.get("p")
        clock.now += 5
        assert (await api.presentations.get("p")).id == "p"
        platform.revoke()
        assert (await api.presentations.get("p")).id == "p"
    assert platform.granted == 4


async def test_a_retried_post_carries_its_body_again() -> None:
    platform = Platform()
    async with client(platform, credentials()) as api:
        await api.presentations.get("p")
        platform.revoke()
        with pytest.raises(InvalidResponse):
            await api.wallet.accept(credential_offer="openid-credential-offer://x")
    first, second = platform.api_requests[-2:]
    assert first.content == second.content == b'{"credentialOffer":"openid-credential-offer://x"}'


async def test_many_requests_refused_at_once_fetch_one_token() -> None:
    platform = Platform()
    async with client(platform, credentials()) as api:
        await api.presentations.get("p")
        platform.revoke()
        await asyncio.gather(*(api.presentations.get("p") for _ in range(50)))
    assert platform.granted == 2


async def test_a_token_to_begin_with_is_used_until_it_is_invalidated() -> None:
    platform, token = Platform(), Token("kept", renew_at=2_000.0)
    platform.good = {"kept"}
    auth = credentials()
    auth._token = token
    async with client(platform, auth) as api:
        auth.invalidate(Token("older", renew_at=1.0))
        await api.presentations.get("p")
        assert platform.token_requests == []
        auth.invalidate(token)
        await api.presentations.get("p")
    assert platform.granted == 1


# What nobody gets to see.


async def test_no_repr_shows_the_secret_or_a_token() -> None:
    platform, auth = Platform(), ClientCredentials(TOKEN_URL, "me", "s3cret")
    async with client(platform, auth) as api:
        await api.presentations.get("p")
        shown = f"{auth!r} {auth} {vars(auth)} {api!r} {vars(api)}"
    assert "s3cret" not in shown
    assert "token-1" not in shown
    assert "client_id='me'" in shown


async def test_the_token_endpoint_never_sees_a_token_and_the_api_never_the_secret() -> None:
    platform = Platform()
    async with client(platform, credentials()) as api:
        await api.presentations.get("p")
        platform.revoke()
        await api.presentations.get("p")
    assert all("authorization" not in request.headers for request in platform.token_requests)
    assert all(b"s3cret" not in request.content + request.url.raw_path for request in platform.api_requests)
