"""What wants attention, from facts alone."""
# ruff: noqa: E501  A row of the table is one line.

from typing import Any

import pytest

from credhook.ops.findings import age, attention
from credhook.ops.fleet import ClockStep, Fleet, PlatformState, ReceiverProcess, RedisServer, WorkerProcess, _receiver
from credhook.ops.status import lines
from credhook.ops.verdict import Outside, fail, ok, skipped
from credhook.store.announcements import (
    DEPLOY_SECONDS,
    SILENT_SECONDS,
    Announced,
    ReceiverAnnouncement,
    Refusals,
    missing,
    refuses_alone,
)
from credhook.store.arrivals import Silence
from credhook.store.counts import EventCounts
from credhook.store.health import Check

SERVER = RedisServer(
    address="redis://r:6379/0",
    version="7.4.0",
    used_memory=10,
    maxmemory=100,
    appendonly=True,
    fsync="always",
    checks=(Check("noeviction", True, "set noeviction"), Check("memory", True, "raise maxmemory")),
)
HANDLERS = {"test.f": ("openid4vc.issuance.completed",)}


def receiver(**more: Any) -> ReceiverProcess:
    said = {"queue": "q", "host": "r1", "version": "1", "age": DEPLOY_SECONDS, "durability": "strict"}
    return ReceiverProcess(**{**said, "per_second": 2.5, "idle": 1.0, "config_fingerprint": {}, **more})


def worker(**more: Any) -> WorkerProcess:
    said = {"queue": "q", "name": "w1.s.1", "host": "w1", "version": "1", "age": DEPLOY_SECONDS, "handlers": HANDLERS}
    platform = {"pid": 1, "platform": {"key": "c"}, "config_fingerprint": {}, "started": True}
    return WorkerProcess(**{**said, **platform, "in_flight": 3, "slots": 100, **more})


WELL: dict[str, Any] = {"queue": "q", "server": SERVER, "receivers": (receiver(),), "workers": (worker(),)}
CALLED = PlatformState(open_breakers=0, paused=0.0, cause="", rate=None, passed=None)
PAUSED = PlatformState(open_breakers=4, paused=30.0, cause="503", rate=None, passed=None)
TRIED = PlatformState(open_breakers=1, paused=0.0, cause="", rate=None, passed=None)
REFUSED = PlatformState(open_breakers=0, paused=0.0, cause="", rate=None, passed=2.857)
EVICTING = SERVER.model_copy(update={"checks": (Check("noeviction", False, "set noeviction"),)})


def refusing(number: int, ago: float = 130.0, rule: str = "signature", **more: Any) -> ReceiverProcess:
    """Return a receiver that has refused so many, the first an hour before the last."""
    return receiver(**{"idle": None, "refusals": {rule: {"count": number, "since": ago + 3_600, "ago": ago}}, **more})


#: A second queue, whose processes fit together.
ONE, TWO = {"CREDHOOK_LEASE": "1"}, {"CREDHOOK_LEASE": "2"}
OTHER = {
    "receivers": (
        receiver(config_fingerprint=ONE),
        receiver(queue="b", conflicts=1, conflicted=1.0, config_fingerprint=TWO),
    ),
    "workers": (worker(config_fingerprint=ONE), worker(queue="b", handlers={}, config_fingerprint=TWO)),
}
FINGERPRINTS = tuple(receiver(host=f"r{n}", config_fingerprint={"CREDHOOK_RETENTION": f"{n}"}) for n in (1, 2))

