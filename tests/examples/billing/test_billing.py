"""The handler against a database in a temporary folder."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from billing import CENTS, bill, create_tables

from credhook.testing import assert_idempotent, event, run

COMPLETED = "openid4vc.issuance.completed"


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("BILLING_DATABASE", str(tmp_path / "bills"))
    return create_tables()


def cents(database: str) -> list[int]:
    with closing(sqlite3.connect(database)) as connection:
        return [row[0] for row in connection.execute("SELECT cents FROM bills ORDER BY month")]


def test_it_may_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh() -> str:
        monkeypatch.setenv("BILLING_DATABASE", str(tmp_path / f"{len(list(tmp_path.iterdir()))}"))
        return create_tables()

    assert_idempotent(bill, event(COMPLETED), fresh=fresh, effects=cents)


def test_each_event_is_billed(database: str) -> None:
    for made in (event(COMPLETED, webhook_id="m1"), event(COMPLETED, webhook_id="m2")):
        assert [run(bill, made, state=database).outcome for _ in "12"] == ["done"] * 2
    assert cents(database) == [2 * CENTS]


def test_an_event_that_could_not_be_billed_is_billed_later(database: str) -> None:
    """The key must not outlive a transaction that failed."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("ALTER TABLE bills RENAME TO lost")
        assert run(bill, event(COMPLETED, webhook_id="m"), state=database).outcome == "waiting"
        connection.execute("ALTER TABLE lost RENAME TO bills")
    assert run(bill, event(COMPLETED, webhook_id="m"), state=database).outcome == "done"
    assert cents(database) == [CENTS]
