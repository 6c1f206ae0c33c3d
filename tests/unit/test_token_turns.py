"""Waiting for a token that another process fetches, and telling it what came of ours; with no Redis and no network."""

import asyncio
from typing import Any

import httpx
import pytest
from granting import client, credentials
from redis.asyncio import Redis
from waiting import until_async

from credhook.worker.api.calls.errors import ApiError, InvalidResponse, Unauthorized, Unavailable
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.models import Presentation
from credhook.worker.api.oauth.tokens import Token, TokenCache
from credhook.worker.platform.shared_token import SharedTokens
from credhook.worker.platform.token_key import key_name
from credhook.worker.platform.token_refusal import noted, quiet_for, refusal_from
from credhook.worker.settings import WorkerSettings

THEIRS = Token("theirs", renew_at=float("inf"))


class Turns(TokenCache):
    """Tokens of which another process may be fetching one.

    Attributes:
        found: what it comes to; None: it is our turn.
        there: set once that is known.
        acquired: how often somebody of this process wanted a turn.
        released: what was told of each.
        asked: how often the current token was asked for.
    """

    def __init__(self, found: Token | ApiError | None, *, waits: bool = True) -> None:
        super().__init__()
        self.found = found
        self.there = asyncio.Event()
        self.acquired = 0
        self.released: list[object] = []
        self.asked = 0
        if not waits:
            self.there.set()

    def get(self) -> Token | None:
        self.asked += 1
        return super().get()

    async def acquire(self) -> Token | None:
        self.acquired += 1
        await self.there.wait()
        if isinstance(self.found, ApiError):
            raise self.found
        return self.found

    async def release(self, outcome: Token | ApiError | None) -> None:
        self.released.append(outcome)


class Platform:
    """Grants `ours`, unless it refuses, and answers with the token that it was shown.

    Attributes:
        refuses: whether the token endpoint does.
        asked_for_token: how often it was asked.
        may_grant: set unless it is to wait.
    """

    def __init__(self) -> None:
        self.refuses = False
        self.asked_for_token = 0
        self.may_grant = asyncio.Event()
        self.may_grant.set()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "id.example":
            self.asked_for_token += 1
            await self.may_grant.wait()
            if self.refuses:
                return httpx.Response(401, json={"error": "invalid_client"})
            return httpx.Response(200, json={"access_token": "ours", "token_type": "Bearer"})
        return httpx.Response(200, json={"id": "p", "status": request.headers["authorization"]})


async def called(api: AsyncApi, turns: Turns, number: int) -> list[asyncio.Task[Presentation]]:
    """So many calls, each of which waits for a token."""
    tasks = [asyncio.create_task(api.presentations.get("p")) for _ in range(number)]
    await until_async(lambda: turns.asked == number)
    return tasks


async def test_the_token_of_another_process_is_waited_for_and_used() -> None:
    turns, platform = Turns(THEIRS), Platform()
    async with client(platform, credentials(tokens=turns)) as api:
        (call,) = await called(api, turns, 1)
        assert turns.released == []
        turns.there.set()
        assert (await call).status == "Bearer theirs"
    assert turns.released == [THEIRS]
    assert platform.asked_for_token == 0


async def test_a_token_is_fetched_when_it_is_our_turn_and_the_turn_ends_with_it() -> None:
    turns, platform = Turns(None), Platform()
    platform.may_grant.clear()
    async with client(platform, credentials(tokens=turns)) as api:
        (call,) = await called(api, turns, 1)
        assert platform.asked_for_token == 0
        turns.there.set()
        await until_async(lambda: platform.asked_for_token)
        assert turns.released == []
        platform.may_grant.set()
        assert (await call).status == "Bearer ours"
    token = turns.get()
    assert token is not None
    assert token.value == "ours"
    assert turns.released == [token]


@pytest.mark.parametrize("waits", [True, False], ids=["while it waits", "while it fetches"])
async def test_a_turn_that_is_given_up_ends_without_a_word(waits: bool) -> None:
    turns, platform = Turns(None, waits=waits), Platform()
    platform.may_grant.clear()
    auth = credentials(tokens=turns)
    async with client(platform, auth) as api:
        (call,) = await called(api, turns, 1)
        await until_async(lambda: turns.acquired if waits else platform.asked_for_token)
        await auth.aclose()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert turns.released == [None]


