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
