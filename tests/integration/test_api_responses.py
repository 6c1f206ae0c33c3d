"""Answers that are about something else, or too much at once, over real sockets and by every way of sending."""

import asyncio
import sys
import threading
import traceback
import tracemalloc
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from client_modes import WAYS, Caller, calling
from scripted_server import GRANTED, PRESENTATION, TOKEN, Answering, answering, ok, presentation

from credhook.backoff import Backoff
from credhook.worker.api import token
from credhook.worker.api.errors import ApiError, InvalidResponse
from credhook.worker.api.http.exchange import MOST_LISTED, MOST_VALUES
from credhook.worker.api.token import ClientCredentials


def sending(way: str, server: Answering, *, token: str = TOKEN, **options: Any) -> AbstractAsyncContextManager[Caller]:
    """A client of that way, for API and token endpoint of the server."""
    return calling(way, server.url, ClientCredentials(server.url + token, "me", "s3cret"), timeout=5.0, **options)


@pytest.mark.parametrize("way", WAYS)
async def test_details_of_another_id_are_a_failed_fetch_and_end_their_connection(way: str) -> None:
    def late(target: str, number: int) -> bytes:
        return presentation("stranger" if number == 0 else target.removeprefix(PRESENTATION))

    with answering(late) as server:
        async with sending(way, server) as call:
            with pytest.raises(InvalidResponse, match="CREDHOOK_MATCH_IDS=0") as refused:
                await call("presentations", "get", "mine")
            assert (refused.value.cause, refused.value.status) == ("other_id", 200)
            assert "stranger" not in str(refused.value)
            connections = server.connections
            assert (await call("presentations", "get", "mine")).id == "mine"
            assert server.connections == connections + 1
            assert (await call("presentations", "get", "next")).id == "next"
            assert server.connections == connections + 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_platform_that_names_its_details_otherwise_is_believed_if_the_settings_say_so(way: str) -> None:
    with answering(lambda *_: presentation("other")) as server:
        async with sending(way, server, match_ids=False) as call:
            assert (await call("presentations", "get", "mine")).id == "other"


@pytest.mark.parametrize(
    ("noun", "verb", "document"),
    [
        ("issuances", "get", {"id": "other", "status": "offered"}),
        (
            "templates",
            "get",
            {"id": "other", "name": "n", "type": "urn:t", "attributes": {}, "format": "f", "description": "d"}
            | dict.fromkeys(("createdAt", "updatedAt"), "2026-11-01T00:00:00Z"),
        ),
        ("presentations", "list", [{"id": "mine", "status": "x"}, {"id": "other", "status": "x"}]),
    ],
)
async def test_all_that_is_asked_for_by_id_is_matched(noun: str, verb: str, document: object) -> None:
    with answering(lambda *_: ok({"data": document})) as server:
        async with sending("loop", server) as call:
            with pytest.raises(InvalidResponse) as refused:
                await call(noun, verb, "mine")
            assert refused.value.cause == "other_id"
        async with sending("loop", server, match_ids=False) as call:
            await call(noun, verb, "mine")


async def test_a_list_that_was_asked_for_without_an_id_is_not_matched() -> None:
    with answering(lambda *_: ok([{"id": "a", "status": "x"}, {"id": "b", "status": "x"}])) as server:
        async with sending("loop", server) as call:
            assert [one.id for one in await call("presentations", "list")] == ["a", "b"]


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_that_nobody_asked_for_never_answers_the_next_request(way: str) -> None:
    def twice(target: str, number: int) -> bytes:
        mine = presentation(target.removeprefix(PRESENTATION), error="mine")
        return mine + presentation("second", error="theirs") if number == 0 else mine

    with answering(twice) as server:
        async with sending(way, server) as call:
            for id_ in ("first", "second", "third"):
                assert (await call("presentations", "get", id_)).error.message == "mine"
        assert server.targets == [PRESENTATION + id_ for id_ in ("first", "second", "third")]


@pytest.mark.parametrize("way", WAYS)
async def test_a_token_answer_that_is_none_ends_its_connection(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token, "PAUSES", Backoff(first=0.0, longest=0.0))
    answers = iter([presentation("p"), GRANTED])
    with answering(lambda target, _: next(answers) if target == "/another-token" else presentation("p")) as server:
        async with sending(way, server, token="/another-token") as call:
            with pytest.raises(InvalidResponse):
                await call("presentations", "get", "p")
            assert (await call("presentations", "get", "p")).id == "p"
        assert server.connections == 2


# Size.


def many(count: int, *, of: bytes = b"{}") -> bytes:
    return b'{"data":{"id":"p","status":"x","credentials":[' + b",".join([of] * count) + b"]}}"