#: The check that finds it, what is otherwise than well, and words of the finding.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("redis.noeviction", {"server": EVICTING}, "set noeviction"),
    ("redis.disk", {"server": SERVER.model_copy(update={"checks": (Check("disk", False, "see its log"),)}), "receivers": (), "workers": (), "counts": EventCounts(open=1), "others": {"b": EventCounts(open=3)}, "missing": (worker(silent=9.0),)}, "see its log"),
    ("redis.memory", {"server": SERVER.model_copy(update={"used_memory": 80})}, "80%"),
    ("fleet.receivers", {"receivers": ()}, "credhook receiver"),
    ("fleet.refusals", {"receivers": (refusing(480), receiver(idle=9_999.0))}, "480 deliveries had no valid signature, the last 2 min ago, on r1 pid 0 and not on r1 pid 0 compare CREDHOOK_WEBHOOK_SECRETS"),
    ("fleet.refusals", {"receivers": (refusing(3), refusing(2, 30.0, idle=3_730.0))}, "5 deliveries had no valid signature, the last 30 s ago compare"),
    ("fleet.refusals", {"receivers": (refusing(7, 30.0, "clock"), receiver(idle=None, refusals={"clock": {"count": 9, "since": 9_000, "ago": 901}}))}, "7 deliveries had a timestamp outside CREDHOOK_TOLERANCE, the last 30 s ago, on r1 pid 0 and not on r1 pid 0 compare `date -u`"),
    ("fleet.refusals", {"receivers": (refusing(5, 30.0, "path"), refusing(6, 60.0, "size"))}, "5 deliveries had another path, the last 30 s ago, on r1 pid 0 and not on r1 pid 0; 6 deliveries broke the rule for size, the last 60 s ago, on r1 pid 0 and not on r1 pid 0 let the URL at the platform end as CREDHOOK_WEBHOOK_PATH and CREDHOOK_PATH_SECRET do; see delivery_refused"),
    ("fleet.refusals", {**OTHER, "receivers": (refusing(5), receiver(queue="b"))}, "5 deliveries had no valid signature, the last 2 min ago compare"),  # Another queue's deliveries excuse nothing.
    ("fleet.refuses_alone", {"receivers": (refusing(40, refuses_alone=True), receiver(pid=2))}, "the receiver r1 pid 0 refuses every delivery while its neighbours accept it is not ready"),
    ("fleet.receivers", {"receivers": (receiver(queue="b"),), "workers": (worker(), worker(queue="b")), "last_delivery": 300.0}, "no receiver of the queue q is alive; its last delivery came 5 min ago start"),
    ("fleet.receivers", {"receivers": (), "last_delivery": 0.0}, "its last delivery came within a minute start"),
    ("fleet.silence", {"last_delivery": 2_400.0, "silence": Silence(40, 1.04)}, "no delivery for 40 min; at this time a week ago, 1.0 deliveries a minute came `credhook doctor` tries"),
    ("fleet.silence", {"receivers": (refusing(4),), "last_delivery": 2_400.0, "silence": Silence(40, 1.0)}, "no delivery for 40 min"),  # A stray request explains no silence.
    ("public_url.reached", {"outside": Outside(at=1, findings=(fail("public_url.reached", "nothing listens", "start it"), ok("a.b", "")))}, "nothing listens start it"),
    ("outside.age", {"outside": Outside(at=1, findings=(ok("a.b", ""),)), "outside_age": 1_201.0}, "last checked 20 min ago see"),
    ("fleet.workers", {"workers": (), "counts": EventCounts(open=7)}, "7 events wait"),
    ("fleet.workers", {"workers": (), "counts": EventCounts(open=1)}, "1 event waits"),
    ("fleet.workers", {**OTHER, "workers": (worker(queue="b"),), "counts": EventCounts(open=1)}, "no worker of the queue q is alive, and 1 event waits start"),
    ("fleet.queues", {"receivers": (receiver(queue="typo"),)}, "to typo, and no worker takes from it; workers take from q, and no receiver writes to it set the same"),
    ("fleet.queues", {"others": {"old": EventCounts(open=3)}}, "3 events wait in the queue old, and no worker takes"),
    ("fleet.queues", {"others": {"old": EventCounts(quarantined=2)}}, "2 events wait in the queue old, and no worker"),
    ("fleet.queues", {"others": {"old": EventCounts(unhandled={"a.type": 2}, unreadable=1)}}, "3 events wait in the queue old"),
    ("fleet.queues", {"others": {"old": EventCounts(open=1, oldest_age=300)}}, "1 event waits, the oldest since 5 min in the queue old, and no worker takes from it if old is misspelt, set the right CREDHOOK_QUEUE for its receivers, and start `credhook worker` with CREDHOOK_QUEUE=old until the queue is empty; if it is another fleet's, see"),
    ("fleet.missing", {"missing": (worker(pid=7, silent=200.0),)}, "1 worker has ended without deregistering and without a replacement, the last: w1 pid 7 3 min ago"),
    ("fleet.missing", {"missing": tuple(worker(pid=pid, silent=1_000.0 - pid) for pid in range(1, 8))}, "7 workers have ended without deregistering and without a replacement, the last: w1 pid 3 17 min ago, w1 pid 4"),  # The longest silence first.
    ("fleet.processes", {"workers": (worker(processes=3), worker(name="w1.s.5", processes=3), worker(name="w2.t.1", processes=1))}, "2 of 3 worker processes run on w1 see the log"),
    ("fleet.processes", {"workers": (worker(processes=3), worker(name="w1.s.9", processes=3, age=1.0))}, "2 of 3 worker processes run on w1"),  # The third dies again and again.
    ("fleet.unavailable", {"receivers": (receiver(), receiver(pid=5, unavailable="CONFIG is denied; allow it"))}, "the receiver r1 pid 5 answered its last delivery with 503: CONFIG is denied allow it"),
    ("fleet.credentials", {"workers": (worker(), worker(credential_error="refused: 401; check it", started=False, age=60.0))}, "worker w1 pid 1 takes no events: refused: 401 check it"),
    ("fleet.credentials", {"workers": tuple(worker(pid=pid, credential_error="refused: 401; check it") for pid in range(1, 8))}, "worker w1 pid 5 takes no events: refused: 401 (7 workers in all) check it"),
    ("fleet.queues", {"receivers": (receiver(), receiver(queue="old")), "workers": (), "others": {"old": EventCounts(open=3)}}, "3 events wait in the queue old, and no worker takes"),
    ("fleet.queues", {**OTHER, "workers": (worker(),), "others": {"b": EventCounts(open=3)}}, "3 events wait in the queue b, and no worker takes from it if"),
    ("fleet.queues", {**OTHER, "workers": (worker(queue="b"),)}, "receivers write to q, and no worker takes from it set the same"),
    ("fleet.queues", {"workers": (worker(), worker(queue="typo"))}, "take from typo, and no receiver writes to it"),
    ("fleet.versions", {"workers": (worker(), *(worker(host=f"w{n}", version="2") for n in range(2, 9)))}, "1 on r1, w1; 2 on w2, w3, w4, w5, w6 upgrade"),
    ("fleet.versions", {"receivers": (receiver(version="2"),)}, "1 on w1; 2 on r1 upgrade"),
    ("fleet.settings", {"receivers": FINGERPRINTS}, "receivers have different CREDHOOK_RETENTION: 1 on r1; 1 on r2"),
    ("fleet.starting", {"workers": (worker(), worker(pid=2, started=False, age=60.0))}, "handlers of worker w1 pid 2 wait: its start has not ended after 60 s see startup_failed"),
    ("fleet.settings", {"receivers": FINGERPRINTS[:1], "workers": (worker(config_fingerprint=FINGERPRINTS[1].config_fingerprint),)}, "receivers and workers have different CREDHOOK_RETENTION: 1 on r1; 1 on w1"),
    ("fleet.handlers", {"workers": (worker(), worker(handlers={}))}, "test.f"),
    ("fleet.handlers", {"workers": tuple(worker(handlers=dict.fromkeys("abcdefghijk", (kind,))) for kind in "xy")}, "workers of q have different handlers: a, b, c, d, e, f, g, h, i, j start all"),
    ("fleet.settings", {"workers": (worker(config_fingerprint=ONE), worker(config_fingerprint=TWO))}, "start all workers"),
    ("fleet.turned_away", {"receivers": (receiver(turned_away={"full": 2, "slow_request": 1}, turned_away_ago=9.0, idle=1.0),)}, "(2 full), the last 9 s ago sender_rejected"),
    ("fleet.turned_away", {"receivers": (receiver(turned_away={"answer_unread": 4, "invalid_http": 1}, turned_away_ago=900.0, idle=1.0),)}, "(4 answer_unread), the last 15 min ago"),
    ("fleet.turned_away", {"receivers": (receiver(turned_away={"invalid_http": 3}, turned_away_ago=9.0, idle=None),)}, "(3 invalid_http), the last"),
    ("fleet.turned_away", {"receivers": (receiver(turned_away={"invalid_http": 3}, turned_away_ago=9.0, idle=901.0),)}, "(3 invalid_http), the last"),
    ("platform.breaker", {"platforms": (PAUSED,)}, "no worker calls the platform for another 30 s (cause 503) see"),
    ("platform.breaker", {"platforms": (CALLED, TRIED)}, "the circuit breaker of 1 worker is open or half open see"),
    ("platform.breaker", {"platforms": (REFUSED,)}, "about 2.9 requests/s passed set CREDHOOK_RATE"),
    ("platform.paths", {"workers": (worker(), worker(pid=2, never_found=("issuance",)))}, "every fetch of issuances with 404, on w1 pid 2 check CREDHOOK_ISSUANCE_PATH, whose default is a guess"),
    ("redis.clock_step", {"clock_step": ClockStep(seconds=-600.0, age=65.0)}, "set back by 10 min, 65 s ago let"),
    ("redis.clock_step", {"clock_step": ClockStep(seconds=8.0, age=0.0)}, "set forward by 8 s"),
    ("events.suspended", {"suspended": True}, "rq resume"),
    ("events.oldest_open", {"oldest_open": 901.0}, "15 min"),
    ("events.dead", {"counts": EventCounts(dead=9, dead_recently=2)}, "2 events were given up"),
    ("events.unhandled", {"workers": (), "counts": EventCounts(unhandled={"a.type": 4, "b.type": 1})}, "4 of a.type, 1 of b.type start"),
    ("events.quarantined", {"counts": EventCounts(quarantined=1)}, "replay --state quarantined"),
    ("events.conflicts", {"receivers": tuple(receiver(conflicts=3, conflicted=ago) for ago in (86_400.0, 9.0, 86_401.0))}, "6 deliveries had the"),
    ("events.dead", {"counts": EventCounts(dead=9, dead_recently=1)}, "1 event was given up"),
    ("events.vanished", {"counts": EventCounts(vanished=562, vanished_age=240.0)}, "562 acknowledged events, the first 4 min ago see"),
    ("events.unreadable", {"counts": EventCounts(unreadable=1)}, "another program"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "otherwise", "words"), WRONG)
