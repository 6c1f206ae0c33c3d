"""The handlers against an application in this process."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError
from reminders import handlers
from reminders.issuances import renew
from reminders.plugin import connected
from reminders.presentations import remind

from credhook.testing import assert_idempotent, event, run, run_event

REQUESTED = "openid4vc.verification.requested"
DAYS = timedelta(days=3)


class Application:
    """Notes the paths that it is sent, by idempotency key."""

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self.answer), base_url="https://application")

    async def answer(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)  # Suspend like a network: `assert_idempotent` crashes the handler here.
        self.asked[request.headers["idempotency-key"]] = request.url.path
        return httpx.Response(202)


def test_holder_is_reminded_when_three_days_have_passed() -> None:
    application = Application()
    asked = event(REQUESTED, resource_id="p1", webhook_id="m1")
    result = run_event(asked, handlers, state=application.client)
    assert (result.state, [timedelta(seconds=run.seconds) for run in result.runs]) == ("done", [timedelta(0), DAYS])
    assert application.asked == {"m1:reminders.remind": "/requests/p1/reminders"}


def test_answered_request_needs_no_reminder() -> None:
    application = Application()
    answered = event(REQUESTED, status="verified")
    assert run(remind, answered, state=application.client).outcome == "done"
    assert application.asked == {}


def test_expired_offer_is_renewed() -> None:
    application = Application()
    expired = event("openid4vc.issuance.expired", resource_id="i1", webhook_id="m1")
    assert run(renew, expired, state=application.client).outcome == "done"
    assert application.asked == {"m1:reminders.renew": "/offers/i1/renewals"}


def test_it_may_run_again() -> None:
    applications: list[Application] = []

    def fresh() -> httpx.AsyncClient:
        applications.append(Application())
        return applications[-1].client

    assert_idempotent(remind, event(REQUESTED), fresh=fresh, effects=lambda: applications[-1].asked)


async def authorization() -> str:
    async with asynccontextmanager(connected)() as client:
        assert "s3cret" not in repr(client.headers)
        return client.headers["authorization"]


def test_token_is_a_variable_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMINDERS_URL", "https://application")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with pytest.raises(ValidationError, match=r"token\n  Field required"):
        asyncio.run(authorization())
    (tmp_path / "REMINDERS_TOKEN").write_text("s3cret\n")
    assert asyncio.run(authorization()) == "Bearer s3cret"
    monkeypatch.setenv("REMINDERS_TOKEN", "s3cret of the environment")
    assert asyncio.run(authorization()) == "Bearer s3cret of the environment"
