"""The handler against a database in a temporary folder."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from billing import CENTS, bill, create_tables

from credhook.testing import assert_idempotent, event, run

COMPLETED = "openid4vc.issuance.completed"


def cents(database: str) -> list[int]:
    with closing(sqlite3.connect(database)) as connection:
        return [row[0] for row in connection.execute("SELECT cents FROM bills ORDER BY month")]


def test_each_event_is_billed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh() -> str:
        monkeypatch.setenv("BILLING_DATABASE", str(tmp_path / str(len(list(tmp_path.iterdir())))))
        return create_tables()

    assert_idempotent(bill, event(COMPLETED), fresh=fresh, effects=cents)
    database, made = fresh(), event(COMPLETED, webhook_id="m1")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("ALTER TABLE bills RENAME TO lost")
        assert run(bill, made, state=database).outcome == "waiting"  # The key must not outlive the transaction.
        connection.execute("ALTER TABLE lost RENAME TO bills")
    for each in (made, event(COMPLETED, webhook_id="m2")):
        assert run(bill, each, state=database).outcome == "done"
    assert cents(database) == [2 * CENTS]
