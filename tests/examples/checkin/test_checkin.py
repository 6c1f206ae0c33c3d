"""The handler with fakeredis, which has streams and needs no server."""

from typing import Any

import pytest
from checkin import OUTCOME, SECONDS, tell
from fakeredis.aioredis import FakeRedis

from credhook.testing import aassert_idempotent, arun, event

DATA, FAILED, EXPIRED = (f"openid4vc.verification.{word}" for word in ("data", "failed", "expired"))


def fresh() -> FakeRedis:
    return FakeRedis(decode_responses=True)


async def kept(redis: Any) -> list[tuple[str, Any, bool]]:
    """Return all that Redis holds: key, fields, and whether it expires."""
    keys = await redis.keys()
    found = [(key, await redis.xrange(key), await redis.ttl(key)) for key in keys]
    return [(key, [fields for _, fields in entries], 0 < ttl <= SECONDS) for key, entries, ttl in found]


@pytest.mark.parametrize(("type_", "details", "outcome"), [
    (DATA, {"attributes": {"givenName": "Ada"}}, "accepted"), (DATA, {"is_valid": False}, "refused"),
    (FAILED, {}, "refused"), (EXPIRED, {}, "expired"),
])  # fmt: skip
async def test_the_page_gets_one_word(type_: str, details: dict[str, Any], outcome: str) -> None:
    redis = fresh()
    assert (await arun(tell, event(type_, resource_id="p1", **details), state=redis)).outcome == "done"
    assert await kept(redis) == [(OUTCOME + "p1", [{"outcome": outcome}], True)]


async def test_details_that_lag_behind_are_no_outcome() -> None:
    redis = fresh()
    result = await arun(tell, event(DATA, status="requested"), state=redis)
    assert (result.outcome, result.retry_in, await kept(redis)) == ("waiting", 2, [])


async def test_it_may_run_again() -> None:
    await aassert_idempotent(tell, event(DATA), fresh=fresh, effects=kept)
