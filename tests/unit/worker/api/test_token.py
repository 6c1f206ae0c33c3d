"""The token: how it is asked for, what may be answered, who waits for it, and how long it is used."""

import asyncio
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle, pairwise
from urllib.parse import parse_qsl

import httpx
import pytest
from pydantic import SecretStr

from credhook.settings import PlatformSettings
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError, InvalidResponse, NotFound, Unauthorized, Unavailable
from credhook.worker.api.http.exchange import Response
from credhook.worker.api.models import Presentation
from credhook.worker.api.token import ClientCredentials, Token, TokenAuth, granted
from support.platform.token_endpoint import TOKEN_URL, CountedCredentials, Held, Platform, behind, client, credentials
from support.platform.transports import sender_of
from support.process.fake_children import Clock
from support.virtual_time import on_own_clock
from support.waiting import until_async

LONGEST = "t" * 16_384


@pytest.mark.parametrize("method", ["post", "basic"])
async def test_a_secret_that_cannot_be_sent_is_an_error_that_does_not_show_it(method: TokenAuth) -> None:
    platform = Platform()
    with pytest.raises(Unavailable, match=r"^token: the request cannot be sent ") as caught:
        await ClientCredentials(TOKEN_URL, "me", "s3cret\ud800", method=method).token(behind(platform))
    assert platform.token_requests == []
    assert "s3cret" not in str(caught.value)


async def test_the_settings_say_how_and_for_what_a_token_is_asked() -> None:
    environment = {
        "CREDHOOK_API_URL": "https://api.example",
        "CREDHOOK_TOKEN_URL": TOKEN_URL,
        "CREDHOOK_CLIENT_ID": "me:you",
        "CREDHOOK_CLIENT_SECRET": "p:w%d+ /ä",
        "CREDHOOK_TOKEN_AUTH": "basic",
        "CREDHOOK_SCOPE": "read:details write",
        "CREDHOOK_AUDIENCE": "https://api.example",
        "CREDHOOK_RESOURCE": "https://one.example/x urn:two",
    }
    platform = Platform()
    await ClientCredentials.from_settings(PlatformSettings.model_validate(environment)).token(behind(platform))
    (request,) = platform.token_requests
    scheme, _, encoded = request.headers["Authorization"].partition(" ")
    assert (scheme, b64decode(encoded)) == ("Basic", b"me%3Ayou:p%3Aw%25d%2B%20%2F%C3%A4")
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert parse_qsl(request.content.decode("ascii"), keep_blank_values=True) == [
        ("grant_type", "client_credentials"),
        ("scope", "read:details write"),
        ("audience", "https://api.example"),
        ("resource", "https://one.example/x"),
        ("resource", "urn:two"),
    ]


@pytest.mark.parametrize(
    ("expires_in", "used_until"),
    [
        *((None, 270.0), ("null", 270.0), ("300.5", 270.5), ('"300"', 270.0), ('"60.5"', 30.5), ('"3600s"', 3_570.0)),
        *(("40", 20.0), ("10", 10.0), ("0.1", 10.0), ("1e999", 86_370.0), ("9223372036854775807", 86_370.0)),
        *((text, 270.0) for text in ("0", "-1", '"-1"', '"0"', '""', '"soon"', "[]", "{}", "true", '"nan"', "NaN")),
        ('"2026-12-01T00:00:00Z"', 270.0),
    ],
)
def test_a_lifetime_is_read_in_every_form_that_servers_give_it(expires_in: str | None, used_until: float) -> None:
    stated = f',"expires_in":{expires_in}' if expires_in else ""
    for type_ in ("null", '"bearer "', '"BearerToken"', '"jwt-bearer"', '"Application Access Token"', '""', "[]", "7"):
        body = f'{{"access_token":"{LONGEST}\\n","token_type":{type_}{stated},"error":"none"}}'
        token = granted(Response(200, {}, body.encode()), 1_000.0)
        assert (token.value, token.renew_at) == (LONGEST, 1_000.0 + used_until)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(400, json={"error": {"not": "a code"}}), Unauthorized),
        (httpx.Response(401, content=b"<html>"), Unauthorized),
        (httpx.Response(404, json={"error": "Realm does not exist"}), Unauthorized),
        (httpx.Response(429), Unavailable),
        (httpx.Response(302, headers={"location": "https://elsewhere.example/"}), InvalidResponse),
        (httpx.Response(200, json={"error": "incorrect_client_credentials", "error_description": "x"}), Unauthorized),
        (httpx.Response(200, json={"error": "", "msg": "invalid credential"}), InvalidResponse),
        (httpx.Response(200, content=b"not json"), InvalidResponse),
        (httpx.Response(200, json={"token_type": "Bearer"}), InvalidResponse),
        *(
            (httpx.Response(200, json={"access_token": "a", "token_type": other}), InvalidResponse)
            for other in ("mac", "DPoP", " pop")
        ),
        (httpx.Response(200, json={"access_token": "", "token_type": "Bearer"}), InvalidResponse),
        (httpx.Response(200, json={"access_token": "a\r\nx: y", "token_type": "Bearer"}), InvalidResponse),
        (httpx.Response(200, json={"access_token": "ä", "token_type": "Bearer"}), InvalidResponse),
        (httpx.Response(200, json={"access_token": LONGEST + "t", "token_type": "Bearer"}), InvalidResponse),
        (httpx.Response(200, content=b"x" * (4 * 1024 * 1024 + 1)), InvalidResponse),
        (httpx.Response(200, stream=httpx.ByteStream(b"x"), headers={"content-encoding": "br"}), InvalidResponse),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value.status_code),
)
async def test_answers_that_are_not_tokens_raise_the_right_error(answer: httpx.Response, error: type[ApiError]) -> None:
    platform = Platform()
    platform.refuse_tokens = lambda _: answer
    async with client(platform, credentials()) as api:
        with pytest.raises(error) as caught:
            await api.presentations.get("p")
    assert type(caught.value) is error
    assert caught.value.operation == "token"
    assert platform.api_requests == []
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "settings"),
    [
        ("invalid_client", "CREDHOOK_CLIENT_ID, CREDHOOK_CLIENT_SECRET, CREDHOOK_TOKEN_AUTH and CREDHOOK_TOKEN_URL"),
        ("invalid_scope", "CREDHOOK_SCOPE"),
        ("invalid_target", "CREDHOOK_AUDIENCE and CREDHOOK_RESOURCE"),
    ],
)
async def test_a_refusal_names_its_code_and_the_settings_that_it_concerns(code: str, settings: str) -> None:
    platform = Platform()
    platform.refuse_tokens = lambda _: httpx.Response(400, text=f'{{"error" : "{code}", "errors": {{"id": 7}}}}')
    async with client(platform, credentials()) as api:
        with pytest.raises(Unauthorized) as caught:
            await api.presentations.get("p")
    assert str(caught.value) == f"token: the token endpoint refuses this client: 400 ({code}); check {settings}"
    assert [error.id for error in caught.value.errors] == ["7"]