def test_each_thing_that_is_wrong_is_remarked_on_alone(check: str, otherwise: dict[str, Any], words: str) -> None:
    (remark,) = (one for one in attention(Fleet(**{**WELL, **otherwise})) if one.needs_attention)
    assert remark.name == check
    assert words in f"{remark.what} {remark.remedy}"


@pytest.mark.parametrize(
    "otherwise",
    [
        {},
        {"workers": ()},  # Nothing waits: a fleet may be scaled to none.
        {**OTHER, "others": {"b": EventCounts(open=3)}},
        {**OTHER, "receivers": (receiver(), refusing(5, queue="b"))},
        {**OTHER, "receivers": (receiver(), receiver(queue="b", version="2", refuses_alone=True, unavailable="full"))},
        {**OTHER, "receivers": (receiver(), receiver(queue="b", turned_away={"full": 2}, turned_away_ago=9.0))},
        {**OTHER, "workers": (worker(), worker(queue="b", version="2", credential_error="refused: 401; check it"))},
        {**OTHER, "workers": (worker(), worker(queue="b", name="w2.t.1", processes=3, never_found=("issuance",)))},
        {**OTHER, "workers": (worker(), worker(queue="b", started=False, age=60.0))},
        {"workers": (worker(processes=2, age=29.0),)},  # The other process starts.
        {"workers": (worker(processes=2), worker(name="w1.s.2", processes=2))},
        {"oldest_open": 900.0},
        {"counts": EventCounts(dead=5, open=3, queued=3)},
        {"workers": (worker(), worker(version="2", handlers={}, age=DEPLOY_SECONDS - 1))},  # A deploy is under way.
        {"receivers": (receiver(queue="a"), receiver()), "workers": (worker(queue="a"), worker())},
        {"receivers": (FINGERPRINTS[0], receiver(host="older"))},  # An older version may lack a setting.
        {"workers": (worker(config_fingerprint=ONE), worker(host="older"))},
        {"platforms": (CALLED,), "server": SERVER.model_copy(update={"used_memory": 79})},
        {
            "receivers": (
                receiver(conflicts=3, conflicted=86_401.0, refusals={"path": {"count": 9, "since": 9_000, "ago": 901}}),
            )
        },
        {"server": SERVER.model_copy(update={"maxmemory": 0})},  # Its check says so.
        {"receivers": (receiver(turned_away={"invalid_http": 9}, turned_away_ago=9.0, idle=900.0),)},  # Scanners.
        {"workers": (worker(), worker(pid=2, started=False, age=59.0))},
        {"receivers": (receiver(turned_away={"full": 9}, turned_away_ago=901.0),)},
        {"outside": Outside(at=1, findings=(skipped("public_url.reached", "not set"),)), "outside_age": 1_200.0},
        {"last_delivery": 9_000.0},
    ],
)
def test_attention_omits_facts_that_are_in_order(otherwise: dict[str, Any]) -> None:
    assert attention(Fleet(**{**WELL, **otherwise})) == ()


