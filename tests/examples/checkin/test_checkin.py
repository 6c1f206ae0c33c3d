"""The handler and the pages with fakeredis, which has streams and needs no server."""

import asyncio
from typing import Any

import httpx
import pytest
from checkin import OUTCOME, SECONDS, tell
from checkin_web import api_of, app, redis_of
from fakeredis.aioredis import FakeRedis

from credhook.testing import FakeApi, aassert_idempotent, arun, event

DATA, FAILED, EXPIRED = (f"openid4vc.verification.{word}" for word in ("data", "failed", "expired"))


def fresh() -> FakeRedis:
    return FakeRedis(decode_responses=True)


async def kept(redis: Any) -> list[tuple[str, Any, bool]]:
    """Return all that Redis holds: key, fields, and whether it expires."""
    keys = await redis.keys()
    found = [(key, await redis.xrange(key), await redis.ttl(key)) for key in keys]
    return [(key, [fields for _, fields in entries], 0 < ttl <= SECONDS) for key, entries, ttl in found]


@pytest.mark.parametrize(("type_", "details", "words"), [
    (DATA, {"attributes": {"givenName": "Ada"}}, ["accepted"]), (DATA, {"is_valid": False}, ["refused"]),
    (FAILED, {}, ["refused"]), (EXPIRED, {}, ["expired"]),
    (DATA, {"status": "requested"}, []), (DATA, {"status": "pending"}, []),
])  # fmt: skip
async def test_the_page_gets_one_word_unless_the_details_lag_behind(
    type_: str, details: dict[str, Any], words: list[str]
) -> None:
    redis = fresh()
    result = await arun(tell, event(type_, resource_id="p1", **details), state=redis)
    assert (result.outcome, result.retry_in) == (("done", None) if words else ("waiting", 2))
    assert await kept(redis) == [(OUTCOME + "p1", [{"outcome": word}], True) for word in words]


async def test_it_may_run_again() -> None:
    await aassert_idempotent(tell, event(DATA), fresh=fresh, effects=kept)


async def test_waiting_page_gets_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    api, redis = FakeApi(), fresh()
    api.answer("/requests", {"data": {"id": "p1", "authorizationRequestUri": "openid4vp://?client_id=us"}})
    monkeypatch.setenv("CHECKIN_REQUEST_PATH", "/requests")
    monkeypatch.setattr(app, "dependency_overrides", {api_of: lambda: api, redis_of: lambda: redis})
    url, transport = "https://checkin", httpx.ASGITransport(app)
    async with (
        httpx.AsyncClient(base_url=url, transport=transport, follow_redirects=True) as browser,
        httpx.AsyncClient(base_url=url, transport=transport) as stranger,
    ):
        assert "openid4vp://?client_id=us" in (await browser.post("/begin")).text
        waiting = asyncio.create_task(browser.get("/stream"))
        await asyncio.wait({waiting}, timeout=0.1)
        assert not waiting.done()
        await arun(tell, event(DATA, resource_id="p1"), state=redis)
        assert (await waiting).text.endswith("data: look\n\n")
        assert "<p>accepted</p>" in (await browser.get("/")).text
        assert "accepted" not in (await stranger.get("/")).text
