"""The doctor's decisions, without Redis and network."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from credhook.ops.attention import split_remedy, warn
from credhook.ops.doctor import line, of_answer, of_certificate, of_clock, of_endpoints
from credhook.store import Keys
from credhook.store.permissions import TRIALS, Part, command_of, rule
from credhook.worker.api.models import Endpoint

ROOT = Path(__file__).parents[2]


def test_a_line_says_what_and_what_to_do_and_nothing_that_a_terminal_obeys() -> None:
    assert (
        line(warn("a.b", "host \x1b[2J is odd", "mend it"))
        == "warn    a.b                     host \\x1b[2J is odd; mend it"
    )
    assert split_remedy("one; two; three") == ("one", "two; three")


def test_every_command_of_our_scripts_is_tried() -> None:
    """Those of Python are few, and mostly the same; whoever adds a script finds its commands missing here."""
    called = {
        name
        for top in ("credhook", "receiver", "worker")
        for path in (ROOT / top).rglob("*.lua")
        for name in re.findall(r"[(=] ?'([A-Z]{3,})'", path.read_text())
    } - {"WRONGTYPE"}
    assert len(called) > 40
    assert called <= {trial.split()[0] for trial in TRIALS}


@pytest.mark.parametrize("part", Part)
def test_a_rule_names_a_command_only_to_a_redis_that_has_it(part: Part) -> None:
    old, new = rule(part, Keys("q"), (6, 2)), rule(part, Keys("q"), (7, 2))
    assert "+waitaof" not in old
    assert ("+waitaof" in new) == (part is Part.RECEIVER)
    assert "%R~credhook:*:open" not in old
    others = {"%R~credhook:*:open", "%R~credhook:*:workers"} & set(new.split())
    assert len(others) == (0 if part is Part.OPERATOR else 2)
    assert ("&rq:pubsub:*" in new) == (part is not Part.RECEIVER)  # Workers hear the commands of RQ's tools.
    assert ("~credhook:* " in old) == (part is Part.OPERATOR)  # The others see their own queue alone.
    assert {command_of(trial) for trial in TRIALS} >= set(re.findall(r"\+(\S+)", new))


@pytest.mark.parametrize(
    ("ahead", "verdict", "what"),
    [(0, "ok", "agrees"), (-5, "ok", "within 5 s"), (6, "warn", "6 s ahead"), (-3_600, "warn", "3600 s behind")],
)
def test_a_clock_that_is_off(ahead: float, verdict: str, what: str) -> None:
    found = of_clock(ahead)
    assert (found.verdict, what in found.what) == (verdict, True), found
    assert ("NTP" in found.remedy) == (verdict == "warn")


@pytest.mark.parametrize(
    ("days", "verdict", "what"),
    [
        (-0.1, "fail", "has expired"),
        (0.5, "warn", "left: 0)"),
        (13.9, "warn", "left: 13)"),
        (14.1, "ok", "valid until"),
    ],
)
def test_a_certificate_is_remarked_on_two_weeks_before_its_end(days: float, verdict: str, what: str) -> None:
    found = of_certificate("certificate.redis", datetime.now(UTC) + timedelta(days=days), "renew it")
    assert (found.verdict, what in found.what) == (verdict, True), found


ERRORS = b'{"errors": [{"id": "1"}]}'


@pytest.mark.parametrize(
    ("status", "body", "verdict", "words"),
    [
        (400, ERRORS, "ok", "a receiver"),
        (404, ERRORS, "fail", "no deliveries at this path"),
        (500, ERRORS, "fail", "answers 500"),
        (400, b"<html>", "fail", "is no receiver"),
        (400, b'{"errors": []}', "fail", "is no receiver"),
        (400, b"[]", "fail", "is no receiver"),
        (301, b"", "fail", "answers 301"),
    ],
)
def test_where_the_public_url_leads(status: int, body: bytes, verdict: str, words: str) -> None:
    found = of_answer(status, body)
    assert found.verdict == verdict
    assert words in found.what


URL = "https://inbox.example/webhooks"
OLD = URL + "/" + "s" * 22
FAILED, OFFERED = "openid4vc.issuance.failed", "openid4vc.issuance.offered"
OURS = ("credhook-2-q", URL, [FAILED])


@pytest.mark.parametrize(
    ("registered", "verdict", "what"),
    [
        ([], "fail", "delivers nothing to"),
        ([("credhook-1-r", OLD, [FAILED])], "fail", "delivers nothing to"),
        ([("credhook-2-q", URL, [OFFERED])], "fail", "handlers want openid4vc.issuance.failed, which"),
        ([("credhook-2-q", URL, [FAILED, OFFERED])], "warn", "delivers more than handlers want"),
        ([("by-hand", URL, None)], "warn", "delivers more than handlers want"),
        ([OURS], "ok", "delivers what handlers want"),
        ([OURS, ("credhook-1-r", OLD, [FAILED])], "ok", "delivers what handlers want"),
        ([OURS, ("credhook-1-q", OLD, [FAILED])], "warn", "delivers to https://inbox.example/webhooks/ssss…, perhaps"),
        ([OURS, ("by-hand", OLD, [FAILED])], "warn", "also delivers to"),
        ([OURS, ("credhook-1-q", "https://old.example/x", [FAILED])], "warn", "also delivers to https://old.example/x"),
        ([OURS, ("credhook-1-q", URL, [FAILED])], "warn", "or it twice"),
    ],
)
def test_what_the_platform_delivers_is_compared_with_what_handlers_want(
    registered: list[tuple[str, str, list[str] | None]], verdict: str, what: str
) -> None:
    endpoints = [Endpoint(id=id_, url=url, filter_types=types and tuple(types)) for id_, url, types in registered]
    finding = of_endpoints(URL, frozenset([FAILED]), endpoints, "q")
    assert (finding.verdict, what in finding.what) == (verdict, True), finding
    assert ("credhook endpoints" in finding.remedy) == (verdict != "ok")