#: Refused deliveries that are a note: what is otherwise than well, and words of the note.
FORGED: list[tuple[dict[str, Any], str]] = [
    (
        {"receivers": (refusing(1, 9.0),)},
        "1 delivery had no valid signature, the last 9 s ago compare",
    ),  # A stray request.
    ({"receivers": (refusing(4),)}, "4 deliveries had"),
    ({"receivers": (refusing(90_000, 0.0, idle=1.0),)}, "90000 deliveries had no valid signature, the last 0 s ago"),
    ({"receivers": (refusing(480), receiver(idle=3_729.0))}, "on r1 pid 0 and not on r1 pid 0"),
    ({"receivers": (refusing(3), refusing(2, 30.0), receiver(idle=3_700.0))}, "5 deliveries had"),
]


@pytest.mark.parametrize(("otherwise", "words"), FORGED)
def test_forged_deliveries_beside_accepted_ones_are_a_note(otherwise: dict[str, Any], words: str) -> None:
    (note,) = attention(Fleet(**{**WELL, **otherwise}))
    assert (note.name, note.needs_attention) == ("fleet.forged", False)
    assert words in f"{note.what} {note.remedy}"
    shown = list(lines(Fleet(**{**WELL, **otherwise}), (note,)))
    assert shown[-2:] == ["all is well", f"note: {note.what}: {note.remedy}"]


