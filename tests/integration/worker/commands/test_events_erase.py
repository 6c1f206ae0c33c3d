"""`credhook events erase` on a real Redis: nothing of an event is left, and nothing else goes."""

import json
import re
from pathlib import Path

import pytest
from redis import Redis

from credhook.sandbox.local.environment import local_redis
from credhook.store import State
from credhook.store.bulk import BATCH
from credhook.store.erase import Erasure, erasures
from credhook.store.selection import EventSummary, Selection, read_page
from support.checkout import ROOT
from support.redis.redis_server import configured
from support.store.accepting import accept, everything, record
from support.store.stored_events import HANDLED, list_event, of_events, plant
from support.store.stores import INDEX, SNAPSHOT, job_id, run_accept, store_on
from support.waiting import until
from support.worker.events_command import Run, asked, process, terminal
from support.worker.harness import COMPLETED, DATA

#: It names the queue: another queue's store may have the events.
NONE = "erased 0: the store of the queue credhook has no such events\n"
OFFERED, PARTLY = "openid4vc.issuance.offered", "openid4vc.issuance.partiallyIssued"


def test_nothing_of_an_erased_event_is_left(redis_client: Redis, redis_url: str, events: Run) -> None:
    accept(redis_url, "doomed:1", COMPLETED, "r_doomed")
    accept(redis_url, "doomed:1", COMPLETED, "r_other")  # A conflict.
    accept(redis_url, "kept", COMPLETED, "r_kept")
    accept(redis_url, "kept", DATA, "r_doomed")  # Another one, which names the resource.
    accept(redis_url, "kept", DATA, "r_third")
    job = job_id("doomed:1")
    redis_client.set(SNAPSHOT + "r_doomed", "sealed")
    redis_client.rpush(INDEX.history + "doomed:1", "{}")
    redis_client.hset(INDEX.locks, mapping={"r_doomed": "doomed:1 1 1 w", "r_third": "kept 1 1 w"})
    for key in (INDEX.dead, INDEX.unhandled + DATA, INDEX.quarantined, INDEX.leases):
        redis_client.zadd(key, {"doomed:1": 1})
    for key in (INDEX.scheduled, INDEX.failed, INDEX.isolated, INDEX.prefix + "blocked:r_doomed"):
        redis_client.zadd(key, {job: 1})
    redis_client.zadd(INDEX.started, {f"{job}:x-1": 1})
    redis_client.zadd(f"rq:executions:{job}", {"x-1": 1})
    redis_client.hset(f"rq:execution:{job}:x-1", "id", "x-1")
    redis_client.xadd(f"rq:results:{job}", {"type": "2"})
    assert events("erase", "--resource", "r_doomed", "--yes").stdout == "erased 1\n"
    left = everything(redis_client)
    assert "doomed:1" not in left
    assert "r_doomed" not in left
    assert left.count(job) == 1  # In RQ's queue, where a worker finds nothing by it.
    assert redis_client.hkeys(INDEX.locks) == [b"r_third"]
    assert record(redis_client, "kept")["state"] == "accepted"
    assert redis_client.hkeys(INDEX.conflict + "kept") == [f"{DATA} r_third".encode()]


@pytest.mark.parametrize("earlier", [(), ("m1",)])
def test_erase_includes_events_that_came_before_the_resource_was_marked(
    redis_client: Redis, redis_url: str, earlier: tuple[str, ...]
) -> None:
    store, whole = store_on(redis_client), Selection(resource="r1")
    for webhook_id in earlier:
        accept(redis_url, webhook_id, OFFERED, "r1")
    selected = read_page(store, whole).events
    accept(redis_url, "late", COMPLETED, "r1")
    erasure = Erasure(store, whole, by="ada")
    if selected:
        erasure(selected)
    assert erasure.finish(selected) == [b"erased"]
    assert read_page(store, whole).events == []
    types = {COMPLETED: 1, **dict.fromkeys([OFFERED] if earlier else [], 1)}
    assert [entry["types"] for entry in erasures(store)] == [types]