@pytest.mark.parametrize("way", WAYS)
async def test_more_values_than_a_resource_has_are_refused_before_anything_is_made_of_them(way: str) -> None:
    body = many(1_000_000)  # 3 MB, which became 600 MiB.
    with answering(lambda *_: ok(body)) as server:
        async with sending(way, server) as call:
            tracemalloc.start()
            try:
                with pytest.raises(InvalidResponse, match=f"more than {MOST_VALUES} values") as refused:
                    await call("presentations", "get", "p")
                assert tracemalloc.get_traced_memory()[1] < 10 * len(body)
            finally:
                tracemalloc.stop()
            assert refused.value.cause == "too_many_values"


async def test_as_many_values_as_a_resource_may_have_are_read() -> None:
    with answering(lambda *_: ok(many(MOST_VALUES // 2 - 10))) as server:
        async with sending("loop", server) as call:
            assert len((await call("presentations", "get", "p")).credentials) == MOST_VALUES // 2 - 10


@pytest.mark.parametrize("way", WAYS)
async def test_a_list_may_be_longer_than_a_resource_but_none_of_its_elements(way: str) -> None:
    body = b"[" + b",".join(b'{"id":"%d","status":"x"}' % number for number in range(10_000)) + b"]"
    with answering(lambda *_: ok(body)) as server:
        async with sending(way, server) as call:
            issuances = await call("issuances", "list")
            assert [one.id for one in issuances[::3_000]] == ["0", "3000", "6000", "9000"]
            server.script = lambda *_: ok(b'[{"id":"a","status":"x"},' + many(MOST_VALUES)[8:-1] + b"]")
            with pytest.raises(InvalidResponse, match=f"1: more than {MOST_VALUES} values"):
                await call("issuances", "list")
            server.script = lambda *_: ok(b"[" + b",".join([b"{}"] * MOST_LISTED) + b"]")
            with pytest.raises(InvalidResponse, match=f"more than {MOST_LISTED} values"):
                await call("issuances", "list")


async def test_a_long_list_is_read_while_the_loop_goes_on() -> None:
    body = b"[" + b",".join(b'{"id":"%d","status":"x"}' % number for number in range(20_000)) + b"]"
    ours, seen = threading.get_ident(), 0

    def is_read_elsewhere() -> bool:
        frames = [frame for thread, frame in sys._current_frames().items() if thread != ours]
        return any(inner.f_code.co_name == "parse_list" for frame in frames for inner, _ in traceback.walk_stack(frame))

    async def watch() -> None:
        nonlocal seen
        while True:
            seen += is_read_elsewhere()
            await asyncio.sleep(0)

    with answering(lambda *_: ok(body)) as server:
        async with sending("loop", server) as call:
            watching = asyncio.create_task(watch())
            listed = await call("issuances", "list")
            watching.cancel()
    assert len(listed) == 20_000
    assert seen > 0  # The loop has turned meanwhile.


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_that_is_too_long_is_refused(way: str) -> None:
    with answering(lambda *_: presentation("p", error="x" * 70_000)) as server:
        async with sending(way, server, max_answer=65_536) as call:
            with pytest.raises(InvalidResponse, match="longer than 65536 bytes") as refused:
                await call("presentations", "get", "p")
            assert refused.value.cause == "too_large"
        async with sending(way, server, max_answer=71_000) as call:
            assert (await call("presentations", "get", "p")).id == "p"


@pytest.mark.parametrize("way", WAYS)
async def test_what_a_refusal_says_is_read_up_to_64_kibibytes(way: str) -> None:
    def refusing(target: str, _: int) -> bytes:
        objects = [{"code": "NOT_FOUND", "detail": "x" * int(target.removeprefix(PRESENTATION))}]
        return ok({"errors": objects}, status=404)

    with answering(refusing) as server:
        async with sending(way, server) as call:
            for length, codes in ((60_000, ["NOT_FOUND"]), (70_000, [])):
                with pytest.raises(ApiError) as refused:
                    await call("presentations", "get", str(length))
                assert (refused.value.status, [one.code for one in refused.value.errors]) == (404, codes)


@pytest.mark.parametrize("depth", [150, 1_000, 1_000_000])
async def test_nesting_is_bounded(depth: int) -> None:
    body = b'{"data":{"id":"p","status":"x","deep":' + b"[" * depth + b"]" * depth + b"}}"
    with answering(lambda *_: ok(body)) as server:
        async with sending("loop", server) as call:
            if depth < 200:
                assert (await call("presentations", "get", "p")).id == "p"
            else:
                with pytest.raises(InvalidResponse):
                    await call("presentations", "get", "p")
