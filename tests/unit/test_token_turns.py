"""Waiting for a token that somebody else fetches: the flow and its drivers, with no Redis and no network."""

import asyncio
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from credhook.worker.api.auth import ClientCredentials
from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.errors import ApiError, NotAuthenticated, NotUnderstood, TryLater
from credhook.worker.api.tokens import Pause, Token, TokenCache
from credhook.worker.fleet.shared_token import SharedTokens, _noted, _quiet, _refusal, key_name
from credhook.worker.settings import WorkerSettings

API_URL, TOKEN_URL = "https://api.example", "https://id.example/token"


class Turns(TokenCache):
    """Tokens of which somebody else fetches one: after `pauses`, there is `found`."""

    def __init__(self, pauses: int, found: Token | ApiError | None) -> None:
        super().__init__()
        self.pauses = pauses
        self.found = found
        self.ended: list[object] = []

    def turn(self) -> Generator[Pause, None, Token | None]:
        for _ in range(self.pauses):
            yield Pause(0.001)
        if isinstance(self.found, ApiError):
            raise self.found
        return self.found

    def end_turn(self, outcome: Token | ApiError | None) -> None:
        self.ended.append(outcome)


THEIRS = Token("theirs", renew_at=float("inf"))


def platform(request: httpx.Request) -> httpx.Response:
    if request.url.host == "id.example":
        return httpx.Response(200, json={"access_token": "ours", "token_type": "Bearer"})
    return httpx.Response(200, json={"id": "p", "status": request.headers["authorization"]})


def credentials(tokens: Turns) -> ClientCredentials:
    return ClientCredentials(TOKEN_URL, "me", "s3cret", tokens=tokens)


def steps(tokens: Turns) -> Generator[Any, Any, None]:
    return credentials(tokens).steps(httpx.Request("GET", API_URL))


def test_the_flow_pauses_until_the_others_token_is_there() -> None:
    turns = Turns(2, THEIRS)
    flow = steps(turns)
    assert isinstance(next(flow), Pause)
    assert isinstance(flow.send(None), Pause)
    assert flow.send(None).headers["authorization"] == "Bearer theirs"
    assert turns.ended == [THEIRS]


def test_the_flow_fetches_when_it_is_its_turn_and_then_ends_the_turn() -> None:
    turns = Turns(1, None)
    flow = steps(turns)
    next(flow)
    assert str(flow.send(None).url) == TOKEN_URL
    assert turns.ended == []
    request = flow.send(platform(httpx.Request("POST", TOKEN_URL)))
    assert request.headers["authorization"] == "Bearer ours"
    assert turns.ended == [turns.get()]


@pytest.mark.parametrize("pauses", [0, 1], ids=["while it fetches", "while it waits"])
def test_a_flow_given_up_ends_its_turn_without_a_word(pauses: int) -> None:
    turns = Turns(pauses, None)
    flow = steps(turns)
    next(flow)
    flow.close()
    assert turns.ended == [None]


def test_a_refusal_ends_the_turn_with_the_error() -> None:
    turns = Turns(0, None)
    flow = steps(turns)
    next(flow)
    with pytest.raises(NotAuthenticated):
        flow.send(httpx.Response(401, json={"error": "invalid_client"}))
    (ended,) = turns.ended
    assert isinstance(ended, NotAuthenticated)


def test_another_flow_of_the_process_waits_for_the_one_that_waits() -> None:
    auth = credentials(Turns(1, THEIRS))
    first, second = (auth.steps(httpx.Request("GET", API_URL)) for _ in range(2))
    assert isinstance(next(first), Pause)
    flight = next(second)
    assert not isinstance(flight, httpx.Request | Pause)
    first.send(None)
    request = second.send(None)
    assert isinstance(request, httpx.Request)
    assert request.headers["authorization"] == "Bearer theirs"


def test_another_flow_of_the_process_is_told_of_the_others_refusal() -> None:
    auth = credentials(Turns(1, NotAuthenticated("no")))
    first, second = (auth.steps(httpx.Request("GET", API_URL)) for _ in range(2))
    next(first)
    next(second)
    for flow in (first, second):
        with pytest.raises(NotAuthenticated, match="no"):
            flow.send(None)


def test_a_thread_waits_for_its_turn() -> None:
    with SyncApi(API_URL, credentials(Turns(2, THEIRS)), transport=httpx.MockTransport(platform)) as api:
        assert api.presentations.get("p").status == "Bearer theirs"


async def test_a_task_waits_for_its_turn_and_lets_others_run() -> None:
    turns = 0
    async with AsyncApi(API_URL, credentials(Turns(100, THEIRS)), transport=httpx.MockTransport(platform)) as api:
        task = asyncio.create_task(api.presentations.get("p"))
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert task.result().status == "Bearer theirs"
    assert turns > 100


# What the other processes are told of a refusal.


@pytest.mark.parametrize("kind", [NotAuthenticated, NotUnderstood, TryLater])
def test_a_refusal_is_told_by_class_and_status_alone(kind: type[ApiError]) -> None:
    refusal = kind("token: no Zara", operation="token", status=418, errors=())
    note = _noted(refusal)
    assert b"Zara" not in note
    told = _refusal(note, 7.5)
    assert type(told) is kind
    assert (told.status, told.operation) == (418, "token")
    assert "418" in str(told)
    assert "\n" not in str(told)
    assert ("CREDHOOK_CLIENT_SECRET" in str(told)) is (kind is NotAuthenticated)
    assert getattr(told, "retry_after", 7.5) == 7.5


@pytest.mark.parametrize(
    ("refusal", "seconds"),
    [
        (NotAuthenticated("no"), 10.0),
        (NotUnderstood("no"), 10.0),
        (TryLater("no"), 2.0),
        (TryLater("no", retry_after=0.0), 2.0),
        (TryLater("no", retry_after=30.0), 30.0),
        (TryLater("no", retry_after=86_400.0), 60.0),
    ],
)
def test_nobody_asks_for_as_long_as_the_refusal_gives_reason_to(refusal: ApiError, seconds: float) -> None:
    assert _quiet(refusal) == seconds


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
def test_workers_that_ask_for_other_tokens_share_none(narrowed: dict[str, str]) -> None:
    plain = {
        "CREDHOOK_API_URL": "https://api.example",
        "CREDHOOK_TOKEN_URL": "https://id.example",
        "CREDHOOK_CLIENT_ID": "me",
        "CREDHOOK_CLIENT_SECRET": "s3cret",
    }
    made: Any = WorkerSettings
    names = {SharedTokens.from_settings(made(**settings))._name for settings in (plain, plain, plain | narrowed)}
    assert len(names) == 2
    assert key_name("https://id.example", "me") in names
