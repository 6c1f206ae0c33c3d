"""`credhook events` on a real Redis, beside real workers, from a terminal and from a pipe."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from accepting import accept, everything, record
from click.testing import CliRunner, Result
from redis import Redis
from redis_proxy import redis_proxy
from stand import COMPLETED, DATA, Stand
from waiting import until

from credhook.ledger import CONFLICT, EVENT, RESOURCE, SNAPSHOT, Index, State, job_id
from credhook.worker.commands.events import command as history

ROOT = Path(__file__).parents[2]
INDEX = Index("credhook")
OPEN = {State.ACCEPTED, State.WAITING}
SETS = {State.DEAD: INDEX.dead, State.DATA_GONE: INDEX.dead, State.QUARANTINED: INDEX.quarantined}
HANDLED = {"a.good": "done", "a.bad": "dead: ValueError"}

Run = Callable[..., Result]


@pytest.fixture
def events(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`credhook events …` in this process."""
    for name in [name for name in os.environ if name.startswith("CREDHOOK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REDIS_URL", redis_url)

    def run(*arguments: str, **environment: str) -> Result:
        return CliRunner().invoke(history.events, arguments, env=environment)

    return run


def process(redis_url: str, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """The same as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "credhook", "events", *arguments],
        env={**os.environ, "REDIS_URL": redis_url}, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def plant(
    redis: Redis,
    webhook_id: str,
    state: State,
    kind: str = COMPLETED,
    resource: str = "r1",
    age: float = 0,
    ended: Mapping[str, str] = MappingProxyType({}),
    **fields: str,
) -> None:
    """Leave an event as receiver and worker leave it; `age`: seconds since it came."""
    now = int(time.time() * 1000)
    received = now - int(age * 1000)
    entry: dict[Any, Any] = {"type": kind, "resource": resource, "state": state.value, "received": received, **fields}
    entry |= {"h:" + handler: how for handler, how in ended.items()}
    if state in OPEN:
        redis.zadd(INDEX.open, {webhook_id: now})
    elif state is not State.QUARANTINED:
        entry["settled"] = now
    redis.hset(EVENT + webhook_id, mapping=entry)
    if state not in OPEN:
        redis.expire(EVENT + webhook_id, 3_600)
    if state in SETS:
        redis.zadd(SETS[state], {webhook_id: now})


def plant_many(redis: Redis, number: int, state: State) -> None:
    with redis.pipeline(transaction=False) as pipeline:
        for each in range(number):
            plant(pipeline, f"msg_{each:05}", state, age=number - each)
        pipeline.execute()


def contents(redis: Redis) -> list[str]:
    """All that Redis holds, to be compared."""
    return sorted(everything(redis).splitlines())


def listed(result: Result) -> list[str]:
    return [json.loads(line)["webhook_id"] for line in result.stdout.splitlines()]


# list and show


def test_the_options_select_what_is_listed_newest_first(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DONE, age=7_200)
    plant(redis_client, "m2", State.DEAD, DATA, "r2", age=3_000, error="ValueError")
    plant(redis_client, "m3", State.WAITING, DATA, "r2", age=60)
    plant(redis_client, "m4", State.QUARANTINED, "new.type", "", age=30)
    for arguments, expected in {
        (): ["m4", "m3", "m2", "m1"],
        ("--limit", "2"): ["m4", "m3"],
        ("--state", "dead"): ["m2"],
        ("--state", "dead", "--state", "done"): ["m2", "m1"],
        ("--state", "waiting", "--state", "quarantined"): ["m4", "m3"],
        ("--state", "data_gone"): [],
        ("--type", "verification.data"): ["m3", "m2"],
        ("--resource", "r2", "--until", "10m"): ["m2"],
        ("--since", "1h"): ["m4", "m3", "m2"],
        ("--id", "m1", "--id", "m3", "--id", "m1", "--id", "none"): ["m3", "m1"],
        ("--id", "m1") * 501: ["m1"],
    }.items():
        assert listed(events("list", "--json", *arguments)) == expected, arguments


def test_an_index_that_is_behind_the_record_is_not_believed(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DONE)
    redis_client.zadd(INDEX.dead, {"m1": 1, "expired": 1})
    assert events("list", "--state", "dead").stdout == "no events\n"


def test_what_looks_like_markup_or_obeys_a_terminal_is_printed_as_text(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "[red]m1[/red]", State.DEAD, error="a.b: \x1b[2J\u202egone [bold]")
    printed = events("list").stdout
    assert "[red]m1[/red]" in printed
    assert "\\x1b[2J\\u202egone [bold]" in printed
    assert "\x1b" not in printed
    plant(redis_client, "m2", State.QUARANTINED, "[blue]type")
    assert "[blue]type" in events("list", "--count").stdout


def test_counts_are_by_state_and_type(redis_client: Redis, events: Run) -> None:
    plant_many(redis_client, 150, State.DEAD)
    plant(redis_client, "m1", State.DONE, DATA)
    lines = [json.loads(line) for line in events("list", "--count", "--json").stdout.splitlines()]
    assert lines == [
        {"state": "dead", "type": COMPLETED, "events": 150},
        {"state": "done", "type": DATA, "events": 1},
    ]
    assert "151" in events("list", "--count").stdout
    assert "50 more; raise --limit to see them" in events("list", "--state", "dead").stdout


def test_a_reader_that_leaves_early_is_no_error(redis_client: Redis, redis_url: str) -> None:
    plant_many(redis_client, 2_000, State.DONE)
    with process(redis_url, "list", "--json", "--limit", "2000") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        running.wait(60)
        assert running.stderr.read() == ""


# replay


@pytest.mark.parametrize("state", [State.DEAD, State.DATA_GONE])
def test_what_gave_up_is_as_if_it_had_just_been_accepted(
    redis_client: Redis, redis_url: str, events: Run, state: State
) -> None:
    accept(redis_url, "fresh", COMPLETED, "r1")
    plant(redis_client, "m1", state, error="a.bad: ValueError", attempts="12", ended=HANDLED)
    redis_client.zadd(INDEX.failed, {job_id("m1"): 1})
    before = record(redis_client, "m1")
    assert events("replay", "--state", state.value).stdout == "replayed 1\n"
    after = record(redis_client, "m1")
    assert int(after.pop("fence")) > int(before["settled"]) - 1
    assert after == {
        "type": COMPLETED, "resource": "r1", "state": "accepted", "received": before["received"], "h:a.good": "done",
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
    assert not redis_client.exists(INDEX.template)


def test_presented_data_that_was_kept_is_there_for_the_replay(redis_client: Redis, events: Run) -> None:
    for name in ("m1", "m2"):
        plant(redis_client, name, State.DEAD, DATA)
    redis_client.set(SNAPSHOT + "m1", "sealed")
    assert events("replay", "--state", "dead").stdout == "replayed 2\n"
    assert record(redis_client, "m1")["seen"] == "1"
    assert "seen" not in record(redis_client, "m2")


def test_a_replay_that_is_repeated_changes_nothing(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DEAD)
    events("replay", "--id", "m1")
    before = contents(redis_client)
    assert events("replay", "--id", "m1").stdout == "replayed 0, left 1 (1 open)\n"
    assert contents(redis_client) == before


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
    result = events("replay", "--all", "--handler", "a.good")
    assert result.stdout == "replayed 2, left 1 (1 that the handler does not want)\n"
    assert "h:a.good" not in record(redis_client, "m1")
    assert record(redis_client, "m1")["h:a.other"] == "done"
    assert record(redis_client, "m2")["h:a.bad"] == "dead: ValueError"
    assert record(redis_client, "m3")["state"] == "done"


def test_a_handler_that_is_loaded_runs_for_events_from_before_its_time(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DONE, ended={"a.other": "done"})
    result = events(
        "replay", "--all", "--handler", "log.event", CREDHOOK_HANDLERS="credhook.worker.handlers.logging_handler"
    )
    assert result.stdout == "replayed 1\n"
    assert record(redis_client, "m1")["state"] == "accepted"


def test_a_handler_that_nobody_knows_is_refused_with_one_that_is_near(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DEAD, ended=HANDLED)
    refused = events("replay", "--all", "--handler", "a.goood")
    assert refused.exit_code == 2
    assert "knows a handler 'a.goood'; did you mean a.good?" in " ".join(refused.stderr.split())
    assert record(redis_client, "m1")["state"] == "dead"


def test_what_is_quarantined_is_accepted_once_its_type_is_known(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.QUARANTINED)
    plant(redis_client, "m2", State.QUARANTINED, "openid4vc.issuance.unheard")
    plant(redis_client, "m3", State.QUARANTINED, resource="")
    result = events("replay", "--state", "quarantined")
    assert result.stdout == "replayed 1, left 2 (1 of unknown type, 1 without a resource)\n"
    assert record(redis_client, "m1")["state"] == "accepted"
    assert redis_client.zrange(INDEX.quarantined, 0, -1) == [b"m2", b"m3"]


def test_what_waits_is_left_unless_it_should_be_now(redis_client: Redis, events: Run) -> None:
    due = str(int(time.time() * 1000) + 3_600_000)
    plant(redis_client, "m1", State.WAITING, due=due, attempts="3", error="ValueError", ended=HANDLED)
    plant(redis_client, "m2", State.ACCEPTED)
    plant(redis_client, "m3", State.WAITING, due=due)
    redis_client.zrem(INDEX.open, "m3")  # As if another queue had it.
    redis_client.zadd(INDEX.scheduled, {job_id("m1"): int(due) // 1000})
    assert events("replay", "--all").stdout == "replayed 0, left 3 (3 open)\n"
    assert events("replay", "--all", "--now").stdout == "replayed 1, left 2 (1 open, 1 of another queue)\n"
    after = record(redis_client, "m1")
    assert int(after["due"]) <= time.time() * 1000 + 1_000
    assert (after["state"], after["attempts"], after["h:a.bad"]) == ("waiting", "3", "dead: ValueError")
    assert redis_client.lrange(INDEX.jobs, 0, -1) == [job_id("m1").encode()]
    assert not redis_client.exists(INDEX.scheduled)


def test_what_waits_and_is_held_all_the_same_is_left(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.WAITING, due="1")
    redis_client.zadd(INDEX.leases, {"m1": time.time() * 1000 + 60_000})
    assert events("replay", "--id", "m1", "--now").stdout == "replayed 0, left 1 (1 open)\n"


def test_a_dry_run_counts_and_touches_nothing(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DEAD)
    plant(redis_client, "m2", State.DONE)
    before = contents(redis_client)
    for command in ("replay", "erase"):
        result = events(command, "--all", "--dry-run", "--json")
        assert [json.loads(line)["events"] for line in result.stdout.splitlines()] == [1, 1]
    assert contents(redis_client) == before


def test_thousands_are_paged_through_and_counted_right(redis_client: Redis, events: Run) -> None:
    plant_many(redis_client, 5_000, State.DEAD)
    plant(redis_client, "m1", State.DONE)
    assert json.loads(events("replay", "--state", "dead", "--limit", "10", "--json").stdout) == {
        "replayed": 10, "left": {}, "complete": True,
    }  # fmt: skip
    assert record(redis_client, "msg_04999")["state"] == "accepted"
    assert events("replay", "--until", "0s", "--type", "issuance.completed", "--yes").stdout == (
        "replayed 4991, left 10 (10 open)\n"
    )
    assert redis_client.llen(INDEX.jobs) == redis_client.zcard(INDEX.open) == 5_001
    queued = redis_client.lrange(INDEX.jobs, 10, -2)
    assert queued == sorted(queued)  # In the order in which they came.
    assert events("erase", "--all", "--yes").stdout == "erased 5001\n"
    assert set(redis_client.keys()) == {INDEX.jobs.encode(), b"rq:queues"}


def test_a_terminal_is_asked_and_what_changes_meanwhile_is_left(redis_client: Redis, redis_url: str) -> None:
    plant(redis_client, "m1", State.DONE)
    plant(redis_client, "m2", State.DONE)
    with terminal(redis_url, "replay", "--all") as (running, write):
        asked(running)
        plant(redis_client, "m2", State.DEAD)
        write("y\n")
        assert running.communicate(timeout=60)[0] == "replayed 1, left 1 (1 changed meanwhile)\n"
    with terminal(redis_url, "erase", "--all") as (running, write):
        asked(running)
        write("n\n")
        assert running.communicate(timeout=60)[1].endswith("nothing was changed\n")
        assert running.returncode == 1
    with terminal(redis_url, "erase", "--all") as (running, _):
        asked(running)
        while running.poll() is None:  # Python does not see a signal that comes just before it begins to read.
            running.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                running.wait(3)
        assert running.communicate()[1].endswith("nothing was changed\n")
        assert running.returncode == 130
    assert record(redis_client, "m1")


def test_ctrl_c_ends_between_two_batches_with_what_was_done(redis_client: Redis, redis_url: str) -> None:
    plant_many(redis_client, 500, State.DEAD)
    redis_client.client_pause(60_000, all=False)  # Writes wait, reads do not.
    with process(redis_url, "replay", "--state", "dead") as running:
        until(lambda: redis_client.info("clients")["blocked_clients"], what="the first batch")
        running.send_signal(signal.SIGINT)
        redis_client.client_unpause()
        assert running.communicate(timeout=60) == ("replayed 200; stopped by Ctrl-C before the other 300\n", "")
        assert running.returncode == 130
    assert redis_client.llen(INDEX.jobs) == 200


def test_a_redis_that_goes_in_the_middle_is_one_line_and_the_rest_can_follow(
    redis_client: Redis, redis_url: str
) -> None:
    plant_many(redis_client, 500, State.DEAD)
    with redis_proxy(redis_url) as proxy:
        proxy.lose = 1
        with process(proxy.url, "replay", "--state", "dead") as running:
            out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (1, "")
    assert err == (
        "Error: Redis does not answer any more (ConnectionError): replayed at least 0 of 500; "
        "run the command again for the others\n"
    )
    with process(redis_url, "replay", "--state", "dead") as running:
        assert running.communicate(timeout=60)[0] == "replayed 300\n"
    assert redis_client.llen(INDEX.jobs) == redis_client.zcard(INDEX.open) == 500


def test_a_redis_that_is_not_there_is_one_line(events: Run) -> None:
    for arguments in (("list",), ("show", "m1"), ("replay", "--all"), ("erase", "--all", "--yes")):
        result = events(*arguments, REDIS_URL="redis://127.0.0.1:1/0")
        assert result.exit_code == 1
        assert result.stderr == "Error: Redis does not answer (ConnectionError); check REDIS_URL\n"


# erase


def test_nothing_of_an_erased_event_is_left(redis_client: Redis, redis_url: str, events: Run) -> None:
    accept(redis_url, "doomed:1", COMPLETED, "r_doomed")
    accept(redis_url, "doomed:1", COMPLETED, "r_other")  # A conflict.
    accept(redis_url, "kept", COMPLETED, "r_kept")
    accept(redis_url, "kept", DATA, "r_doomed")  # Another one, which names the resource.
    accept(redis_url, "kept", DATA, "r_third")
    job = job_id("doomed:1")
    redis_client.set(SNAPSHOT + "doomed:1", "sealed")
    redis_client.set(RESOURCE + "r_doomed", "3:0")
    redis_client.set(INDEX.busy + "r_doomed", "doomed:1")
    for key in (INDEX.dead, INDEX.quarantined, INDEX.leases):
        redis_client.zadd(key, {"doomed:1": 1})
    for key in (INDEX.scheduled, INDEX.failed, INDEX.parked + "r_doomed"):
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
    assert record(redis_client, "kept")["state"] == "accepted"
    assert redis_client.hkeys(CONFLICT + "kept") == [f"{DATA} r_third".encode()]


def test_what_expired_is_erased_with_what_outlived_it(redis_client: Redis, events: Run) -> None:
    redis_client.hset(CONFLICT + "m1", "some.type r1", 1)
    redis_client.set(RESOURCE + "r2", "3:0")
    assert events("erase", "--id", "m1").stdout == "erased 0, left 1 (1 not in the ledger)\n"
    assert events("erase", "--resource", "r2").stdout == "erased 0\n"
    assert redis_client.keys() == []


def test_an_erasure_by_state_spares_what_has_left_that_state(redis_client: Redis, redis_url: str) -> None:
    plant(redis_client, "m1", State.DEAD)
    plant(redis_client, "m2", State.DEAD)
    with terminal(redis_url, "erase", "--state", "dead") as (running, write):
        asked(running)
        with process(redis_url, "replay", "--id", "m1") as replay:
            assert replay.communicate(timeout=60)[0] == "replayed 1\n"
        write("y\n")
        assert running.communicate(timeout=60)[0] == "erased 1, left 1 (1 changed meanwhile)\n"
    assert record(redis_client, "m1")["state"] == "accepted"


def test_nothing_is_erased_without_a_yes(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DEAD)
    refused = events("erase", "--id", "m1")
    assert refused.exit_code == 2
    assert "say --yes if that is meant" in " ".join(refused.stderr.split())
    assert record(redis_client, "m1")


def test_a_repeated_delivery_of_an_erased_event_is_accepted_as_new(
    redis_client: Redis, redis_url: str, events: Run
) -> None:
    plant(redis_client, "m1", State.DONE, ended=HANDLED)
    assert json.loads(events("erase", "--id", "m1", "--yes", "--json").stdout) == {
        "erased": 1, "left": {}, "complete": True,
    }  # fmt: skip
    accept(redis_url, "m1", COMPLETED, "r1")
    assert record(redis_client, "m1").keys() == {"type", "resource", "state", "received"}


# beside workers

TWO_HANDLERS = """
@handlers.on("*")
async def good(event, context):
    note("good", event.webhook_id)

@handlers.on("*")
async def bad(event, context):
    note("bad", event.webhook_id)
    if not (here / "mended").exists():
        raise GiveUp("broken")
"""


def test_a_worker_runs_what_gave_up_again_and_nothing_else(stand: Stand, events: Run) -> None:
    stand.plugin(TWO_HANDLERS)
    stand.happens("m1")
    with stand.worker():
        stand.reaches("m1", "dead")
        (stand.folder / "mended").touch()
        assert events("replay", "--state", "dead").stdout == "replayed 1\n"
        done = stand.reaches("m1", "done")
        assert (done["h:test.good"], done["h:test.bad"]) == ("done", "done")
        assert stand.notes() == ["good m1", "bad m1", "bad m1"]
        assert events("replay", "--id", "m1", "--handler", "test.good").stdout == "replayed 1\n"
        until(lambda: len(stand.notes()) == 4, what="the handler that was named")
        stand.reaches("m1", "done")
        assert events("replay", "--id", "m1", "--yes").stdout == "replayed 1\n"
        until(lambda: len(stand.notes()) == 6, what="all handlers")
        stand.reaches("m1", "done")
    assert stand.notes()[3:] == ["good m1", "good m1", "bad m1"]
    assert stand.redis.ttl(EVENT + "m1") > 0


def test_replays_beside_busy_workers_never_run_a_recorded_handler_twice(stand: Stand, events: Run) -> None:
    stand.plugin(TWO_HANDLERS)
    names = [f"m{each:02}" for each in range(20)]
    for name in names:
        stand.happens(name)
    replayed: int = 0
    with stand.worker("one"), stand.worker("two"):

        def enough() -> bool:
            nonlocal replayed
            replayed += json.loads(events("replay", "--all", "--yes", "--json").stdout)["replayed"]
            return bool(replayed >= 100)

        # A done event would run all of its handlers again; none is done before the last round.
        until(enough, within=60, what="a hundred replays")
        (stand.folder / "mended").touch()
        for name in names:
            until(lambda name=name: record(stand.redis, name)["state"] in {"dead", "done"})  # type: ignore[misc]
            events("replay", "--state", "dead")
            stand.reaches(name, "done")
    runs = Counter(stand.notes())
    assert {runs[f"good {name}"] for name in names} == {1}
    assert sum(runs[f"bad {name}"] for name in names) >= 100


def test_an_event_that_is_erased_from_a_workers_hands_stays_erased(stand: Stand, events: Run) -> None:
    stand.plugin("""
@handlers.on("*")
async def slow(event, context):
    note("begun")
    while not (here / "go").exists():
        await asyncio.sleep(0.01)
    note("ended")
""")
    resource_id = stand.happens("doomed")
    with stand.worker() as worker:
        until(stand.notes)
        result = events("erase", "--resource", resource_id, "--yes")
        assert result.stdout == "erased 1 (1 while a worker had it)\n"
        (stand.folder / "go").touch()
        until(lambda: "lease_lost" in worker.text, what="the worker's notice")
        stand.happens("m2")
        stand.reaches("m2", "done")
        assert worker.stop() == 0
    until(lambda: "doomed" not in everything(stand.redis), what="the end of what RQ remembers")
    assert resource_id not in everything(stand.redis)


# a terminal


class terminal:  # noqa: N801  It reads like a function.
    """The command with a terminal to ask at; what it asks comes by its standard error."""

    def __init__(self, redis_url: str, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = process(redis_url, *arguments, stdin=theirs, start_new_session=True)
        os.close(theirs)

    def __enter__(self) -> tuple["subprocess.Popen[str]", Callable[[str], None]]:
        def write(text: str) -> None:
            os.write(self._ours, text.encode())

        return self._process, write

    def __exit__(self, *_: object) -> None:
        with closing(os.fdopen(self._ours)), self._process:
            self._process.kill()


def asked(running: "subprocess.Popen[str]") -> None:
    """Return once the question has been asked."""
    assert running.stderr is not None
    said = ""
    while not said.endswith("[y/N]: "):
        one = running.stderr.read(1)
        assert one, said
        said += one
