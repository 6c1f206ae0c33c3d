"""The doctor's decisions, without Redis and network."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import AF_INET, SOCK_STREAM

import pytest

from credhook.ops.doctor import _read_settings, check_clock, check_endpoints, check_password, line
from credhook.ops.outside import check_answer, check_certificate
from credhook.ops.verdict import Finding, split_remedy, warn
from credhook.store.address import RedisAddress
from credhook.worker.api.models import Endpoint


def test_a_line_says_what_and_what_to_do_and_nothing_that_a_terminal_obeys() -> None:
    shown = line(warn("a.b", "host \x1b[2J is odd", "mend it"))
    assert shown == "warn    a.b                     host \\x1b[2J is odd; mend it"
    assert split_remedy("one; two; three") == ("one", "two; three")


def ending(days: float) -> Finding:
    return check_certificate("certificate.redis", datetime.now(UTC) + timedelta(days=days), "renew it")


@pytest.mark.parametrize(
    ("url", "verdict"),
    [
        ("redis://127.0.0.1", "ok"),
        ("redis://10.1.2.3", "ok"),
        ("redis://[fd00::1]", "ok"),
        ("unix:///run/redis.sock", "ok"),
        ("redis://nowhere.invalid", "ok"),
        ("redis://9.9.9.9", "warn"),
        ("rediss://[2620:fe::fe]:6380", "warn"),
        ("redis+sentinel://10.1.2.3,9.9.9.9/main", "warn"),
        ("redis+sentinel://nowhere.invalid,9.9.9.9/main", "warn"),
        ("redis://:secret@9.9.9.9", "ok"),
        ("redis://user:secret@9.9.9.9", "ok"),
    ],
)
def test_doctor_warns_of_a_public_redis_without_a_password(url: str, verdict: str) -> None:
    finding = check_password(RedisAddress.parse(url))
    assert (finding.name, finding.verdict) == ("redis.password", verdict)
    assert ("redis-users.acl" in finding.remedy) is (verdict == "warn")


def test_redis_that_asks_for_a_certificate_needs_no_password() -> None:
    address = replace(RedisAddress.parse("rediss://9.9.9.9"), certfile=Path("client.pem"))
    assert check_password(address).verdict == "ok"


@pytest.mark.parametrize("addresses", [("10.1.2.3", "9.9.9.9"), ("9.9.9.9", "10.1.2.3")])
def test_one_public_address_of_a_name_is_enough_for_a_warning(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    found = [(AF_INET, SOCK_STREAM, 6, "", (address, 6_379)) for address in addresses]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    assert check_password(RedisAddress.parse("redis://redis.example")).verdict == "warn"


ERRORS = b'{"errors": [{"id": "1"}]}'
URL, ALSO = "https://inbox.example/webhooks", "the platform also delivers to https://"
OLD = URL + "/" + "s" * 22
FAILED, OFFERED = "openid4vc.issuance.failed", "openid4vc.issuance.offered"
OURS = ("credhook-2-q", URL, [FAILED])


def delivering(*registered: tuple[str, str, list[str] | None]) -> Finding:
    endpoints = [Endpoint(id=id_, url=url, filter_types=types and tuple(types)) for id_, url, types in registered]
    return check_endpoints(URL, frozenset([FAILED]), endpoints, "q")


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (delivering(), "fail", "delivers nothing to"),
        (delivering(("credhook-1-r", OLD, [FAILED])), "fail", "delivers nothing to"),
        (delivering(("credhook-2-q", URL, [OFFERED])), "fail", "handlers want openid4vc.issuance.failed, which"),
        (delivering(("credhook-2-q", URL, [OFFERED]), ("by-hand", OLD, [FAILED])), "fail", "handlers want"),
        (delivering(("credhook-2-q", URL, [FAILED, OFFERED])), "warn", "more than handlers want"),
        (delivering(("by-hand", URL, None)), "warn", "more than handlers want"),
        (delivering(OURS), "ok", "delivers what handlers want"),
        (delivering(OURS, ("credhook-1-r", OLD, [FAILED])), "ok", "delivers what handlers want"),
        (delivering(OURS, ("credhook-1-q", OLD, [FAILED])), "warn", ALSO + "inbox.example/webhooks/ssss…, perhaps"),
        (delivering(OURS, ("by-hand", OLD, [FAILED])), "warn", "also delivers to"),
        (
            delivering(OURS, ("credhook-1-q", "https://old.example/x", [FAILED])),
            "warn",
            ALSO + "old.example/x, perhaps an earlier URL of this deployment run `credhook endpoints plan`: it says",
        ),
        (
            delivering(OURS, ("credhook-1-q", URL, [FAILED])),
            "warn",
            "or some events twice run `credhook endpoints plan`, then `credhook",
        ),
        (check_clock(0), "ok", "agrees"),
        (check_clock(-5), "ok", "within 5 s"),
        (check_clock(6), "warn", "6 s ahead of this host's let both follow an NTP server"),
        (check_clock(-3_600), "warn", "3600 s behind this host's let both follow an NTP server"),
        (ending(-0.1), "fail", "has expired"),
        (ending(0.5), "warn", "left: 0) renew it"),
        (ending(13.9), "warn", "left: 13) renew it"),
        (ending(14.1), "ok", "valid until"),
        (check_answer(400, ERRORS), "ok", "a receiver"),
        (check_answer(404, ERRORS), "fail", "no deliveries at this path"),
        (check_answer(500, ERRORS), "fail", "the receiver there answers 500 see delivery_refused in its log"),
        (check_answer(400, b"<html>"), "fail", "is not a receiver"),
        (check_answer(400, b'{"errors": []}'), "fail", "is not a receiver"),
        (
            check_answer(400, b"[]"),
            "fail",
            "which answers 400, is not a receiver check CREDHOOK_PUBLIC_URL and the proxy",
        ),
        (check_answer(301, b""), "fail", "answers 301"),
    ],
)
def test_every_failed_check_has_a_remedy(found: Finding, verdict: str, words: str) -> None:
    assert (found.verdict, bool(found.remedy)) == (verdict, verdict != "ok"), found
    assert words in f"{found.what} {found.remedy}"
    assert ("credhook endpoints" in found.remedy) == (found.name == "platform.endpoints" and verdict != "ok")


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("receiver", "WEBHOOK_SECRETS PATH_SECRET INSECURE"),
        ("worker", "HANDLERS API_URL TOKEN_URL CLIENT_ID CLIENT_SECRET"),
    ],
)
def test_one_setting_of_a_process_is_enough_for_its_check(part: str, names: str) -> None:
    for name in names.split():
        with pytest.MonkeyPatch.context() as environment:
            assert _read_settings(f"settings.{part}")[1].verdict == "skipped"
            environment.setenv(f"CREDHOOK_{name}", "1")
            assert _read_settings(f"settings.{part}")[1].verdict != "skipped", name
