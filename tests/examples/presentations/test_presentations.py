"""The handler against a real PostgreSQL."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from postgres_server import MISSING, postgres_server, programs
from presentations import Pool, connect, disconnect, store

from credhook.testing import aassert_idempotent, arun, event

REQUESTED = "openid4vc.verification.requested"
VERIFIED = "openid4vc.verification.verified"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    if (found := programs()) is None:
        pytest.skip(MISSING)
    with postgres_server(found) as url:
        yield url


@pytest.fixture
async def pool(database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pool]:
    """Return the start-up function's pool, with empty tables."""
    monkeypatch.setenv("PRESENTATIONS_DATABASE_URL", database)
    pool = await connect()
    await empty(pool)
    yield pool
    await disconnect(pool)


async def empty(pool: Pool) -> Pool:
    async with pool.connection() as connection:
        await connection.execute("TRUNCATE presentations")
    return pool


async def rows(pool: Pool) -> list[Any]:
    """Return all rows that the handler has written."""
    async with pool.connection() as connection:
        return await (await connection.execute("SELECT id, status, trusted FROM presentations")).fetchall()


async def test_a_presentation_has_the_state_that_it_came_to(pool: Pool) -> None:
    for type_ in (REQUESTED, VERIFIED):
        assert (await arun(store, event(type_, resource_id="p1"), state=pool)).outcome == "done"
    assert await rows(pool) == [("p1", "verified", True)]


async def test_an_older_state_that_comes_late_changes_nothing(pool: Pool) -> None:
    await arun(store, event(VERIFIED, resource_id="p1"), state=pool)
    await arun(store, event(REQUESTED, resource_id="p1"), state=pool, stale=True)
    assert await rows(pool) == [("p1", "verified", True)]


async def test_a_row_that_the_database_refuses_is_given_up(pool: Pool) -> None:
    result = await arun(store, event(VERIFIED, status="\0"), state=pool)
    assert (result.outcome, result.cause) == ("dead", "DataError")
    assert await rows(pool) == []


async def test_it_may_run_again(pool: Pool) -> None:
    await aassert_idempotent(store, event(VERIFIED), fresh=lambda: empty(pool), effects=rows)