@pytest.mark.parametrize(
    ("case", "refused", "accepted", "alone"),
    [
        ("a wrong secret beside one right one", 10, [20], True),
        ("no neighbour", 9_000, [], False),
        ("a flood of forged deliveries, and nobody accepts", 9_000, [0, 0, 0], False),
        ("a flood of forged deliveries, and few accepted ones, which I did not get by chance", 9_000, [19], False),
        ("a neighbour with a wrong secret as well", 40, [40, 0], True),
        ("so few accepted among three that chance may decide", 40, [39, 0], False),
        ("a stray request", 9, [9_000], False),
        ("no traffic", 0, [0], False),
    ],
)
def test_receiver_leaves_deliveries_to_neighbours_that_accept(
    case: str, refused: int, accepted: list[int], alone: bool
) -> None:
    assert refuses_alone(refused, accepted) == alone, case


def test_events_that_fail_are_not_called_well_while_they_are_tried_again() -> None:
    shown = list(lines(Fleet(**WELL, counts=EventCounts(open=9, retrying=9)), ()))
    assert "retrying     9; `credhook causes` says why" in shown
    assert shown[-1].startswith("nothing needs attention yet")
    assert list(lines(Fleet(**WELL), ()))[-1] == "all is well"
    assert list(lines(None, (fail("a.b", "it is broken", ""),))) == ["attention: it is broken"]
    others = {"workers": (worker(queue="b"),)}
    assert list(lines(Fleet(**{**WELL, **others}), ()))[-1].startswith("no worker runs")


