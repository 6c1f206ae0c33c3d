"""`credhook events replay` on a real Redis: which events and handlers run again, and which are left alone."""

import getpass
import json
import os
import socket
import time
from unittest.mock import Mock

import pytest
from redis import Redis

from credhook.store import LATEST_MS, State
from support.store.accepting import accept, record
from support.store.stored_events import HANDLED, contents, plant, plant_many
from support.store.stores import EVENT, INDEX, SNAPSHOT, job_id
from support.worker.events_command import Run
from support.worker.harness import COMPLETED, DATA


@pytest.mark.parametrize("state", [State.DEAD, State.DATA_GONE])
def test_replay_resets_events_that_were_given_up(
    redis_client: Redis, redis_url: str, events: Run, state: State
) -> None:
    accept(redis_url, "fresh", COMPLETED, "r1")
    plant(
        redis_client,
        "m1",
        state,
        error="a.bad: ValueError",
        schedules={"a.bad": "12 0", "a.late": f"3 {LATEST_MS}"},
        ended=HANDLED,
        trace="~00-1",
        killed="2",
    )
    redis_client.zadd(INDEX.failed, {job_id("m1"): 1})
    before = record(redis_client, "m1")
    assert events("replay", "--state", state.value).stdout == "replayed 1\n"
    after = record(redis_client, "m1")
    assert int(before["settled"]) <= int(after.pop("fence")) == int(after.pop("replayed"))
    assert after == {
        "type": COMPLETED, "resource": "r1", "state": "accepted", "received": before["received"],
        "place": before["place"], "h:a.good": "done",
        "p:a.bad": "0 0", "p:a.late": "0 0", "trace": "~00-1",
    }  # fmt: skip
    assert redis_client.ttl(EVENT + "m1") == -1
    assert redis_client.zcard(INDEX.dead) == redis_client.zcard(INDEX.failed) == 0
    assert redis_client.zscore(INDEX.open, "m1")
    assert redis_client.lrange(INDEX.jobs, 0, -1) == [job_id("fresh").encode(), job_id("m1").encode()]
    ours, theirs = (redis_client.hgetall("rq:job:" + job_id(name)) for name in ("m1", "fresh"))
    for fields in (ours, theirs):
        for name in (b"created_at", b"enqueued_at", b"data"):
            assert fields.pop(name)
    assert ours == theirs


def test_presented_data_that_was_kept_is_there_for_the_replay(redis_client: Redis, events: Run) -> None:
    for name in ("m1", "m2"):
        plant(redis_client, name, State.DEAD, DATA, resource=f"r-{name}")
    redis_client.set(SNAPSHOT + "r-m1", "sealed")
    assert events("replay", "m1", "m2", "m3", "m3").stdout == "replayed 2, left 1 (1 not in the store)\n"
    who = f" by {getpass.getuser()}@{socket.gethostname()}\n"
    assert events("show", "m1").stdout.endswith(who)
    assert record(redis_client, "m1")["seen"] == "1"
    assert "seen" not in record(redis_client, "m2")