def test_erase_with_a_limit_keeps_the_other_events_of_the_resource(redis_client: Redis, redis_url: str) -> None:
    store, newest = store_on(redis_client), Selection(resource="r1", limit=1)
    for webhook_id in ("m1", "m2"):
        accept(redis_url, webhook_id, OFFERED, "r1")
    selected, erasure = read_page(store, newest).events, Erasure(store, newest)
    erasure(selected)
    assert erasure.finish(selected) == ()
    assert [event.webhook_id for event in read_page(store, Selection(resource="r1")).events] == ["m1"]


def test_erase_removes_the_job_of_a_claimed_event_after_its_lease(
    redis_client: Redis, redis_url: str, events: Run
) -> None:
    accept(redis_url, "m1", COMPLETED, "r1")
    redis_client.zadd(INDEX.leases, {"m1": 1_000 * (redis_client.time()[0] + 60)})
    assert "a worker had" in events("erase", "m1", "--yes").stdout
    assert 50_000 < redis_client.pttl(f"rq:job:{job_id('m1')}") <= 65_000


def test_an_erasure_crosses_pages_and_spares_what_has_a_similar_name(redis_client: Redis, events: Run) -> None:
    with redis_client.pipeline(transaction=False) as pipeline:
        for number in range(1_200):
            pipeline.hset(
                f"{INDEX.conflict}c{number}", mapping={f"some.type {one}": 1 for one in ("iss_1", "iss_10", "xiss_1")}
            )
        pipeline.execute()
    redis_client.hset(INDEX.locks, mapping={"r1": "m1 1 1 w", "r2": "m 1 1 1 w", "r10": "m10 1 1 w"})
    redis_client.zadd(INDEX.started, {f"{job_id('m1')}:1": 1, f"{job_id('m10')}:1": 1})
    gone = [f"gone{number}" for number in range(1_200)]  # No such event is in the store.
    for name in ("gone1", "gone1199"):  # Only the index has kept their ids: an erasure was cut.
        list_event(redis_client, name, 1, "other")
    list_event(redis_client, "of_the_resource", 1, "iss_1")
    assert events("erase", "--resource", "iss_1", "m1", "m 1", *gone).exit_code == 1
    assert (redis_client.xlen(INDEX.by_time), redis_client.zcard(INDEX.by_resource)) == (0, 0)
    left = everything(redis_client)
    assert (left.count(" iss_1"), left.count(" iss_10"), left.count(" xiss_1")) == (1_200, 1_200, 1_200)
    assert redis_client.hgetall(INDEX.locks) == {b"r10": b"m10 1 1 w"}
    assert redis_client.zrange(INDEX.started, 0, -1) == [f"{job_id('m10')}:1".encode()]


def test_erase_removes_leftovers_of_expired_events(redis_client: Redis, events: Run) -> None:
    redis_client.hset(INDEX.conflict + "m1", "some.type r1", 1)
    redis_client.hset(INDEX.conflict + "m3", "some.type other r2", 1)
    list_event(redis_client, "m2", 1, "r2")
    assert events("erase", "m1").stdout == "erased 0, left 1 (1 not in the store)\n"
    assert events("erase", "--resource", "r2").stdout == NONE
    assert redis_client.xlen(INDEX.by_time) == 0
    left = {key.decode() for key in redis_client.scan_iter()}
    marks = {key for key in left if key.startswith(INDEX.erased)}
    assert left - marks == {INDEX.by_time, INDEX.conflict + "m3", INDEX.erasures}


@pytest.mark.parametrize(
    ("chosen", "told", "left"),
    [("--state=dead", "erased 1, left 1 (1 changed meanwhile)", [b"m1"]), ("--resource=r1", "erased 2", [])],
)
def test_erase_spares_events_that_left_the_chosen_state(
    redis_client: Redis, redis_url: str, chosen: str, told: str, left: list[bytes]
) -> None:
    plant(redis_client, "m1", State.DEAD)
    plant(redis_client, "m2", State.DEAD)
    with terminal(redis_url, "erase", chosen) as (running, write):
        asked(running)
        with process(redis_url, "replay", "m1") as replay:
            assert replay.communicate(timeout=60)[0] == "replayed 1\n"
        write("y")
        assert running.communicate(timeout=60)[0] == told + "\n"
    assert redis_client.zrange(INDEX.open, 0, -1) == left


def deliver(redis: Redis, webhook_id: str, kind: str, resource: str) -> str:
    (outcome,) = run_accept(store_on(redis), (webhook_id, kind, resource))
    return str(outcome.decode())


