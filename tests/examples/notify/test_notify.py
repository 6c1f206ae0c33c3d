"""The handlers against an endpoint in this process, without network and Redis."""

import asyncio

import httpx
import pytest
from notify import Endpoint, refusal, tell_issuance, tell_presentation
from standardwebhooks import Webhook

from credhook import Retry
from credhook.testing import assert_idempotent, event, run

COMPLETED = "openid4vc.issuance.completed"
DATA = "openid4vc.verification.data"


class Taker:
    """An endpoint that verifies messages, and answers with these statuses in turn, then with 202."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.signing = Webhook("whsec_bm90aWZ5LW9ubHktZm9yLXRlc3Rz")
        #: webhook-id → message.
        self.told: dict[str, object] = {}

    async def answer(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)  # Suspend like a network: `assert_idempotent` crashes the handler here.
        self.told[request.headers["webhook-id"]] = self.signing.verify(request.content, dict(request.headers))
        status = self.statuses.pop(0) if self.statuses else 202
        return httpx.Response(status, headers={"retry-after": "120"})

    def endpoint(self) -> Endpoint:
        """Return the handlers' state."""
        return Endpoint(httpx.AsyncClient(transport=httpx.MockTransport(self.answer)), "https://taker/", self.signing)


def test_the_endpoint_is_told_ids_types_and_states() -> None:
    taker, made = Taker(), event(DATA, webhook_id="msg_1", resource_id="p1")
    assert run(tell_presentation, made, state=taker.endpoint()).outcome == "done"
    said = {"type": DATA, "timestamp": made.received_at.isoformat(), "data": {"id": "p1", "status": "verified"}}
    assert taker.told == {"msg_1:notify:tell_presentation": said}


def test_nobody_is_told_what_cannot_be_believed() -> None:
    taker = Taker()
    assert run(tell_presentation, event(DATA, is_valid=False), state=taker.endpoint()).outcome == "skipped"
    assert taker.told == {}


def test_a_busy_endpoint_is_told_again_under_the_same_id() -> None:
    taker = Taker(429, 503)
    first = run(tell_issuance, event(COMPLETED), state=Taker(429).endpoint())
    assert (first.outcome, first.retry_in) == ("waiting", 120)
    result = run(tell_issuance, event(COMPLETED), state=taker.endpoint(), attempts="until settled")
    assert (result.outcome, result.attempts, len(taker.told)) == ("done", 3, 1)


def test_an_endpoint_that_is_gone_is_left_alone() -> None:
    result = run(tell_issuance, event(COMPLETED), state=Taker(410).endpoint())
    assert (result.outcome, result.cause) == ("dead", "the endpoint answered 410")


@pytest.mark.parametrize(("status", "retry_after", "seconds"), [
    (503, "", None), (503, "120", 120), (429, "9" * 40, 604_800), (500, "Mon, 04 May 2026 12:01:30 GMT", None),
])  # fmt: skip
def test_it_says_when_to_come_back(status: int, retry_after: str, seconds: float | None) -> None:
    refused = refusal(status, retry_after)
    assert isinstance(refused, Retry)
    assert refused.after == seconds


def test_it_may_run_again() -> None:
    taken: list[Taker] = []

    def fresh() -> Endpoint:
        taken.append(Taker())
        return taken[-1].endpoint()

    assert_idempotent(tell_issuance, event(COMPLETED), fresh=fresh, effects=lambda: taken[-1].told)
