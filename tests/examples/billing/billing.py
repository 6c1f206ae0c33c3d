"""Bill each completed issuance once: the effect and the idempotency key are written in one transaction."""

import os
import sqlite3
from contextlib import closing
from typing import Final

from credhook import FetchedEvent, Handlers, Issuance, SyncContext

CENTS: Final = 25

# SQLite and PostgreSQL understand all four. psycopg writes %s for ?.
SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS billed (key text PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS bills (month text PRIMARY KEY, cents bigint NOT NULL)",
)
KEY: Final = "INSERT INTO billed VALUES (?) ON CONFLICT (key) DO NOTHING"
BILL: Final = "INSERT INTO bills VALUES (?, ?) ON CONFLICT (month) DO UPDATE SET cents = bills.cents + excluded.cents"

handlers = Handlers[str]("billing")


@handlers.startup
def create_tables() -> str:
    """Create missing tables, and return the path of the database."""
    path = os.environ["BILLING_DATABASE"]
    with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        for statement in SCHEMA:
            connection.execute(statement)
    return path


@handlers.on("openid4vc.issuance.completed")
def bill(event: FetchedEvent[Issuance], context: SyncContext[str]) -> None:
    """Add the price to the bill of the month, unless an earlier run of this handler for this event did."""
    with closing(sqlite3.connect(context.state, timeout=30)) as connection, connection:  # One transaction.
        if connection.execute(KEY, [context.idempotency_key]).rowcount:
            connection.execute(BILL, [f"{event.received_at:%Y-%m}", CENTS])