def test_erase_counts_an_event_that_came_while_it_asked(redis_client: Redis, redis_url: str) -> None:
    deliver(redis_client, "m1", OFFERED, "r1")
    with terminal(redis_url, "erase", "--resource", "r1") as (running, write):
        asked(running)
        deliver(redis_client, "m2", COMPLETED, "r1")
        write("y")
        assert running.communicate(timeout=60)[0] == "erased 2\n"
    assert read_page(store_on(redis_client), Selection(resource="r1")).events == []


def test_erasure_at_no_terminal_needs_yes(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DONE, ended=HANDLED)
    refused = events("erase", "m1")
    assert refused.exit_code == 2
    assert "add --yes to confirm" in " ".join(refused.stderr.split())
    assert record(redis_client, "m1")
    erased = json.loads(events("erase", "m1", "--yes", "--json").stdout)
    assert erased == {"erased": 1, "left": {}, "complete": True}


def test_late_delivery_of_an_erased_event_is_not_accepted(redis_client: Redis, events: Run) -> None:
    assert deliver(redis_client, "m0", COMPLETED, "r0") == "accepted"
    plant(redis_client, "m1", State.DEAD, COMPLETED, "r1")
    plant(redis_client, "m2", State.DEAD, PARTLY, "r1")
    assert events("erase", "--state", "dead", "--yes").stdout == "erased 2\n"
    before = of_events(redis_client)
    for webhook_id in ("m1", "m3"):
        assert deliver(redis_client, webhook_id, COMPLETED, "r1") == "erased"
    assert of_events(redis_client) == before
    assert deliver(redis_client, "m4", OFFERED, "r1") == "accepted"  # Another event of the resource.
    assert deliver(redis_client, "m5", PARTLY, "r1") == "accepted"  # May be another than the erased one.
    assert deliver(redis_client, "m6", COMPLETED, "r2") == "accepted"


def test_no_event_of_an_erased_resource_is_accepted_until_it_is_lifted(redis_client: Redis, events: Run) -> None:
    accept_outcomes = [deliver(redis_client, "m1", COMPLETED, "r1"), deliver(redis_client, "m2", COMPLETED, "r2")]
    assert accept_outcomes == ["accepted", "accepted"]
    assert events("erase", "--resource", "r1", "--yes").stdout == "erased 1\n"
    assert events("erase", "--resource", "never seen").stdout == NONE
    kinds = (COMPLETED, OFFERED, PARTLY, DATA, "new.type")
    for resource in ("r1", "never seen"):
        assert {deliver(redis_client, "m3", kind, resource) for kind in kinds} == {"erased"}
    assert deliver(redis_client, "m2", COMPLETED, "r1") == "erased"  # No conflict, which would keep its id.
    assert "r1" not in everything(redis_client)
    assert events("erase", "--resource", "r1", "--lift").stdout == "lifted\n"
    assert deliver(redis_client, "m1", COMPLETED, "r1") == "accepted"
    assert deliver(redis_client, "m4", COMPLETED, "never seen") == "erased"
    again = events("erase", "--resource", "r1", "--lift")
    assert (again.exit_code, "nothing of this resource was erased" in again.stderr) == (1, True)


@pytest.mark.parametrize("options", [("--lift", "m1"), ("--lift", "--resource", "r1", "--state", "dead")])
def test_lift_takes_a_resource_alone(events: Run, options: tuple[str, ...]) -> None:
    refused = events("erase", *options)
    assert (refused.exit_code, "--lift takes --resource alone" in refused.stderr) == (2, True)


def test_marks_last_for_the_retention_and_their_key_as_long_as_the_last(redis_client: Redis) -> None:
    for retention in (7_200, 3_600):
        for resource in ("r1", "r2"):
            Erasure(store_on(redis_client, retention=retention), Selection(resource=f"{resource} {retention}"))([])
    lasting = sorted(redis_client.ttl(key) for key in redis_client.scan_iter(INDEX.erased + ":*"))
    assert [round(seconds, -2) for seconds in lasting] == [3_600, 3_600, 7_200, 7_200]
    assert redis_client.ttl(INDEX.erased) >= lasting[-1]


