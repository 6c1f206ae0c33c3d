"""`credhook events list` on a real Redis: what is selected, counted and printed."""

import json
import re

from redis import Redis

from credhook.store import State
from support.store.stored_events import plant, plant_many
from support.store.stores import INDEX
from support.worker.events_command import Run, listed, process
from support.worker.harness import COMPLETED, DATA

#: What is wrong with a time of a person whose clock is ahead of UTC.
IN_UTC = "is in the future; times are in UTC unless they have an offset: +01:00"


def test_the_options_select_what_is_listed_newest_first(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DONE, DATA, "r42", age=7_200)  # Its index is that of r2.
    plant(redis_client, "m2", State.DEAD, DATA, "r2", age=3_000, error="ValueError")
    plant(redis_client, "m3", State.WAITING, DATA, "r2", age=60)
    plant(redis_client, "m4", State.QUARANTINED, "new.type", "", age=30)
    redis_client.zadd(INDEX.dead, {"m1": 1, "expired": 1})  # An index may be behind the record.
    assert events("list", "--state", "data_gone").stdout == "the store of the queue credhook has no such events\n"
    for arguments, expected in {
        (): ["m4", "m3", "m2", "m1"],
        ("--limit", "2"): ["m4", "m3"],
        ("--state", "dead"): ["m2"],
        ("--state", "dead", "--state", "done"): ["m2", "m1"],
        ("--state", "waiting", "--state", "quarantined"): ["m4", "m3"],
        ("--state", "data_gone"): [],
        ("--type", "verification.data"): ["m3", "m2", "m1"],
        ("--type", "issuance.completed"): [],
        ("--resource", "r2", "--until", "10m"): ["m2"],
        ("--since", "1h"): ["m4", "m3", "m2"],
        ("m1", "m3", "m1", "none"): ["m3", "m1"],
        ("m1",) * 501: ["m1"],
    }.items():
        assert listed(events("list", "--json", *arguments)) == expected, arguments
    rows = [json.loads(line) for line in events("list", "--json").stdout.splitlines()]
    assert [row["attempts"] for row in rows] == [0, 0, 1, 1]  # The records say none.
    received = json.loads(events("list", "--json", "m2").stdout)["received_at"]
    for arguments in ("m2",), ("--state", "dead"), ("--type", "verification.data", "--limit", "9"):
        assert "m2" in listed(events("list", "--json", *arguments, "--since", received)), arguments
        assert "m2" not in listed(events("list", "--json", *arguments, "--until", received)), arguments


def test_list_prints_markup_and_control_characters_as_text(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "[red]m1[/red]", State.DEAD, error="a.b: \x1b[2J\u202egone [bold]")
    row = re.sub(" {2,}", "|", events("list").stdout.splitlines()[1])
    received = json.loads(events("list", "--json").stdout)["received_at"]
    assert row == rf"[red]m1[/red]|{COMPLETED}|r1|dead|{received}|1|a.b: \x1b[2J\u202egone [bold]"
    assert "\u202e" not in events("show", "[red]m1[/red]").stdout
    unknown = events("show", "m2")
    assert (unknown.exit_code, unknown.stderr) == (1, "Error: the store of the queue credhook has no event m2\n")
    future = events("list", "--since", "2999-01-01T14:00")
    assert (future.exit_code, future.stderr.splitlines()[-1]) == (2, f"Error: --since {IN_UTC}")
    redis_client.set(INDEX.schema, 99)  # A newer version may read the record otherwise.
    assert "to schema 99 and this" in events("show", "[red]m1[/red]").stderr


def test_a_table_ends_with_the_cursor_of_the_next_page(redis_client: Redis, events: Run) -> None:
    plant_many(redis_client, 150, State.DEAD)
    *_, last = events("list", "--state", "dead").stdout.splitlines()
    assert last.startswith("for earlier events, repeat the command with --after ")
    assert len(listed(events("list", "--state", "dead", "--json", *last.split()[-2:]))) == 50


def test_a_reader_that_leaves_early_is_no_error(redis_client: Redis, redis_url: str) -> None:
    plant_many(redis_client, 2_000, State.DONE)
    with process(redis_url, "list", "--json", "--limit", "2000") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        running.wait(60)
        assert running.stderr.read() == ""


def test_an_event_in_the_sets_of_two_states_is_found_once_whenever_it_came(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "broken off", State.DEAD)
    redis_client.zadd(INDEX.open, {"broken off": 1})
    plant(redis_client, "before all time", State.DEAD)
    redis_client.zadd(INDEX.dead, {"before all time": -5})
    plant(redis_client, "waits", State.WAITING)
    states = ("--state", "dead", "--state", "waiting")
    assert sorted(listed(events("list", "--json", *states))) == ["before all time", "broken off", "waits"]