async def test_a_token_request_without_an_answer_ends_the_turn_with_an_error_that_has_no_status() -> None:
    turns = Turns(None, waits=False)

    def unreachable(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with client(unreachable, credentials(tokens=turns)) as api:
        with pytest.raises(Unavailable):
            await api.presentations.get("p")
    (ended,) = turns.released
    assert isinstance(ended, Unavailable)
    assert ended.status is None


async def test_a_refusal_ends_the_turn_with_the_error() -> None:
    turns, platform = Turns(None, waits=False), Platform()
    platform.refuses = True
    async with client(platform, credentials(tokens=turns)) as api:
        with pytest.raises(Unauthorized):
            await api.presentations.get("p")
    (ended,) = turns.released
    assert isinstance(ended, Unauthorized)
    assert ended.status == 401


async def test_all_of_the_process_wait_for_the_one_that_waits() -> None:
    turns, platform = Turns(THEIRS), Platform()
    async with client(platform, credentials(tokens=turns)) as api:
        calls = await called(api, turns, 5)
        turns.there.set()
        assert {each.status for each in await asyncio.gather(*calls)} == {"Bearer theirs"}
    assert turns.acquired == 1
    assert turns.released == [THEIRS]


async def test_all_of_the_process_are_told_of_the_others_refusal() -> None:
    refusal = Unauthorized("no", operation="token", status=401)
    turns = Turns(refusal)
    async with client(Platform(), credentials(tokens=turns)) as api:
        calls = await called(api, turns, 5)
        turns.there.set()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [(type(each), str(each)) for each in outcomes] == [(Unauthorized, "no")] * 5
    assert len({id(each) for each in outcomes}) == 5
    assert turns.acquired == 1
    assert turns.released == [refusal]


async def test_one_of_the_process_that_is_cancelled_does_not_end_the_wait_of_the_others() -> None:
    turns, platform = Turns(THEIRS), Platform()
    async with client(platform, credentials(tokens=turns)) as api:
        first, *others = await called(api, turns, 3)
        first.cancel()
        await asyncio.wait([first])
        assert turns.released == []
        turns.there.set()
        assert {each.status for each in await asyncio.gather(*others)} == {"Bearer theirs"}
    assert turns.acquired == 1


async def test_while_a_task_waits_for_its_turn_others_run() -> None:
    turns = Turns(THEIRS)
    other = credentials(tokens=TokenCache(Token("another", renew_at=float("inf"))))
    async with client(Platform(), credentials(tokens=turns)) as api, client(Platform(), other) as beside:
        (call,) = await called(api, turns, 1)
        assert (await beside.presentations.get("p")).status == "Bearer another"
        assert not call.done()
        turns.there.set()
        assert (await call).status == "Bearer theirs"


# What the other processes are told of a refusal.


@pytest.mark.parametrize("kind", [Unauthorized, InvalidResponse, Unavailable])
def test_a_refusal_is_told_by_class_and_status_alone(kind: type[ApiError]) -> None:
    refusal = kind("token: no Zara", operation="token", status=418, errors=())
    note = noted(refusal)
    assert b"Zara" not in note
    told = refusal_from(note, 7.5)
    assert type(told) is kind
    assert (told.status, told.operation) == (418, "token")
    assert "418" in str(told)
    assert "\n" not in str(told)
    assert ("CREDHOOK_CLIENT_SECRET" in str(told)) is (kind is Unauthorized)
    assert getattr(told, "retry_after", 7.5) == 7.5


@pytest.mark.parametrize(
    ("refusal", "seconds"),
    [
        (Unauthorized("no"), 10.0),
        (InvalidResponse("no"), 10.0),
        (Unavailable("no"), 2.0),
        (Unavailable("no", retry_after=0.0), 2.0),
        (Unavailable("no", retry_after=30.0), 30.0),
        (Unavailable("no", retry_after=86_400.0), 60.0),
    ],
)
def test_nobody_asks_for_as_long_as_the_refusal_gives_reason_to(refusal: ApiError, seconds: float) -> None:
    assert quiet_for(refusal) == seconds


def test_each_client_at_each_token_url_has_a_key_of_its_own_that_names_neither() -> None:
    clients = [
        *(("https://a", "b"), ("https://ab", ""), ("https://a", "B"), ("https://b", "b")),
        *(("https://a", "b", *narrowed) for narrowed in (("x", None), (None, "x"), (None, None, "x"), ("x", "x"))),
    ]
    names = {key_name(*client) for client in clients}
    assert len(names) == len(clients)
    assert all(name.startswith("credhook:token:") and "https" not in name for name in names)
    assert (
        key_name("https://a", "b")
        == key_name("https://a", "b", None, None)
        == "credhook:token:3d08f9bd0d1f45dfcf758c7f072925758a434006"
    )


@pytest.mark.parametrize(
    "narrowed", [{"CREDHOOK_SCOPE": "read"}, {"CREDHOOK_AUDIENCE": "a"}, {"CREDHOOK_RESOURCE": "urn:one urn:two"}]
)
async def test_workers_that_ask_for_other_tokens_share_none(narrowed: dict[str, str]) -> None:
    plain = {
        "CREDHOOK_API_URL": "https://api.example",
        "CREDHOOK_TOKEN_URL": "https://id.example",
        "CREDHOOK_CLIENT_ID": "me",
        "CREDHOOK_CLIENT_SECRET": "s3cret",
    }
    made: Any = WorkerSettings
    redis = Redis()  # Nobody asks it anything.
    names = {SharedTokens.from_settings(redis, made(**settings))._name for settings in (plain, plain, plain | narrowed)}
    assert len(names) == 2
    assert key_name("https://id.example", "me") in names
