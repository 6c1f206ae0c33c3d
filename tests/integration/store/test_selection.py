"""The events that a selection lists, and the cost of a list, counted in records and scripts."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from redis import Redis

from credhook.events import EVENT_TYPES
from credhook.store import State
from credhook.store import selection as search
from credhook.store.selection import Selection, read_page
from credhook.worker.commands import events as commands
from credhook.worker.queue.sweeper import Sweeper
from support.platform.platform_settings import leading_to
from support.store.accepting import accept, everything, record
from support.store.stored_events import HANDLED, list_event, plant, plant_many
from support.store.stores import EVENT, INDEX, run_accept, store_on
from support.worker.events_command import Run, listed
from support.worker.harness import COMPLETED, DATA

MANY = 8_000
RETENTION = 3_600
RARE_TYPE = EVENT_TYPES[-1]
COMMON_HANDLER, RARE_HANDLER = "accounts.activate", "notify.send"


def fill(redis: Redis, number: int) -> None:
    """Plant so many events of six days: most done, the first types the most frequent, three of each resource."""
    with redis.pipeline(transaction=False) as pipeline:
        for each in range(number):
            kind = -1 if each % 997 == 0 else int((each * 7_919 % 1_000 / 1_000) ** 3 * 9)
            state = State.UNHANDLED if each % 1_000 == 11 else State.DEAD if each % 50 == 7 else State.DONE
            plant(
                pipeline,
                f"msg_{each:024x}",
                state if each < number - 100 else State.WAITING,
                EVENT_TYPES[kind],
                f"iss_{each % (number // 3):020x}",
                age=6 * 86_400 * (1 - each / number),
                ended=dict.fromkeys([COMMON_HANDLER, RARE_HANDLER][: 1 + (each % 40 == 3)], "done"),
            )
        pipeline.execute()


def asked(redis: Redis) -> tuple[int, int]:
    """Since the statistics were reset: how many records were looked at, and how many scripts were run."""
    stats: Any = redis.info("commandstats")
    looked = sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("hmget", "hgetall", "hget"))
    return looked, stats.get("cmdstat_evalsha", {"calls": 0})["calls"]


def test_selection_reads_few_records_of_a_large_store(redis_client: Redis, events: Run) -> None:
    fill(redis_client, MANY)
    for arguments, most_looked, most_scripts in [
        ((), 500, 3),
        (("--resource", f"iss_{7:020x}"), 20, 3),
        (("--state", "unhandled"), 100, 3),
        (("--state", "dead"), 700, 3),
        (("--since", "3d"), 500, 3),
        (("--until", "3d"), 500, 3),
        (("--handler", COMMON_HANDLER), 600, 3),
        (("--handler", RARE_HANDLER), 5_500, 20),
        (("--type", RARE_TYPE), MANY + 100, 20),  # Only a filter that matches next to nothing reads all.
    ]:
        redis_client.config_resetstat()
        assert events("list", "--json", *arguments).exit_code == 0
        looked, scripts = asked(redis_client)
        assert looked <= most_looked, arguments
        assert scripts <= most_scripts, arguments
    redis_client.config_resetstat()
    assert len(listed(events("list", "--json", "--limit", str(MANY)))) == MANY
    assert asked(redis_client)[1] < 25


def test_pages_meet_each_event_once_while_others_arrive(
    redis_client: Redis, redis_url: str, events: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_FIRST_PAGE", 20)
    with redis_client.pipeline() as pipeline:  # Of one millisecond, more than the search reads for a page.
        for number in range(100):
            plant(pipeline, f"same_{number}", State.DEAD, age=1_000)
        pipeline.execute()
    plant_many(redis_client, 50, State.DONE)
    before = set(listed(events("list", "--json", "--limit", "1000")))
    assert read_page(store_on(redis_client), Selection(limit=len(before))).after is None  # A full page may be the last.
    found: list[str] = []
    after: tuple[str, ...] = ()
    while page := [json.loads(line) for line in events("list", "--json", "--limit", "7", *after).stdout.splitlines()]:
        found += (one["webhook_id"] for one in page)
        after = ("--after", page[-1]["cursor"])
        accept(redis_url, f"new_{len(found)}", DATA, f"p{len(found)}")
    assert sorted(found) == sorted(before)
    assert len(before) == 150


def test_an_entry_to_which_no_record_leads_is_not_listed(redis_client: Redis) -> None:
    plant_many(redis_client, 3, State.DONE)
    now = redis_client.time()[0] * 1_000
    for webhook_id in ("msg_00001", "gone"):
        list_event(redis_client, webhook_id, now, "r1")
    for selection in (Selection(), Selection(resource="r1")):
        page = read_page(store_on(redis_client), selection)
        assert [event.webhook_id for event in page.events] == ["msg_00002", "msg_00001", "msg_00000"]


def test_search_finds_events_by_receipt_after_the_clock_was_set_back(redis_client: Redis) -> None:
    tomorrow = (redis_client.time()[0] + 86_400) * 1_000
    list_event(redis_client, "erased", tomorrow, "r0")
    run_accept(store_on(redis_client), ("m1", COMPLETED, "r1"), ("m2", COMPLETED, "r1"))
    soon = datetime.now(UTC) + timedelta(minutes=1)
    for selection in (Selection(until=soon), Selection(since=soon - timedelta(hours=1)), Selection(resource="r1")):
        events = read_page(store_on(redis_client), selection).events
        assert [(event.webhook_id, event.cursor.ms) for event in events] == [("m2", tomorrow), ("m1", tomorrow)]
    assert int(record(redis_client, "m1")["received"]) < tomorrow
    assert read_page(store_on(redis_client), Selection(until=soon - timedelta(hours=1))).events == []


def test_a_search_for_a_rare_event_can_go_on(redis_client: Redis, events: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(redis_client, "rare", State.DONE, age=100_000, ended={"a.rare": "done"})
    plant_many(redis_client, 300, State.DONE)
    wanted = Selection(handler="a.rare", limit=10)
    short = read_page(store_on(redis_client), wanted, most_read=10)
    assert short.events == []
    assert short.looked_back_to is not None
    assert short.after is not None
    ((_, following),) = cast(Any, redis_client.xrevrange(INDEX.by_time, f"({short.after}", "-", count=1))
    redis_client.hset(EVENT + following[b"event"].decode(), "h:a.rare", "done")
    rest = read_page(store_on(redis_client), Selection(handler="a.rare", limit=10, after=short.after))
    assert [one.webhook_id for one in rest.events] == [following[b"event"].decode(), "rare"]
    assert rest.after is None
    monkeypatch.setattr(commands, "_READ_LIMIT", 100)
    *_, looked, advice = events("list", "--handler", "a.rare").stdout.splitlines()
    assert looked.startswith("looked back to ")
    assert "rare" in listed(events("list", "--json", "--handler", "a.rare", *advice.split()[-2:]))


def test_a_handler_selects_what_it_has_ended_for_and_what_waits_for_it(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "ended", State.DEAD, ended=HANDLED, age=3)
    plant(redis_client, "pending", State.WAITING, schedules={"a.other": "1 0", "a.bad": "1 0"}, age=2)
    plant(redis_client, "only", State.UNHANDLED, only="a.bad", age=1)
    plant(redis_client, "another", State.DONE, ended={"a.badly": "done"}, schedules={"an.a.bad": "0 0"})
    assert listed(events("list", "--json", "--handler", "a.bad")) == ["only", "pending", "ended"]
    assert events("erase", "--handler", "a.bad", "--yes").stdout == "erased 3\n"
    assert listed(events("list", "--json")) == ["another"]


def test_only_entries_without_records_leave_the_index_after_the_retention(redis_client: Redis, events: Run) -> None:
    for number in range(700):
        list_event(redis_client, f"gone{number}", 1, "r2")
    plant(redis_client, "kept", State.DEAD, age=2 * RETENTION)
    list_event(redis_client, "damaged", int(time.time() - 1.5 * RETENTION) * 1_000, "r3")
    redis_client.set(EVENT + "damaged", "no hash")
    plant(redis_client, "young", State.DONE, age=1)
    Sweeper(store_on(redis_client, retention=RETENTION), name="n", interval=1, lease=60.0).run()
    assert in_index(redis_client) == ["kept", "damaged", "young"]
    assert redis_client.zcard(INDEX.by_resource) == 3
    assert listed(events("list", "--json")) == ["young", "damaged", "kept"]


def test_a_round_looks_at_the_index_from_where_the_last_one_ended(redis_client: Redis) -> None:
    for number in range(4):
        plant(redis_client, f"kept{number}", State.DONE, age=2 * RETENTION)
    for number in range(4):
        list_event(redis_client, f"gone{number}", int(time.time() - 1.5 * RETENTION) * 1_000, "r1")
    sweeper = Sweeper(
        store_on(redis_client, retention=RETENTION), name="n", interval=1, lease=60.0, index_page=2, index_pages=1
    )
    left = []
    for _ in range(4):
        sweeper.run()
        left.append(len(in_index(redis_client)))
    assert left == [8, 8, 6, 4]


def test_the_sweeper_looks_at_every_entry_after_the_clock_was_set_back(redis_client: Redis) -> None:
    for name in ("gone", "alsogone"):
        list_event(redis_client, name, int(time.time() + 86_400) * 1_000, "r1")
    Sweeper(store_on(redis_client, retention=RETENTION), name="n", interval=1, lease=60.0).run()
    assert in_index(redis_client) == []


def in_index(redis: Redis) -> list[str]:
    entries: Any = redis.xrange(INDEX.by_time)
    return [fields[b"event"].decode() for _, fields in entries]


def test_selection_finds_quarantined_events(redis_client: Redis, redis_url: str, events: Run) -> None:
    accept(redis_url, "m1", "openid4vc.issuance.unheard", "r1")
    assert listed(events("list", "--json", "--resource", "r1")) == ["m1"]
    assert "not know the event type" in events("export", "m1", **leading_to("http://127.0.0.1:1")).stderr
    redis_client.hset(EVENT + "m1", "type", COMPLETED)  # As if this version knew it.
    assert listed(events("list", "--json", "--type", "issuance.completed")) == ["m1"]
    assert events("replay", "--state", "quarantined").stdout == "replayed 1\n"
    assert record(redis_client, "m1")["state"] == "accepted"
    assert events("erase", "m1", "--yes").stdout == "erased 1\n"
    redis_client.delete(INDEX.jobs)
    assert "m1" not in everything(redis_client)


def test_more_events_than_one_script_reads_are_found_even_from_tomorrow(redis_client: Redis, events: Run) -> None:
    with redis_client.pipeline(transaction=False) as pipeline:
        for number in reversed(range(1_500)):
            plant(pipeline, f"once_{number}", State.DONE, resource=f"r{number}", age=86_400 * 3 + number)
        for number in range(1_500):
            plant(pipeline, f"tomorrow_{number}", State.DONE, resource=f"r{number}", age=-86_400 - number)
        pipeline.execute()
    for limit in (10, 1_200, 2_500):
        redis_client.config_resetstat()
        expected = [f"tomorrow_{number}" for number in reversed(range(1_500))]
        expected += [f"once_{number}" for number in range(1_500)]
        assert listed(events("list", "--json", "--limit", str(limit))) == expected[:limit]
        assert asked(redis_client)[1] < 12