@pytest.mark.parametrize(
    "otherwise",
    [
        {"platforms": (PAUSED,)},
        {"receivers": ()},
        {"receivers": (refusing(480),)},
        {"server": EVICTING.model_copy(update={"checks": (Check("disk", False, "see"),)})},
    ],
)
def test_silence_is_no_finding_where_another_finding_explains_it(otherwise: dict[str, Any]) -> None:
    silent = {**WELL, "last_delivery": 2_400.0, "silence": Silence(40, 1.0), **otherwise}
    assert "fleet.silence" not in {finding.name for finding in attention(Fleet(**silent))}


def test_attention_adds_up_the_deliveries_of_all_receivers() -> None:
    for idle, expected in ((30.0, 5.0, None), "7.5/s, last 5 s ago"), ((None,), "2.5/s, none since the start"):
        receivers = *(receiver(idle=one) for one in idle), receiver(queue="other", idle=1.0)
        assert f"arriving     {expected}" in lines(Fleet(**{**WELL, "receivers": receivers}), ())


#: A fleet of which each part has a number of its own.
PAGE = """
queue q on redis://r:6379/0, Redis 7.4.0, 2.5 of 100 MiB, fsync always

arriving     2.5/s, last 5 s ago
queued       4
in flight    3
retrying     0
postponed    0
open         8
oldest open  2 min ago
dead         9, 2 of them within a day
unhandled    6
quarantined  5
unreadable   7
other queue  typo: 3 events wait, the oldest since 5 min
platform     not paused, no rate limit
platform     paused for 30 s (429), at most 2.5 requests/s; about 2.1 requests/s passed before a 429
public URL   checked 2 min ago; endpoint not checked: the fleet does not call the platform now
receivers    2
             r1 pid 5  1  up 10 min  queue q  2.5/s
             r1 pid 0  1  up 10 min  queue b  7.0/s
workers      2
             w1 pid 1  1  up 10 min  queue b  3/100 in flight  a.f, test.f
             w1 pid 2  1  up 10 min  0/100 in flight  no handlers
missing      w1 pid 7  1  last heard 3 min ago

all is well
"""


def test_the_page_shows_each_count_each_process_and_other_queues() -> None:
    counts = EventCounts(
        open=8, queued=4, in_flight=3, dead=9, dead_recently=2, unhandled={"a": 2, "b": 4}, quarantined=5, unreadable=7
    )
    fleet = Fleet(
        queue="q",
        server=SERVER.model_copy(update={"used_memory": 5 << 19, "maxmemory": 100 << 20}),
        counts=counts,
        oldest_open=120.0,
        others={"typo": EventCounts(open=3, oldest_age=300)},
        receivers=(receiver(pid=5, idle=5.0), receiver(queue="b", per_second=7.0)),
        workers=(worker(queue="b", handlers=HANDLERS | {"a.f": ()}), worker(pid=2, in_flight=0, handlers={})),
        missing=(worker(pid=7, silent=200.0),),
        outside=Outside(
            at=1,
            findings=(
                ok("public_url.reached", "it is"),
                skipped("platform.endpoints", "the fleet does not call the platform now"),
            ),
        ),
        outside_age=120.0,
        platforms=(CALLED, PAUSED.model_copy(update={"cause": "429", "rate": 2.5, "passed": 2.1})),
    )
    assert "\n".join(["", *lines(fleet, ()), ""]) == PAGE


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"server": SERVER.model_copy(update={"maxmemory": 0, "fsync": ""})}, "queue q on redis://r:6379/0, Redis 7.4.0, 0.0 MiB, no limit, fsync unknown"),
        ({"server": SERVER.model_copy(update={"appendonly": False})}, "queue q on redis://r:6379/0, Redis 7.4.0, 0.0 of 0 MiB, no append-only file"),
        ({}, "arriving     0.0/s, no receiver"),
        ({}, "oldest open  none"),
        ({}, "public URL   not checked: a worker checks it every five minutes"),
        ({"outside": Outside(at=1, findings=(skipped("public_url.reached", "it is not set"),)), "outside_age": 9.0}, "public URL   not checked: it is not set"),
        ({"outside": Outside(at=1, findings=(ok("a.b", ""), ok("a.c", ""))), "outside_age": 9.0}, "public URL   checked 9 s ago"),
        ({"counts": EventCounts(vanished=3)}, "vanished     3"),
        ({}, "receivers    none alive"),
        ({}, "workers      none alive"),
        ({}, "no worker runs: nothing waits, but the next event will"),
    ],
)  # fmt: skip
def test_the_page_says_what_is_not_there(facts: dict[str, Any], line: str) -> None:
    assert line in lines(Fleet(**{"queue": "q", "server": SERVER, **facts}), ())


