"""How much of an answer is read, and for how long: bodies that are too long, break off, drip, or never come."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from token_endpoint import BrokenBody, Handler, async_api
from virtual_time import in_own_time

from credhook.worker.api.errors import ApiError, InvalidRequest, InvalidResponse, NotFound, Unavailable
from credhook.worker.api.http.exchange import LONGEST_BODY, LONGEST_REFUSAL

GOOD = {"data": {"id": "p", "status": "verified"}}


async def outcome(handler: Handler, **options: Any) -> Any:
    """The result of a call, or the error."""
    async with async_api(handler, **options) as api:
        try:
            return await api.presentations.get("p")
        except ApiError as error:
            return error


class Endless(httpx.AsyncByteStream):
    """A body without an end, that counts what was taken of it."""

    def __init__(self) -> None:
        self.given = 0
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.given += 65_536
            yield b" " * 65_536

    async def aclose(self) -> None:
        self.closed = True


async def test_a_body_is_read_up_to_four_mebibytes_and_then_refused() -> None:
    stream = Endless()
    refused = await outcome(lambda _: httpx.Response(200, stream=stream))
    assert (type(refused), refused.cause) == (InvalidResponse, "too_large")
    assert "longer than 4194304 bytes" in str(refused)
    assert stream.given <= LONGEST_BODY + 2 * 65_536
    assert stream.closed


async def test_a_body_of_just_four_mebibytes_is_read() -> None:
    body = httpx.Response(200, json=GOOD).content
    body += b" " * (LONGEST_BODY - len(body))
    assert (await outcome(lambda _: httpx.Response(200, content=body))).id == "p"


@pytest.mark.parametrize(("status", "error"), [(503, Unavailable), (404, NotFound), (400, InvalidRequest)])
async def test_an_endless_refusal_is_cut_short_and_keeps_its_meaning(status: int, error: type[ApiError]) -> None:
    stream = Endless()
    assert type(await outcome(lambda _: httpx.Response(status, stream=stream))) is error
    assert stream.given <= LONGEST_REFUSAL + 2 * 65_536
    assert stream.closed


#: What may become of a body that has begun.
ENDS = {"broken off": httpx.ReadError("x"), "reset": ConnectionResetError(), "stalled": None}


@pytest.mark.parametrize("status", [200, 429])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_answer_without_the_rest_of_its_body_is_none(end: Exception | None, status: int) -> None:
    failed = in_own_time(outcome(lambda _: httpx.Response(status, stream=BrokenBody(end))))
    assert (type(failed), failed.status) == (Unavailable, None)


class Dripping(httpx.AsyncByteStream):
    """A body that arrives a byte at a time, each well within the time-out of a read."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0.01)
            yield b" "


def test_a_dripping_body_ends_with_the_time_of_the_request() -> None:
    failed = in_own_time(outcome(lambda _: httpx.Response(200, stream=Dripping())))
    assert (type(failed), failed.cause) == (Unavailable, "timeout")


async def never(_: httpx.Request) -> httpx.Response:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_request_that_is_never_answered_ends_with_its_time() -> None:
    failed = in_own_time(outcome(never))
    assert (type(failed), failed.cause) == (Unavailable, "timeout")
    assert "TimeoutError" in str(failed)
