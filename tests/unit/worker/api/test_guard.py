"""A guard is asked before each request to the API, and its permit is told how the request ended."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from unittest.mock import Mock

import httpx
import pytest

from credhook.worker.api.client import AsyncApi, Permit
from credhook.worker.api.errors import ApiError, Unauthorized, Unavailable
from credhook.worker.api.token import ClientCredentials
from support.platform.token_endpoint import Book, BrokenBody, client

# The token endpoint stands on the API's own origin and below its path: only the request itself tells them apart.
API_URL = "https://platform.example"
TOKEN_PATH = "/me-creds/token"
GOOD = {"data": {"id": "p", "status": "verified"}}
STALE = cycle([httpx.Response(401), httpx.Response(200, json=GOOD)])
TOKEN = {"access_token": "t", "expires_in": 300, "token_type": "Bearer"}

Answer = Callable[[httpx.Request], httpx.Response]


def credentials() -> ClientCredentials:
    return ClientCredentials(API_URL + TOKEN_PATH, "me", "s3cret")


def guarded(answer: Callable[[httpx.Request], object], book: Book, auth: ClientCredentials | None = None) -> AsyncApi:
    return client(answer, auth or credentials(), url=API_URL, guard=book)


async def call(answer: Answer, book: Book, *, granted: int = 2) -> None:
    """Call the API once. So many tokens are granted, and then none."""
    tokens = iter([*[httpx.Response(200, json=TOKEN)] * granted, httpx.Response(400)])

    def handle(request: httpx.Request) -> httpx.Response:
        return next(tokens) if request.url.path == TOKEN_PATH else answer(request)

    async with guarded(handle, book) as api:
        await api.presentations.get("p")


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (lambda _: httpx.Response(200, json=GOOD, headers={"retry-after": "3"}), (200, None)),
        (lambda _: httpx.Response(200, text="junk"), (200, None, "not_json")),
        (lambda _: httpx.Response(200, content=b" " * 5_000_000), (200, None)),
        (lambda _: httpx.Response(404), (404, None)),
        (lambda _: httpx.Response(302, headers={"location": "/"}), (302, None, "redirect")),
        (lambda _: httpx.Response(401), (401, None)),
        (lambda _: httpx.Response(200, json={"data": {"id": "q"}}), (200, None, "other_id")),
        (lambda _: httpx.Response(429, headers={"retry-after": "20"}), (429, 20.0)),
        (lambda _: httpx.Response(429, headers={"retry-after": "soon"}), (429, None)),
        (lambda _: httpx.Response(503), (503, None)),
        (lambda _: httpx.Response(200, stream=BrokenBody(httpx.ReadError("x"))), ("closed",)),
        (Mock(side_effect=httpx.ConnectError("x")), ("ConnectError",)),
        (Mock(side_effect=httpx.ReadTimeout("x")), ("timeout",)),
        (Mock(side_effect=ConnectionResetError("x")), ("ConnectionResetError",)),
        (Mock(side_effect=httpx.LocalProtocolError("x")), ("cancelled",)),
        (Mock(side_effect=httpx.UnsupportedProtocol("x")), ("cancelled",)),
        (lambda _: next(STALE), (200, None)),  # The 401 is not told, and its retry goes by the same permit.
    ],
)
async def test_the_guard_hears_once_what_each_request_came_to(answer: Answer, word: tuple[object, ...]) -> None:
    book = Book()
    with suppress(ApiError):
        await call(answer, book)
    assert (book.acquired, book.heard) == (["presentations.get"], [word])


@pytest.mark.parametrize("granted", [0, 1])
async def test_guard_is_not_asked_without_a_token(granted: int) -> None:
    book = Book()
    with pytest.raises(Unauthorized):
        await call(lambda _: httpx.Response(401), book, granted=granted)
    assert book.acquired == ["presentations.get"] * granted
    assert book.heard == [("cancelled",)] * granted


@pytest.mark.parametrize("waits_for", ["the rest of its answer", "a fresh token"])
async def test_a_call_that_is_cancelled_says_nothing(waits_for: str) -> None:
    book, reached, tokens = Book(), asyncio.Event(), iter([TOKEN])

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == TOKEN_PATH and (token := next(tokens, None)):
            return httpx.Response(200, json=token)
        if request.url.path != TOKEN_PATH and waits_for == "a fresh token":
            return httpx.Response(401)
        reached.set()
        return httpx.Response(200, stream=BrokenBody())

    auth = credentials()
    async with guarded(answer, book, auth) as api:
        calling = asyncio.create_task(api.presentations.get("p"))
        await reached.wait()
        await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await auth.aclose()
    assert book.heard == [("cancelled",)]


ONCE, TWICE = ["presentations.get"], ["presentations.get", "presentations.get"]


@pytest.mark.parametrize(
    ("answers", "acquired", "heard"),
    [
        ([500, 200], TWICE, [("cancelled",), (200, None)]),
        ([500, 500, 200], TWICE, [("cancelled",), (500, None)]),
        ([500, 503], TWICE, [("cancelled",), (503, None)]),
        ([401, 500, 404], TWICE, [("cancelled",), (404, None)]),
        ([502, 200], ONCE, [(502, None)]),
    ],
)
async def test_guard_hears_once_of_a_get_that_is_repeated_after_a_500(
    answers: list[int], acquired: list[str], heard: list[object]
) -> None:
    book, left = Book(), iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        return (
            httpx.Response(200, json=TOKEN) if request.url.path == TOKEN_PATH else httpx.Response(next(left), json=GOOD)
        )

    async with client(answer, credentials(), url=API_URL, guard=book, repeat_after=0.0) as api:
        with suppress(ApiError):
            await api.presentations.get("p")
    assert (book.acquired, book.heard) == (acquired, heard)


async def test_what_is_not_safe_or_asks_for_a_pause_is_not_repeated() -> None:
    book, sent = Book(), list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == TOKEN_PATH:
            return httpx.Response(200, json=TOKEN)
        sent.append(request.method)
        return httpx.Response(500, headers={"retry-after": "9"} if request.method == "GET" else {})

    async with client(answer, credentials(), url=API_URL, guard=book, repeat_after=0.0) as api:
        for calling in (api.presentations.get("p"), api.endpoints.delete("e"), api.wallet.accept(credential_offer="x")):
            with pytest.raises(Unavailable):
                await calling
    assert sent == ["GET", "DELETE", "POST"]


async def test_pause_that_begins_after_a_500_leaves_the_500_as_the_answer() -> None:
    class Paused(Book):
        async def __call__(self, operation: str) -> Permit:
            if self.acquired:
                raise Unavailable("paused", retry_after=3.0)
            return await super().__call__(operation)

    book = Paused()
    tokens = {TOKEN_PATH: httpx.Response(200, json=TOKEN)}
    platform = Mock(side_effect=lambda request: tokens.get(request.url.path) or httpx.Response(500))
    async with client(platform, credentials(), url=API_URL, guard=book, repeat_after=0.0) as api:
        with pytest.raises(Unavailable, match="answered 500"):
            await api.presentations.get("p")
    assert book.heard == [(500, None)]
