"""Answers that are about something else, or too much at once, and what an HTTP client likes to do by itself."""

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from credhook.backoff import Backoff
from credhook.worker.api import token
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import InvalidRequest, InvalidResponse, Unavailable
from credhook.worker.api.token import ClientCredentials
from support.platform.scripted_server import (
    CUT,
    GRANTED,
    PRESENTATION,
    RESET,
    TOKEN,
    Answering,
    Script,
    answering,
    ok,
    presentation,
)
from support.platform.transports import api_over


@asynccontextmanager
async def sending(carrier: str, script: Script, *, token: str = TOKEN) -> AsyncIterator[tuple[Answering, AsyncApi]]:
    """Yield a server that answers by the script, and a client of its API and token endpoint."""
    with answering(script) as server:
        auth = ClientCredentials(server.url + token, "me", "s3cret")
        async with api_over(carrier, server.url, auth, timeout=5.0) as api:
            yield server, api


async def test_details_of_another_id_fail_the_fetch_and_end_the_connection(carrier: str) -> None:
    def late(target: str, number: int) -> bytes:
        return presentation("stranger" if number % 3 == 0 else target.removeprefix(PRESENTATION))

    async with sending(carrier, late) as (server, api):
        for _ in range(2):
            with pytest.raises(InvalidResponse, match="CREDHOOK_MATCH_IDS=0") as refused:
                await api.presentations.get("mine")
            assert (refused.value.cause, refused.value.status) == ("other_id", 200)
            assert refused.value.operation == "presentations.get"
            assert "stranger" not in str(refused.value)
            connections = server.connections
            assert (await api.presentations.get("mine")).id == "mine"
            assert (await api.presentations.get("next")).id == "next"
            assert server.connections == connections + (1 if carrier == "libcurl" else 2)


async def test_a_refusal_whose_headers_are_no_text_is_a_refusal(carrier: str) -> None:
    busy = b"HTTP/1.1 503 Busy\r\nretry-after: bient\xf4t\r\ndate: 7 d\xe9c.\r\ncontent-length: 0\r\n\r\n"
    async with sending(carrier, lambda *_: busy) as (_, api):
        with pytest.raises(Unavailable) as refused:
            await api.presentations.get("p")
    assert (refused.value.status, refused.value.retry_after) == (503, None)


@pytest.mark.parametrize("carrier", ["libcurl"])
async def test_a_get_over_a_connection_that_is_torn_down_is_sent_again(carrier: str) -> None:
    async with sending(carrier, lambda _, number: RESET if number == 0 else presentation("p")) as (server, api):
        assert (await api.presentations.get("p")).id == "p"
    assert len(server.targets) == 2


async def test_an_answer_that_nobody_asked_for_never_answers_the_next_request(carrier: str) -> None:
    def twice(target: str, number: int) -> bytes:
        mine = presentation(target.removeprefix(PRESENTATION), error="mine")
        return mine + presentation("second", error="theirs") if number == 0 else mine

    async with sending(carrier, twice) as (server, api):
        for id_ in ("first", "second", "third"):
            found = await api.presentations.get(id_)
            assert found.error is not None
            assert found.error.message == "mine"
    assert server.targets == [PRESENTATION + id_ for id_ in ("first", "second", "third")]


async def test_a_token_answer_that_is_none_ends_its_connection(carrier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token, "PAUSES", Backoff(first=0.0, longest=0.0))
    answers = iter([presentation("p"), GRANTED])
    async with sending(
        carrier,
        lambda target, _: next(answers) if target == "/another-token" else presentation("p"),
        token="/another-token",
    ) as (server, api):
        with pytest.raises(InvalidResponse):
            await api.presentations.get("p")
        assert (await api.presentations.get("p")).id == "p"
    assert server.connections == (2 if carrier == "libcurl" else 3)


async def test_compressed_answer_that_is_cut_is_not_json(carrier: str) -> None:
    """libcurl does not report the cut."""
    body = gzip.compress(json.dumps(ADA).encode())[:-20]
    async with sending(carrier, lambda *_: ok(body, "Content-Encoding: gzip")) as (_, api):
        with pytest.raises(InvalidResponse) as refused:
            await api.presentations.get("p")
    assert refused.value.cause == "not_json"


@pytest.mark.parametrize("carrier", ["libcurl"])
async def test_answer_may_have_any_number_of_values_within_its_bytes(carrier: str) -> None:
    body = b'{"data":{"id":"p","status":"x","credentials":[' + b",".join([b"{}"] * 20_000) + b"]}}"
    listed = b"[" + b",".join([b'{"id":"p","status":"x"}'] * 150_000) + b"]"
    async with sending(carrier, lambda *_: ok(body)) as (server, api):
        assert len((await api.presentations.get("p")).credentials) == 20_000
        server.script = lambda *_: ok(listed)
        assert len(await api.issuances.list()) == 150_000
        server.script = lambda *_: ok(listed * 2)
        with pytest.raises(InvalidResponse) as refused:
            await api.issuances.list()
        assert refused.value.cause == "too_large"


ADA = {"data": {"id": "p", "status": "verified", "credentials": [{"attributes": {"name": "Ada Lovelace"}}]}}


@pytest.mark.parametrize("status", [302, 308])
@pytest.mark.parametrize("location", ["http://evil.invalid/", "/me-creds/api/presentations/other", "?x", ""])
async def test_redirects_are_refused(carrier: str, status: int, location: str) -> None:
    async with sending(carrier, lambda *_: ok(b"", f"Location: {location}", status=status)) as (server, api):
        with pytest.raises(InvalidResponse) as caught:
            await api.presentations.get("p")
    assert caught.value.status == status
    assert server.targets == [PRESENTATION + "p"]


async def test_nothing_is_sent_that_nobody_has_asked_for_and_no_cookie_is_kept(carrier: str) -> None:
    async with sending(carrier, lambda *_: ok(ADA, "Set-Cookie: session=2; Path=/")) as (server, api):
        for _ in range(2):
            await api.presentations.get("p")
    ask, *gets = ({line.partition(b":")[0].decode().lower() for line in head.splitlines()} for head in server.heads)
    own = set() if carrier == "libcurl" else {"connection"}
    assert ask == own | {"host", "accept", "accept-encoding", "user-agent", "content-type", "content-length"}
    assert gets == [own | {"host", "accept", "accept-encoding", "user-agent", "authorization"}] * 2


async def test_logs_hold_no_token_no_secret_and_no_body(carrier: str, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("", "asyncio"):  # Our own set-up may have kept them quiet.
        caplog.set_level(logging.DEBUG, name)
    asyncio.get_running_loop().set_debug(True)
    answers = iter([ok(ADA), ok({"errors": [{"detail": "Ada Lovelace"}]}, status=400), ok(ADA)[:-9] + CUT])
    async with sending(carrier, lambda *_: next(answers)) as (_, api):
        await api.presentations.get("p")
        with pytest.raises(InvalidRequest) as refused:
            await api.presentations.get("p")
        with pytest.raises(Unavailable) as cut:
            await api.presentations.get("p")
    for secret in ("Ada", "s3cret", "t0ken-value", "Bearer"):
        assert secret not in caplog.text
        assert secret not in f"{refused.value} {cut.value}"