# One fetch for all who wait for a token: what each is told, and who can take it away from the others.

Task = asyncio.Task[Presentation]


async def waiting(api: AsyncApi, auth: CountedCredentials, number: int) -> list[Task]:
    """So many calls, each of which waits for the token."""
    before = auth.asked
    tasks = [asyncio.create_task(api.presentations.get("p")) for _ in range(number)]
    await until_async(lambda: auth.asked == before + number)
    return tasks


async def test_refused_client_gives_each_waiting_caller_its_own_error() -> None:
    held, auth = Held(), credentials()
    held.platform.refuse_tokens = lambda _: httpx.Response(401, json={"error": "invalid_client"})
    async with client(held, auth) as api:
        tasks = await waiting(api, auth, 20)
        held.go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in outcomes] == [Unauthorized] * 20
    assert len({id(each) for each in outcomes}) == 20
    (message,) = {str(each) for each in outcomes}
    assert message.startswith("token: the token endpoint refuses this client: 401 (invalid_client); check")
    assert {each.status for each in outcomes if isinstance(each, ApiError)} == {401}
    assert len(held.platform.token_requests) == 1


@pytest.mark.parametrize(("asked", "pause"), [(30, 30.0), (86_400, 60.0)])
async def test_after_a_failed_request_there_is_a_pause_and_then_another_request(asked: int, pause: float) -> None:
    platform, clock = Platform(), Clock()
    told: list[ApiError | None] = []
    auth = credentials(clock)
    auth.on_fetch = told.append

    def refuses_slowly(_: httpx.Request) -> httpx.Response:
        clock.now += 100
        return httpx.Response(503, headers={"retry-after": str(asked)})

    platform.refuse_tokens = refuses_slowly
    async with client(platform, auth) as api:
        for waited, left in ((0.0, pause), (10.0, pause - 10.0), (pause - 11.0, 1.0)):
            clock.now += waited
            with pytest.raises(Unavailable) as caught:
                await api.presentations.get("p")
            assert caught.value.retry_after == pytest.approx(left)
            assert caught.value.operation == "token"
            assert caught.value is not told[0]  # To each an error of its own.
        assert len(platform.token_requests) == 1
        clock.now += 1.1
        platform.refuse_tokens = None
        assert (await api.presentations.get("p")).id == "p"
    assert [None if error is None else error.status for error in told] == [503, None]


async def test_pauses_after_failures_grow_to_a_minute() -> None:
    platform, clock, statuses = Platform(), Clock(), cycle([401, 503])
    platform.refuse_tokens = lambda _: httpx.Response(next(statuses), headers={"retry-after": "1"})
    pauses = []
    async with client(platform, credentials(clock)) as api:
        for error in (Unauthorized, Unavailable) * 4:
            with pytest.raises(error) as caught:
                await api.presentations.get("p")
            pauses.append(caught.value.retry_after or 0.0)
            clock.now += pauses[-1]
        assert len(platform.token_requests) == 8
        refuse, platform.refuse_tokens = platform.refuse_tokens, None
        await api.presentations.get("p")
        platform.refuse_tokens, clock.now = refuse, clock.now + 300
        with pytest.raises(Unauthorized) as again:
            await api.presentations.get("p")
    assert 1.0 <= (again.value.retry_after or 0.0) <= 2.0
    assert 1.0 <= pauses[0] <= 2.0
    assert 30.0 <= pauses[-1] <= 60.0
    assert len(set(pauses)) == 8  # A fleet does not ask at one moment.


