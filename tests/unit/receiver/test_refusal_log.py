"""What a refused sender can do to the log, and what it is told."""

import json
import time
from typing import Any
from uuid import UUID

import httpx
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from credhook.events import Malformed
from credhook.logs import FloodGuard
from credhook.receiver.app import MAX_LOGGED, SPELL_SECONDS, RefusalLog, RouteNotFound, Spell, create_app
from credhook.receiver.inbox import StoreUnavailable
from credhook.receiver.signature import BadHeaders, OutsideTolerance, Unauthenticated
from credhook.settings import ReceiverSettings
from support.receiver.signing import OTHER_SECRET, SECRET, body, headers


def test_refusals_are_logged_until_they_become_a_flood() -> None:
    refusals = RefusalLog()
    with capture_logs() as logs:
        bodies = [refusals.refuse(Unauthenticated("no signature matches", "check the keys")).body for _ in range(1_000)]
        refusals.refuse(Unauthenticated("another reason", ""))
        refusals.refuse(StoreUnavailable("TimeoutError"))
        refusals.refuse(OutsideTolerance("the timestamp is too old", ""))
        for refusal in (RouteNotFound("a path"), Malformed("a body"), BadHeaders("a header")):
            refusals.refuse(refusal)
        for refusal in (BadHeaders("a probe's"), RouteNotFound("a probe's")):
            refusals.refuse(refusal, [(b"user-agent", b"credhook-doctor")])
    assert len(logs) == MAX_LOGGED + 6  # A reason that floods the log hides no other one.
    assert logs[0]["hint"] == "check the keys"
    assert "CREDHOOK_WEBHOOK_PATH" in next(line["hint"] for line in logs if line["reason"] == "a path")
    numbers = {rule: spell.number for rule, spell in refusals.spells.items()}
    assert numbers == {"signature": 1_001, "clock": 1, "path": 1, "body": 1, "headers": 1}
    assert refusals.refused == sum(numbers.values())
    ids = {json.loads(bytes(body))["errors"][0]["id"] for body in bodies}
    assert len(ids) == 1_000
    assert {UUID(each).version for each in ids} == {4}


def test_refusals_of_each_rule_have_their_own_count_and_time() -> None:
    refusals = RefusalLog()
    refusals.spells["path"] = Spell(40, 0.0, time.monotonic() - SPELL_SECONDS - 1)
    for refusal in (RouteNotFound("a path"), RouteNotFound("a path"), OutsideTolerance("too old", "")):
        refusals.refuse(refusal)
    assert {rule: spell.number for rule, spell in refusals.spells.items()} == {"path": 2, "clock": 1}
    assert refusals.spells["path"].last <= refusals.spells["clock"].first


def test_refusal_logs_only_request_ids_of_a_proxys_form() -> None:
    made = "4a3c1c0e-5b1d-4a53-9d0c-3f2a9c1e77b1"
    sent = [made, made.replace("-", ""), "Ada-Lovelace", made + "0", "", "Ä" * 32]
    with capture_logs() as logs:
        for value in sent:
            RefusalLog().refuse(RouteNotFound("a path"), [(b"x-request-id", value.encode("latin-1"))])
    assert [line.get("request_id") for line in logs] == [*sent[:2], None, None, None, None]
    with capture_logs() as logs:  # The webhook-id of an authentic delivery is no stranger's.
        for refusal in (Malformed("a body"), StoreUnavailable("TimeoutError"), RouteNotFound("a path")):
            RefusalLog().refuse(refusal, [(b"webhook-id", b"m1")])
    assert [line.get("webhook_id") for line in logs] == ["m1", "m1", None]


async def test_a_defect_of_ours_is_a_500_so_that_the_sender_keeps_the_delivery() -> None:
    no_inbox: Any = None
    settings: Any = ReceiverSettings
    secrets = {"CREDHOOK_WEBHOOK_SECRETS": SECRET, "CREDHOOK_PATH_SECRET": f"{'o' * 22} {'p' * 22}"}
    app, content = create_app(settings(**secrets), no_inbox, RefusalLog()), body()
    with capture_logs() as logs:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://inbox") as client:
            good, wrong = headers("m1", content), headers("m1", content, secret=OTHER_SECRET)
            posts = [
                await client.post(f"/webhooks/{letter * 22}", content=content, headers=sent)
                for letter, sent in (("o", {"webhook-id": "m1"}), ("p", wrong), ("o", good), ("p", good))
            ]
            nowhere = [(await client.post(path, content=content)).json()["errors"] for path in ("/webhooks/o", "/o")]
            answers = [*posts[2:], await client.get("/readyz")]
    assert [error.pop("id") for (error,) in nowhere]
    assert nowhere[0] == nowhere[1]
    assert [answer.status_code for answer in posts[:2]] == [400, 401]  # A path secret is no signature.
    for answer in answers:
        (error,) = answer.json()["errors"]
        assert (answer.status_code, error["code"]) == (500, "INTERNAL_SERVER_ERROR")
        assert "NoneType" not in answer.text
    assert [line["event"] for line in logs if line["event"] != "delivery_refused"] == ["receiver_failed"] * 3
    assert REGISTRY.get_sample_value("credhook_refusals_total", {"rule": "defect", "status": "500"})


def test_refusals_of_a_kind_are_logged_again_after_a_minute() -> None:
    now = 0.0
    guard = FloodGuard(1, lambda: now)
    assert [guard.admit("a"), guard.admit("a"), guard.admit("b")] == [{}, None, {}]
    now += 60
    assert [guard.admit("a"), guard.admit("a"), guard.admit("b")] == [{"unlogged_before": 1}, None, {}]
    now += 60
    assert guard.admit("a") == {"unlogged_before": 1}  # Since its last line, not in all.
