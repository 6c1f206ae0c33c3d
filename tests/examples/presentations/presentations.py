"""Keep the state of every presentation in PostgreSQL. No claims."""

import os
from typing import Final, TypeAlias

from psycopg import AsyncConnection, DataError, IntegrityError
from psycopg_pool import AsyncConnectionPool

from credhook import AsyncContext, FetchedEvent, Handlers, Presentation

Pool: TypeAlias = AsyncConnectionPool[AsyncConnection]

handlers = Handlers[Pool]("presentations")

_SCHEMA: Final = """
    CREATE TABLE IF NOT EXISTS presentations (id text PRIMARY KEY, status text NOT NULL, trusted boolean NOT NULL)
"""
_STATE: Final = """
    INSERT INTO presentations VALUES (%(id)s, %(status)s, %(trusted)s)
    ON CONFLICT (id) DO UPDATE SET status = excluded.status, trusted = excluded.trusted
"""


@handlers.startup
async def connect() -> Pool:
    """Create missing tables, and return the connection pool of this worker process. Errors are tried again."""
    database = os.environ["PRESENTATIONS_DATABASE_URL"]
    async with await AsyncConnection.connect(database, connect_timeout=10) as connection:
        await connection.execute(_SCHEMA)
    pool = Pool(database, min_size=1, max_size=4, timeout=10, open=False, check=Pool.check_connection)
    await pool.open()
    return pool


@handlers.shutdown
async def disconnect(pool: Pool) -> None:
    """Close the connections."""
    await pool.close()


@handlers.on(
    "openid4vc.verification.requested",
    "openid4vc.verification.verified",
    "openid4vc.verification.failed",
    "openid4vc.verification.expired",
    concurrency=16,  # In the whole fleet: the database limits connections.
    give_up_on=(DataError, IntegrityError),  # A retry would insert the same row.
)
async def store(event: FetchedEvent[Presentation], context: AsyncContext[Pool]) -> None:
    """Update the presentation's state unless a later state was stored. Another run stores the same."""
    if context.stale:
        return
    row = {"id": event.resource_id, "status": event.details.status, "trusted": event.details.trusted}
    async with context.state.connection() as connection:  # One transaction.
        await connection.execute(_STATE, row)