@on_own_clock
async def test_idle_process_keeps_a_valid_token() -> None:
    platform, clock = Platform(), Clock()
    auth, told = credentials(clock), list[ApiError | None]()
    auth.on_fetch = told.append
    keeping = asyncio.create_task(auth.keep(behind(platform)))
    for status in (401, None, 401):
        platform.refuse_tokens = (lambda _: httpx.Response(401)) if status else None
        clock.now += 300
        await asyncio.sleep(3)
    keeping.cancel()
    assert [None if error is None else error.status for error in told] == [401, None, 401]


@pytest.mark.parametrize("who", [[0], [1], [4], range(5)], ids=["who asked first", "another", "the last", "all"])
async def test_cancelled_caller_does_not_end_the_shared_fetch(
    who: Sequence[int],
) -> None:
    held, auth = Held(), credentials()
    async with client(held, auth) as one, client(held, auth) as other:
        tasks = [*await waiting(one, auth, 3), *await waiting(other, auth, 2)]
        await held.asked.wait()
        for number in who:
            tasks[number].cancel()
        await asyncio.wait([tasks[number] for number in who])
        tasks += await waiting(one, auth, 1)
        await sender_of(other).aclose()  # The credentials are not its own.
        held.go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [getattr(each, "id", type(each)) for each in outcomes] == [
        asyncio.CancelledError if number in who else RuntimeError if number in {3, 4} else "p" for number in range(6)
    ]
    assert held.platform.granted == 1


async def test_abandoned_fetch_is_begun_anew_by_the_next_caller() -> None:
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


# Which token a request goes with, for how long, and what follows when the platform refuses it.


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


async def test_after_a_401_one_fresh_token_and_one_retry_with_the_same_body() -> None:
    platform = Platform()

    def lacks_a_wallet(request: httpx.Request) -> httpx.Response:
        answer = platform(request)
        return httpx.Response(404) if answer.is_success and "wallet" in request.url.path else answer

    clock = Clock()
    async with client(lacks_a_wallet, credentials(clock)) as api:
        for _ in range(2):
            clock.now += 10
            await api.presentations.get("p")
            platform.revoke()
            with pytest.raises(NotFound):
                await api.wallet.accept(credential_offer="openid-credential-offer://x")
    assert platform.granted == 3
    for ask in platform.token_requests:
        assert "authorization" not in ask.headers
        assert ask.content == b"grant_type=client_credentials&client_id=me&client_secret=s3cret"
    sent = [(request.headers["authorization"], request.content) for request in platform.api_requests]
    body = b'{"credentialOffer":"openid-credential-offer://x"}'
    tokens = pairwise(f"Bearer token-{number}" for number in (1, 2, 3))
    assert sent == [one for old, new in tokens for one in ((old, b""), (old, body), (new, body))]


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


@pytest.mark.parametrize("lifetime", [-1, 0, 1, 5, 9])
async def test_tokens_are_asked_for_every_ten_seconds_at_most(lifetime: int) -> None:
    """Such a platform refuses each token after its lifetime, or after a second where it gives none."""
    clock, platform = Clock(), Platform()
    platform.lifetime = lifetime
    asked: list[float] = []

    def forgets(request: httpx.Request) -> httpx.Response:
        if request.url.host == "id.example":
            asked.append(clock.now)
        elif clock.now - asked[-1] >= max(lifetime, 1):
            platform.revoke()
        return platform(request)

    answered = 0
    async with client(forgets, credentials(clock)) as api:
        for _ in range(400):
            clock.now += 0.25
            with suppress(Unauthorized):
                await api.presentations.get("p")
                answered += 1
    assert answered
    assert 10 <= len(asked) <= 12
    assert sum(later - earlier < 10 for earlier, later in pairwise(asked)) <= 2


async def test_many_requests_refused_at_once_fetch_one_token() -> None:
    platform, auth = Platform(), credentials()
    async with client(platform, auth) as api:
        await api.presentations.get("p")
        platform.revoke()
        await asyncio.gather(*(api.presentations.get("p") for _ in range(50)))
        auth.invalidate(Token("token-1", renew_at=1.0))  # By a request whose refusal came later than the others'.
        await api.presentations.get("p")
    assert platform.granted == 2


@pytest.mark.parametrize("method", ["post", "basic"])
async def test_no_repr_shows_the_secret_or_a_token(method: TokenAuth) -> None:
    auth = ClientCredentials(TOKEN_URL, "me", SecretStr("p:w%d+ /ä"), method=method)
    sent = auth.request()
    async with client(Platform(), auth) as api:
        await api.presentations.get("p")
        shown = f"{sent!r} {auth!r} {auth} {vars(auth)} {api!r} {vars(api)}"
    for secret in ("p:w", "p%3Aw", "token-1", *sent.headers.get("Authorization", "").split()):
        assert secret not in shown
