"""What a gate is asked before a request to the API is sent, and what it hears afterwards."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import httpx
import pytest

from credhook.worker.api.auth import ClientCredentials
from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.errors import ApiError, NotAuthenticated, TryLater

# The token endpoint stands on the API's own origin and below its path: only the request itself tells them apart.
API_URL = "https://platform.example"
TOKEN_PATH = "/me-creds/token"
GOOD = {"data": {"id": "p", "status": "verified"}}

Answer = Callable[[httpx.Request], httpx.Response]


class Book:
    """A gate that lets everything pass, unless it is shut, and writes down what it hears."""

    def __init__(self) -> None:
        self.is_shut, self.goes_on = False, True
        self.entered: list[str] = []
        self.heard: list[tuple[object, ...]] = []

    async def enter(self, operation: str) -> "Page":
        return self.enter_in_thread(operation)

    def enter_in_thread(self, operation: str) -> "Page":
        if self.is_shut:
            raise TryLater("not now", operation=operation, retry_after=1.0)
        self.entered.append(operation)
        return Page(self)


class Page:
    def __init__(self, book: Book) -> None:
        self._book = book
        self._is_over = False

    def _first(self, *word: object) -> None:
        if not self._is_over:
            self._is_over = True
            self._book.heard.append(word)

    def answered(self, status: int, retry_after: float | None) -> None:
        self._first(status, retry_after)

    def outdated(self) -> bool:
        if not self._book.goes_on:
            self._first("outdated")
        return self._book.goes_on

    def unanswered(self, cause: str) -> None:
        self._first(cause)

    def abandoned(self) -> None:
        self._first("abandoned")


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that breaks off, or never comes."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def __iter__(self) -> Iterator[bytes]:
        yield b"{"
        if self._error:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"{"
        if self._error:
            raise self._error
        await asyncio.Event().wait()


def credentials() -> ClientCredentials:
    return ClientCredentials(API_URL + TOKEN_PATH, "me", "s3cret")


def with_tokens(answer: Answer) -> Answer:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == TOKEN_PATH:
            return httpx.Response(200, json={"access_token": "t", "expires_in": 300, "token_type": "Bearer"})
        return answer(request)

    return handle


async def heard_by_both(answer: Answer) -> list[tuple[object, ...]]:
    """What the gate hears of one call, which is the same for both senders."""
    books = Book(), Book()
    transport = httpx.MockTransport(with_tokens(answer))
    with SyncApi(API_URL, credentials(), transport=transport, gate=books[0]) as api, suppress(ApiError):
        await asyncio.to_thread(api.presentations.get, "p")
    async with AsyncApi(API_URL, credentials(), transport=transport, gate=books[1]) as other:
        with suppress(ApiError):
            await other.presentations.get("p")
    assert books[0].entered == books[1].entered == ["presentations.get"]
    assert books[0].heard == books[1].heard
    return books[0].heard


def failing(error: Exception) -> Answer:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    return fail


@pytest.mark.parametrize(
    ("answer", "heard"),
    [
        (lambda _: httpx.Response(200, json=GOOD), [(200, None)]),
        (lambda _: httpx.Response(200, text="junk"), [(200, None)]),
        (lambda _: httpx.Response(404), [(404, None)]),
        (lambda _: httpx.Response(302, headers={"location": "/"}), [(302, None)]),
        (lambda _: httpx.Response(401), [(401, None)]),
        (lambda _: httpx.Response(401, headers={"retry-after": "3"}), [(401, 3.0)]),
        (lambda _: httpx.Response(429, headers={"retry-after": "20"}), [(429, 20.0)]),
        (lambda _: httpx.Response(429, headers={"retry-after": "soon"}), [(429, None)]),
        (lambda _: httpx.Response(503), [(503, None)]),
        (lambda _: httpx.Response(503, stream=Body(httpx.ReadError("x"))), [(503, None)]),
        (lambda _: httpx.Response(200, stream=Body(httpx.ReadError("x"))), [("ReadError",)]),
        (lambda _: httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Body()), [(200, None)]),
        (failing(httpx.ConnectError("x")), [("ConnectError",)]),
        (failing(httpx.ReadTimeout("x")), [("timeout",)]),
        (failing(ConnectionResetError("x")), [("closed",)]),
        (failing(httpx.PoolTimeout("x")), [("abandoned",)]),
        (failing(httpx.LocalProtocolError("x")), [("abandoned",)]),
    ],
)
async def test_the_gate_hears_once_what_each_request_came_to(answer: Answer, heard: list[tuple[object, ...]]) -> None:
    assert await heard_by_both(answer) == heard


async def test_the_401_of_a_stale_token_is_not_told_and_its_retry_goes_by_the_same_passage() -> None:
    answers = iter([httpx.Response(401), httpx.Response(200, json=GOOD)] * 2)
    assert await heard_by_both(lambda _: next(answers)) == [(200, None)]


async def test_a_passage_that_does_not_go_on_after_a_stale_token_is_followed_by_another() -> None:
    answers = iter([httpx.Response(401), httpx.Response(200, json=GOOD)])
    transport = httpx.MockTransport(with_tokens(lambda _: next(answers)))
    book = Book()
    book.goes_on = False
    async with AsyncApi(API_URL, credentials(), transport=transport, gate=book) as api:
        await api.presentations.get("p")
    assert book.entered == ["presentations.get"] * 2
    assert book.heard == [("outdated",), (200, None)]


async def test_a_401_after_which_no_token_was_to_be_had_says_nothing() -> None:
    async def heard(with_api: Callable[[httpx.MockTransport, Book], Awaitable[None]]) -> list[tuple[object, ...]]:
        tokens = iter([httpx.Response(200, json={"access_token": "t", "expires_in": 300}), httpx.Response(400)])
        book = Book()
        await with_api(
            httpx.MockTransport(lambda r: next(tokens) if r.url.path == TOKEN_PATH else httpx.Response(401)), book
        )
        assert book.entered == ["presentations.get"]
        return book.heard

    async def in_thread(transport: httpx.MockTransport, book: Book) -> None:
        with SyncApi(API_URL, credentials(), transport=transport, gate=book) as api, pytest.raises(NotAuthenticated):
            await asyncio.to_thread(api.presentations.get, "p")

    async def on_loop(transport: httpx.MockTransport, book: Book) -> None:
        async with AsyncApi(API_URL, credentials(), transport=transport, gate=book) as api:
            with pytest.raises(NotAuthenticated):
                await api.presentations.get("p")

    assert await heard(in_thread) == await heard(on_loop) == [("abandoned",)]


async def test_a_call_that_is_cancelled_in_the_middle_of_its_answer_says_nothing() -> None:
    book, reading = Book(), asyncio.Event()

    def answer(_: httpx.Request) -> httpx.Response:
        reading.set()
        return httpx.Response(200, stream=Body())

    async with AsyncApi(API_URL, credentials(), transport=httpx.MockTransport(with_tokens(answer)), gate=book) as api:
        call = asyncio.create_task(api.presentations.get("p"))
        await reading.wait()
        await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
    assert book.heard == [("abandoned",)]


async def test_what_a_shut_gate_raises_is_what_the_caller_gets_and_nothing_is_sent() -> None:
    book, sent = Book(), []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json=GOOD)

    book.is_shut = True
    transport = httpx.MockTransport(with_tokens(answer))
    with (
        SyncApi(API_URL, credentials(), transport=transport, gate=book) as api,
        pytest.raises(TryLater) as refusal,
    ):
        await asyncio.to_thread(api.presentations.get, "p")
    assert (refusal.value.operation, refusal.value.retry_after) == ("presentations.get", 1.0)
    async with AsyncApi(API_URL, credentials(), transport=transport, gate=book) as other:
        with pytest.raises(TryLater) as refusal:
            await other.presentations.get("p")
    assert (refusal.value.operation, refusal.value.retry_after) == ("presentations.get", 1.0)
    assert not sent


async def test_requests_for_tokens_pass_beside_the_gate() -> None:
    book = Book()
    tokens = httpx.MockTransport(with_tokens(lambda _: httpx.Response(200, json=GOOD)))
    async with AsyncApi(API_URL, credentials(), transport=tokens, gate=book) as api:
        await api.presentations.get("p")
    assert book.entered == ["presentations.get"]
