"""A token endpoint that refuses, or does not answer: what one member was told all know, for as long as it lasts."""

from collections.abc import Iterator

import pytest
from redis import Redis
from structlog.testing import capture_logs
from token_fleet import Platform, at_once, fleet, serving

from credhook.worker.api.calls.errors import ApiError, Unauthorized, Unavailable

DAY_MS = 86_400_000


@pytest.fixture
def platform() -> Iterator[Platform]:
    with serving() as platform:
        yield platform


async def test_a_refusal_is_everyones_for_a_while_and_not_asked_for_again(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    platform.refusal = (401, {})
    notes = set()
    async with fleet(10, platform, redis_url) as members:
        for _ in range(2):
            outcomes = await at_once(members)
            assert [type(each) for each in outcomes] == [Unauthorized] * 10
            assert {each.status for each in outcomes if isinstance(each, ApiError)} == {401}
            assert platform.waiting == 1
            notes.add(redis_client.get(f"{platform.key}:refused"))
        assert len(notes) == 1  # Whoever is told does not tell it again.
        assert 0 < redis_client.pttl(f"{platform.key}:refused") <= 10_000
        assert redis_client.keys() == [f"{platform.key}:refused".encode()]
        platform.refusal = None
        async with fleet(1, platform, redis_url, secret="mended") as (mended,):
            assert await mended.get() == "p"
        redis_client.delete(f"{platform.key}:refused", platform.key)
        assert await at_once(members) == ["p"] * 10


async def test_a_busy_token_endpoint_is_left_alone_for_as_long_as_it_says(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    platform.refusal = (503, {"retry-after": "60"})
    async with fleet(5, platform, redis_url) as members:
        for outcome in await at_once(members):
            assert isinstance(outcome, Unavailable)
            assert outcome.status == 503
            assert outcome.retry_after is not None
            assert 30 < outcome.retry_after <= 60
    assert platform.waiting == 1
    assert 30_000 < redis_client.pttl(f"{platform.key}:refused") <= 60_000


async def test_a_token_request_without_an_answer_is_the_next_ones_to_try(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    platform.hangs_up = True
    async with fleet(3, platform, redis_url) as members:
        assert [type(each) for each in await at_once(members)] == [Unavailable] * 3
        assert platform.waiting == 3
        assert redis_client.keys() == []
        platform.hangs_up = False
        assert await at_once(members) == ["p"] * 3
    assert platform.waiting == 4


@pytest.mark.parametrize("note", [b"[]", b"{", b'["OfTomorrow", 418]', b'["Unavailable"]', b"7"])
async def test_a_refusal_of_a_form_that_is_not_known_counts_for_nothing(
    platform: Platform, redis_url: str, redis_client: Redis, note: bytes
) -> None:
    async with fleet(1, platform, redis_url) as (member,):
        name = f"{platform.key}:refused"
        redis_client.set(name, member.cipher.encrypt(note, name), px=9_000)
        with capture_logs() as logs:
            assert await member.get() == "p"
    assert [(entry["event"], entry["what"]) for entry in logs] == [("shared_unreadable", "refusal")]


@pytest.mark.parametrize("ends", [None, DAY_MS], ids=["never", "after a day"])
async def test_a_refusal_that_would_last_for_longer_than_any_is_not_believed(
    platform: Platform, redis_url: str, redis_client: Redis, ends: int | None
) -> None:
    platform.refusal = (401, {})
    async with fleet(2, platform, redis_url) as (first, second):
        assert isinstance(await first.get(), Unauthorized)
        platform.refusal = None
        assert isinstance(await second.get(), Unauthorized)
        name = f"{platform.key}:refused"
        redis_client.set(name, redis_client.get(name) or b"", px=ends)
        assert await second.get() == "p"
    assert platform.waiting == 2