@pytest.mark.parametrize(
    ("silent", "started", "missed"),
    [
        ((), (900.0,), 0),
        ((SILENT_SECONDS + 1,), (), 1),
        ((100.0,), (900.0,), 1),  # It was there before.
        ((100.0,), (90.0,), 0),  # It has come since.
        ((100.0, 500.0), (90.0,), 1),
        ((100.0, 500.0), (90.0, 400.0), 0),
        ((100.0, 500.0), (400.0, 300.0), 1),
        ((100.0, 999.5), (), 2),  # Neither has replaced the other.
        ((100.0,), (219.0,), 0),  # A rolling deploy starts the new worker before it ends the old one.
        ((100.0,), (221.0,), 1),
        ((950.0,), (1_050.0,), 1),  # It lived for less than a deploy takes, beside an older worker.
    ],
)
def test_a_worker_is_missed_until_another_starts(
    silent: tuple[float, ...], started: tuple[float, ...], missed: int
) -> None:
    times = [*((1_000.0 - number, one) for number, one in enumerate(silent)), *((one, 0.0) for one in started)]
    known = [Announced("", round(-1_000 * since), round(-1_000 * renewed), b"") for since, renewed in times]
    assert len(missing(known, 0)) == missed


def test_attention_adds_the_age_of_an_announcement() -> None:
    said: dict[str, Any] = {"queue": "q", "version": "1", "host": "r", "durability": "strict", "config_fingerprint": {}}
    refusals = {"path": {"count": 5, "since": 7, "ago": 2}}
    said |= {"acknowledged": 9, "seconds": 4.0, "idle": 1, "refusals": refusals, "conflicted": 3}
    shown = _receiver(Announced("token", 0, 10_000, ReceiverAnnouncement(**said).model_dump_json().encode()), 14.0)
    assert (shown.idle, shown.conflicted, shown.age, shown.per_second) == (5, 7, 14, 2.25)
    assert shown.refusals == {"path": Refusals(count=5, since=11, ago=6)}


def test_ages_are_read_at_a_glance() -> None:
    assert [*map(age, (0, 119, 120, 7_200, 259_200))] == ["0 s", "119 s", "2 min", "2 h", "3 d"]


def test_awaited_turns_are_a_note() -> None:
    turns: list[dict[str, Any]] = [{"a.f": (2, 30.0)}, {"a.f": (1, 9.0), "b.g": (1, 0.4)}, {}]
    workers = tuple(worker(pid=pid, turns=each) for pid, each in enumerate(turns, 1))
    (note,) = attention(Fleet(**{**WELL, "workers": workers}))
    assert (note.name, note.needs_attention) == ("events.turns", False)
    words = (
        "3 events wait for a turn with a.f, the last for another 30 s; "
        "1 event waits for a turn with b.g, the last for another 0 s"
    )
    assert note.what == words