def test_history_names_operators_without_a_name_by_uid(
    redis_client: Redis, events: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in KeyError, OSError:
        monkeypatch.setattr(getpass, "getuser", Mock(side_effect=error))
        plant(redis_client, error.__name__, State.DEAD)
        assert events("replay", error.__name__).stdout == "replayed 1\n"
        assert f" by uid {os.getuid()}@{socket.gethostname()}\n" in events("show", error.__name__).stdout


def test_a_done_event_runs_all_handlers_again_only_if_the_operator_says_so(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DONE, ended={"a.good": "done", "a.other": "done"})
    plant(redis_client, "m2", State.DEAD)
    before = contents(redis_client)
    refused = events("replay", "--all")
    assert refused.exit_code == 2
    assert "Done already: 1 of the 2 selected" in " ".join(refused.stderr.split())
    assert contents(redis_client) == before
    assert events("replay", "--all", "--yes").stdout == "replayed 2\n"
    assert not [name for name in record(redis_client, "m1") if name.startswith("h:")]


def test_one_handler_is_named_and_only_its_record_goes(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DONE, ended={"a.good": "done", "a.other": "done"})
    plant(redis_client, "m2", State.DEAD, ended=HANDLED)
    plant(redis_client, "m3", State.DONE, ended={"a.other": "done"})
    built_in = "credhook.worker.handlers.logging_handler"
    result = events("replay", "--all", "--handler", "a.good", CREDHOOK_HANDLERS=built_in)
    assert result.stdout == "replayed 2, left 1 (1 that the handler does not want)\n"
    assert "h:a.good" not in record(redis_client, "m1")
    assert record(redis_client, "m1")["h:a.other"] == "done"
    assert record(redis_client, "m2")["h:a.bad"] == "dead: ValueError"
    assert record(redis_client, "m3")["state"] == "done"


def test_replay_accepts_quarantined_events_of_known_types(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.QUARANTINED)
    plant(redis_client, "m2", State.QUARANTINED, "openid4vc.issuance.unheard")
    plant(redis_client, "m3", State.QUARANTINED, resource="")
    result = events("replay", "--state", "quarantined")
    assert result.stdout == "replayed 1, left 2 (1 of unknown type, 1 whose id cannot be fetched)\n"
    assert record(redis_client, "m1")["state"] == "accepted"
    assert redis_client.zrange(INDEX.quarantined, 0, -1) == [b"m2", b"m3"]


def test_replay_leaves_waiting_events_unless_told_otherwise(redis_client: Redis, events: Run) -> None:
    due = str(int(time.time() * 1000) + 3_600_000)
    plant(
        redis_client, "m1", State.WAITING, due=due, schedules={"a.slow": f"3 {due}"}, error="ValueError", ended=HANDLED
    )
    plant(redis_client, "m2", State.ACCEPTED)
    plant(redis_client, "m3", State.WAITING, due=due)
    redis_client.zrem(INDEX.open, "m3")  # As if another queue had it.
    plant(redis_client, "m4", State.WAITING, due="1")
    redis_client.zadd(INDEX.leases, {"m4": time.time() * 1000 + 60_000})  # A worker holds it all the same.
    redis_client.zadd(INDEX.scheduled, {job_id("m1"): int(due) // 1000})
    assert events("replay", "--all").stdout == "replayed 0, left 4 (4 open)\n"
    assert events("replay", "--all", "--now").stdout == "replayed 1, left 3 (2 open, 1 of another queue)\n"
    after = record(redis_client, "m1")
    assert "due" not in after  # It is queued.
    assert (after["state"], after["p:a.slow"], after["h:a.bad"]) == ("waiting", "3 0", "dead: ValueError")
    assert redis_client.lrange(INDEX.jobs, 0, -1) == [job_id("m1").encode()]
    assert not redis_client.exists(INDEX.scheduled)


@pytest.mark.parametrize("command", ["replay", "erase"])
def test_a_count_and_an_unexpected_number_change_nothing(redis_client: Redis, events: Run, command: str) -> None:
    plant_many(redis_client, 3, State.DEAD)
    plant(redis_client, "m1", State.DONE)
    before = contents(redis_client)
    result = events(command, "--all", "--dry-run", "--json")
    assert [json.loads(line)["events"] for line in result.stdout.splitlines()] == [3, 1]
    for wrong in ("0", "2", "4"):
        refused = events(command, "--state", "dead", "--expect", wrong)
        assert refused.exit_code == 1
        assert f"selected events now: 3, not {wrong}; nothing was changed" in refused.stderr
    assert contents(redis_client) == before
    assert events(command, "--state", "dead", "--expect", "3", "--yes").stdout.endswith("ed 3\n")


@pytest.mark.parametrize(
    ("handler", "loaded", "counted"),
    [("log.event", "credhook.worker.handlers.logging_handler", 3), ("a.good", "", 1), ("a.goood", "", 0)],
)
def test_a_dry_run_for_one_handler_counts_what_it_wants(
    redis_client: Redis, events: Run, handler: str, loaded: str, counted: int
) -> None:
    plant(redis_client, "m1", State.DONE, ended={"a.good": "done"})
    plant(redis_client, "m2", State.DONE, ended={"a.other": "done"})
    plant(redis_client, "m3", State.DEAD, DATA)
    plant(redis_client, "m4", State.QUARANTINED, "openid4vc.issuance.unheard")
    settings = {"CREDHOOK_HANDLERS": loaded} if loaded else {}
    result = events("replay", "--all", "--handler", handler, "--dry-run", **settings)
    *rows, total = result.stdout.splitlines()
    assert total.split() == [str(counted), "in", "all"]
    assert (f"{handler} is not loaded here" in result.stderr) == (not loaded)
    assert (f"{1:>8}  {'dead':<11}  {DATA}" in rows) == (counted == 3)
    assert events("replay", "--all", "--handler", handler, "--expect", "4", **settings).exit_code == 1  # All there are.


def test_thousands_are_paged_through_and_counted_right(redis_client: Redis, events: Run) -> None:
    plant_many(redis_client, 5_000, State.DEAD)
    plant(redis_client, "m1", State.DONE)
    ten = events("replay", "--state", "dead", "--limit", "10", "--json")
    assert json.loads(ten.stdout) == {"replayed": 10, "left": {}, "complete": True}
    assert record(redis_client, "msg_04999")["state"] == "accepted"
    assert events("replay", "--until", "0s", "--type", "issuance.completed", "--yes").stdout == (
        "replayed 4991, left 10 (10 open)\n"
    )
    assert redis_client.llen(INDEX.jobs) == redis_client.zcard(INDEX.open) == 5_001
    queued = redis_client.lrange(INDEX.jobs, 10, -2)
    assert queued == sorted(queued)  # In the order in which they came.
    assert events("erase", "--all", "--yes").stdout == "erased 5001\n"
    left = {key.decode() for key in redis_client.scan_iter()}
    of_erasures = {key for key in left if key.startswith(INDEX.prefix + "eras")}
    assert left - of_erasures == {INDEX.jobs, INDEX.by_time, "rq:queues"}
    assert redis_client.xlen(INDEX.by_time) == 0
