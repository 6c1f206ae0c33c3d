"""The doctor's decisions, and that no check keeps the others: no Redis, no network."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from credhook.ops.doctor import exit_code, line
from credhook.ops.doctor_platform import PublicAnswer, of_answer
from credhook.ops.doctor_redis import TRIALS, refused
from credhook.ops.findings import CheckGroup, Finding, examine, fail, ok, skipped, split_remedy, warn

ROOT = Path(__file__).parents[2]


def test_a_group_that_does_not_end_is_left_and_its_findings_stay() -> None:
    never = threading.Event()

    def stuck() -> Iterator[Finding]:
        yield ok("a.one", "well")
        never.wait()

    groups = [CheckGroup(("a.one", "a.two"), stuck, "see a"), CheckGroup(("b.one",), lambda: [ok("b.one", "")])]
    findings = examine(groups, 0.2)
    assert findings == [ok("a.one", "well"), fail("a.two", "no answer within 0.2 s", "see a"), ok("b.one", "")]
    never.set()


def test_a_check_that_breaks_does_not_hide_other_groups() -> None:
    def broken() -> Iterator[Finding]:
        yield ok("a.one", "well")
        raise ZeroDivisionError

    groups = [CheckGroup(("a.one", "a.two"), broken), CheckGroup(("b.one",), lambda: [ok("b.one", "")])]
    assert [(one.name, one.verdict) for one in examine(groups)] == [("a.one", "ok"), ("a.two", "fail"), ("b.one", "ok")]


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([], 0),
        ([ok("redis.clock", ""), skipped("platform.api", "")], 0),
        ([warn("redis.maxmemory", "", "")], 1),
        ([fail("redis.reached", "", "")], 1),
        ([warn("settings.unknown", "", "")], 1),
        ([fail("redis.reached", "", ""), fail("settings.worker", "", "")], 2),
    ],
)
def test_exit_codes(findings: list[Finding], code: int) -> None:
    assert exit_code(findings) == code


def test_a_line_says_what_and_what_to_do_and_nothing_that_a_terminal_obeys() -> None:
    assert (
        line(warn("a.b", "host \x1b[2J is odd", "mend it"))
        == "warn    a.b                     host ?[2J is odd; mend it"
    )
    assert split_remedy("one; two; three") == ("one", "two; three")


def test_every_command_of_our_scripts_is_tried() -> None:
    """Those of Python are few, and mostly the same; whoever adds a script finds its commands missing here."""
    called = {
        name
        for top in ("credhook", "receiver", "worker")
        for path in (ROOT / top).rglob("*.lua")
        for name in re.findall(r"(?:redis\.p?call|if_hash)\('([A-Z]+)'", path.read_text())
    }
    assert called
    assert called <= {str(trial[0]) for trial in TRIALS}


def test_refusals_are_told_apart_from_other_errors() -> None:
    trials = (("HSET", "k"), ("GET", "k"), ("SET", "k"))
    replies = [
        NoPermissionError("this user has no permissions to run the 'hset' command or its subcommand"),
        NoPermissionError("this user has no permissions to access one of the keys used as arguments"),
        ResponseError("OOM command not allowed when used memory > 'maxmemory'."),
    ]
    assert refused(trials, replies) == (["HSET"], ["keys"])


@pytest.mark.parametrize(
    ("answer", "verdict", "words"),
    [
        (PublicAnswer(400, is_refusal=True), "ok", "a receiver"),
        (PublicAnswer(404, is_refusal=True), "fail", "no deliveries at this path"),
        (PublicAnswer(500, is_refusal=True), "fail", "answers 500"),
        (PublicAnswer(400, is_refusal=False), "fail", "is no receiver"),
        (PublicAnswer(301, is_refusal=False), "fail", "answers 301"),
    ],
)
def test_where_the_public_url_leads(answer: PublicAnswer, verdict: str, words: str) -> None:
    found = of_answer(answer)
    assert found.verdict == verdict
    assert words in found.what