def test_event_without_a_resource_leaves_no_mark(redis_client: Redis, events: Run) -> None:
    assert deliver(redis_client, "q1", "new.type", "") == "quarantined"
    assert events("erase", "q1", "--yes").stdout == "erased 1\n"
    assert deliver(redis_client, "q2", "new.type", "") == "quarantined"


def test_erasures_are_recorded_without_ids(redis_client: Redis, events: Run) -> None:
    assert events("erasures").stdout == "no erasures\n"
    for number in range(BATCH + 3):
        plant(redis_client, f"m{number}", State.DEAD, DATA if number else COMPLETED, f"r{number}")
    assert events("erase", "--resource", "r0", "--yes", "--by", "Ada").exit_code == 0
    assert events("erase", "--state", "dead", "--yes", "--by", "Bo").exit_code == 0
    assert events("erase", "--resource", "none", "--by", "Bo").exit_code == 0
    assert events("erase", "none", "--by", "Di").exit_code == 1  # Nothing was erased.
    header, *rows = events("erasures").stdout.splitlines()
    assert header.split() == ["at", "(UTC)", "by", "erased"]
    shown = [row.split("  ", 2) for row in rows]
    what = [(by, " ".join(erased.split())) for _, by, erased in shown]
    assert what == [
        ("Ada", "a resource, 1 issuance.completed"),
        ("Bo", f"{BATCH + 2} verification.data"),
        ("Bo", "a resource"),
    ]
    first, *_ = map(json.loads, events("erasures", "--json").stdout.splitlines())
    assert first.pop("at").startswith("20")
    assert first == {"by": "Ada", "whole": True, "types": {COMPLETED: 1}}


def test_only_the_last_thousand_erasures_are_remembered(redis_client: Redis) -> None:
    for number in range(1_005):
        Erasure(store_on(redis_client), Selection(resource="r1"), by=str(number))([])
    assert [erasure["by"] for erasure in erasures(store_on(redis_client))] == [str(by) for by in range(5, 1_005)]


def test_erasure_frees_a_full_redis(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DEAD)
    with configured(redis_client, "maxmemory", "1"):
        assert events("erase", "--state", "dead", "--yes").stdout == "erased 1\n"
    assert deliver(redis_client, "m1", COMPLETED, "r1") == "erased"


def files_with(folder: Path, text: str) -> set[str]:
    """Return the names of the files that hold the text, without their numbers."""
    files = [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
    return {re.sub(r"[.0-9]+", ".", path.name) for path in files}


def test_commands_of_the_readme_remove_an_erased_id_from_the_files_of_redis(tmp_path: Path) -> None:
    readme = (ROOT / "deploy" / "README.md").read_text()
    options = ("--appendonly", "yes", "--slowlog-log-slower-than", "0", "--repl-diskless-sync-delay", "0")
    with local_redis(tmp_path, options=options) as url, Redis.from_url(url) as redis:
        (tmp_path / "replica").mkdir()
        port = url.rpartition(":")[2].partition("/")[0]
        replica_options = ("--appendonly", "yes", "--replicaof", f"127.0.0.1 {port}")
        with (
            local_redis(tmp_path / "replica", options=replica_options) as replica_url,
            Redis.from_url(replica_url) as replica,
        ):
            until(lambda: redis.wait(1, 1_000) == 1, what="the replica")
            deliver(redis, "m1", COMPLETED, "doomed-resource")
            redis.save()
            Erasure(store_on(redis), Selection())([EventSummary("m1")])
            assert redis.wait(1, 10_000) == 1
            assert files_with(tmp_path, "doomed-resource")
            assert "doomed-resource" in str(redis.slowlog_get(128))
            for server in (redis, replica):
                for command, running in (
                    ("BGREWRITEAOF", "aof_rewrite_in_progress:0"),
                    ("BGSAVE", "rdb_bgsave_in_progress:0"),
                    ("SLOWLOG RESET", ""),
                ):
                    assert f"redis-cli {command}`" in readme
                    assert running in readme
                    server.execute_command(*command.split())
                    name = running.partition(":")[0]
                    until(lambda: not name or not server.info("persistence")[name], what=command)  # noqa: B023
            assert files_with(tmp_path, "doomed-resource") == set()
            assert "doomed-resource" not in str(redis.slowlog_get(128))
