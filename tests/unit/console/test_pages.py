"""The parts of the console's pages: filters, numbers, escaping."""

import re
from datetime import UTC, datetime, timedelta, timezone
from html import unescape
from typing import Any
from urllib.parse import parse_qsl

import pytest
from starlette.requests import Request

from credhook.console import events
from credhook.console.events import in_words, query_of, selection
from credhook.console.pages import TEMPLATES, number, page
from credhook.ops.fleet import Fleet, PlatformState, ReceiverProcess, RedisServer, WorkerProcess
from credhook.ops.status import arriving
from credhook.store import State
from credhook.store.announcements import PlatformKeys
from credhook.store.causes import Cause
from credhook.store.counts import EventCounts
from credhook.store.health import Check
from credhook.store.selection import Cursor, EventSummary, Page, Selection

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SERVER = RedisServer(
    address="redis://h:6379/0", version="7", used_memory=1, maxmemory=0, appendonly=True, fsync="always",
    checks=(Check("x", True, ""),),
)  # fmt: skip
DEAD = Selection(states=frozenset({State.DEAD}))
EVENTS = [EventSummary(str(number), "", "dead") for number in range(500)]


def shown(template: str, **context: Any) -> str:
    around = {"title": "", "path": "/", "operator": "ada", "now": NOW}
    return TEMPLATES.get_template(template).render(around | context)


def test_an_address_says_what_the_options_of_the_command_say() -> None:
    query = [
        *(("state", "dead"), ("state", "data_gone"), ("type", "verification.data"), ("id", " msg_1 "), ("id", "msg_2")),
        *(("resource", "iss_1"), ("cause", "0123abcd"), ("handler", "a.b"), ("since", "2h"), ("until", "")),
        *(("q", "ignored"), ("after", str(Cursor(5)))),
    ]
    chosen = selection(query, NOW)
    assert chosen.states == {State.DEAD, State.DATA_GONE}
    assert chosen.types == {"openid4vc.verification.data"}
    assert chosen.ids == ("msg_1", "msg_2")
    assert (chosen.resource, chosen.cause, chosen.handler, chosen.after) == ("iss_1", "0123abcd", "a.b", Cursor(5))
    assert chosen.since == datetime(2026, 11, 22, 10, tzinfo=UTC)
    assert selection([*query_of(chosen), query[-1]], NOW) == chosen
    assert in_words(chosen) == (
        "state data_gone, state dead, type verification.data, id msg_1, id msg_2, resource iss_1, "
        "cause 0123abcd, handler a.b, since 2026-11-22T10:00:00+00:00"
    )


@pytest.mark.parametrize(
    ("query", "words"),
    [
        *(([(name, "x")], "x") for name in ("state", "type", "cause", "since", "after")),
        ([("handler", "a b")], "a b"),
        *(([("since", "1h"), ("until", until)], "earlier") for until in ("1h", "2h")),
    ],
)
def test_an_invalid_value_is_named(query: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        selection(query, NOW)


def first_page(fleet: Fleet, arriving: tuple[float, str]) -> str:
    lists: dict[str, Any] = {"findings": (), "notes": (), "graphs": (), "pages_of": {}}
    return shown("now.html", fleet=fleet, arriving=arriving, queue=fleet.queue, **lists)


def tiles(fleet: Fleet) -> dict[str, tuple[str, str]]:
    """The numbers of the first page by their names, each with its tone."""
    page = shown(
        "now.html",
        fleet=fleet,
        arriving=arriving(fleet),
        findings=(),
        notes=(),
        events_of={},
        queue="credhook",
        graphs=[],
    )
    pattern = r'<div class="tile (\w*)">\s*<dt>(.*)</dt>\s*<dd class="figure">(?:<a [^>]*>)?([^<]*)'
    return {name: (value, tone) for tone, name, value in re.findall(pattern, page)}


RECEIVER = ReceiverProcess(
    queue="credhook", host="h", version="1", age=1, durability="strict", per_second=2.5, idle=3, config_fingerprint={}
)


def test_page_highlights_numbers_that_are_wrong() -> None:
    well = tiles(Fleet(queue="credhook", server=SERVER))
    assert list(well) == ["arriving", "queued", "in flight", "retrying", "oldest open", "given up"]
    assert {tone for _, tone in well.values()} == {""}
    counts = EventCounts(dead=7, dead_recently=3, unhandled={"x": 2}, quarantined=1, unreadable=4)
    badly = tiles(Fleet(queue="credhook", server=SERVER, counts=counts, receivers=(RECEIVER,)))
    assert badly["arriving"] == ("2.5/s", "")
    assert badly["given up"] == ("3", "bad")
    assert [badly[name] for name in ("unhandled", "quarantined", "unreadable")] == [(one, "warn") for one in "214"]


WORKER = WorkerProcess(
    name="h.s.1", queue="q", host="h", version="1", age=60, pid=4712, slots=9, in_flight=4, config_fingerprint={},
    handlers={"b.f": (), "a.f": ()}, platform=PlatformKeys(key="c"),
)  # fmt: skip
#: A fleet, and what the first page says of it in its cells and lists.
SHOWN: list[tuple[dict[str, Any], str]] = [
    ({"receivers": (RECEIVER.model_copy(update={"queue": "q", "pid": 4711}),)}, "h 4711 2.5/s 1 q 1 s strict"),
    ({"receivers": (RECEIVER,)}, "No worker has announced itself."),
    ({"others": {"typo": EventCounts(open=3, oldest_age=300)}}, "typo 3 events wait, the oldest since 5 min"),
    ({"workers": (WORKER,)}, "h 4712 4/9 1 q 60 s a.f b.f"),
    (
        {"platforms": (PlatformState(open_breakers=2, paused=9, cause="429", rate=0.5, passed=0.4),)},
        "Pause paused for 9 s, cause 429 Open breakers 2 Passed before a 429 about 0.4/s Rate at most 0.5/s",
    ),
    (
        {"platforms": (PlatformState(open_breakers=0, paused=0, cause="", rate=None, passed=None),)},
        "Pause none Open breakers 0 Rate no limit set",
    ),
    ({}, "Memory 5 MiB, without a limit Fsync always"),
    ({"server": {"maxmemory": 9 << 20, "appendonly": False}}, "Memory 5 MiB, of 9 MiB Fsync no append-only file"),
    (
        {"counts": EventCounts(queued=2, in_flight=3, retrying=4)},
        "worker in flight 3 a worker has them retrying 4 wait",
    ),
    ({"counts": EventCounts(open=9, queued=2), "oldest_open": 300.0}, "oldest open 5 min of 9 open"),
]


@pytest.mark.parametrize(("parts", "said"), SHOWN)
def test_each_figure_of_the_fleet_is_in_its_place(parts: dict[str, Any], said: str) -> None:
    server = SERVER.model_copy(update={"used_memory": 5 << 20} | parts.get("server", {}))
    fleet = Fleet(**{"queue": "q", **parts, "server": server})
    text = first_page(fleet, (0, ""))
    assert said in " ".join(re.sub(r"<[^>]*>", " ", text).split())


def test_values_from_redis_are_escaped() -> None:
    hostile = '<script>alert(1)</script>"><img src=x>'
    cause = Cause("0123abcd", hostile, hostile, hostile, 1, 1, None, None, hostile)
    page = shown("causes.html", causes=[cause], complete=True)
    assert "<script>" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(("unsettled", "given_up", "offered"), [(0, 0, False), (1, 0, True), (0, 1, True)])
def test_a_cause_can_be_replayed_while_events_have_it(unsettled: int, given_up: int, offered: bool) -> None:
    first, last = "2026-11-21T01:02:03Z", "2026-11-22T01:02:03Z"
    cause = Cause("0123abcd", "a.f", "ValueError", "", unsettled, given_up, first, last, "2")
    text = shown("causes.html", causes=[cause], complete=True)
    assert ("/replay?cause=0123abcd" in text) is offered
    told = f"a.f {unsettled} {given_up} 21 Nov 01:02:03 22 Nov 01:02:03 2"
    assert told in " ".join(re.sub(r"<[^>]*>", " ", text).split())


def test_a_page_that_found_no_event_leads_further_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credhook.console.events.read_page", lambda *_, most_read: Page([], Cursor(7), most_read))
    show, _ = events.routes(None)  # type: ignore[arg-type]  # Nothing is asked of it.
    query = "state=dead&type=issuance.failed&resource=r&handler=h.f&cause=0123abcd&since=2h&until=1h&id=a&id=b"
    scope = {"type": "http", "method": "GET", "path": "/events", "query_string": query.encode(), "headers": []}
    request = Request(scope | {"state": {"operator": "ada"}})
    text = show.endpoint(request).body.decode()
    assert f'rel="next" href="/events?{query}&after={Cursor(7)}">Look further back<' in unescape(text)
    inputs = re.findall(r'<input (?:type="(checkbox)" )?name="(\w+)" value="(?:openid4vc\.)?([^"]+)"([^>]*)>', text)
    assert [(name, value) for box, name, value, rest in inputs if not box or "checked" in rest] == parse_qsl(query)
    assert b"\\udcff" in page(request, "problem.html", title="", problem="\udcff").body  # Redis may hold any bytes.


def test_times_are_in_utc_and_numbers_in_groups() -> None:
    time = TEMPLATES.get_template("ui.html").module.time  # type: ignore[attr-defined]  # The macro.
    at = "2026-11-22T12:04:05.123Z"
    assert time("2026-11-22T13:04:05.123+01:00") == f'<time datetime="{at}" title="{at}">22 Nov 12:04:05</time>'
    assert "12:00:00.000Z" in time(NOW)
    assert time(NOW.astimezone(timezone(timedelta(hours=2)))) == time(NOW)
    assert (number(None), number(7), number(1_234_567)) == ("?", "7", "1\u202f234\u202f567")
