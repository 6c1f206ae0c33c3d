"""`credhook events tail` beside real workers: what happens is shown, to everybody who watches, and to nobody else."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from redis import Redis

from credhook.store import State
from credhook.worker.commands import events as commands
from support.store.accepting import accept
from support.store.stored_events import plant
from support.store.stores import INDEX, store_on
from support.waiting import until
from support.worker.events_command import Run, process
from support.worker.harness import COMPLETED, DATA, Harness

FAILING = """
@handlers.on("*")
async def fussy(event, context):
    if event.attempt == 1:
        raise Retry(after=0.2)
    if event.type.endswith("data"):
        raise GiveUp("canary")
"""


@contextmanager
def watching(redis: Redis, url: str, *options: str) -> "Iterator[subprocess.Popen[str]]":
    """It as a process, once it listens."""
    before = redis.pubsub_numsub(INDEX.changes)
    with process(url, "tail", *options) as running:
        until(lambda: redis.pubsub_numsub(INDEX.changes) > before, what="its subscription")
        try:
            yield running
        finally:
            running.kill()


def said(running: "subprocess.Popen[str]", lines: int) -> str:
    assert running.stdout is not None
    return "".join(running.stdout.readline() for _ in range(lines))


def ended(running: "subprocess.Popen[str]") -> tuple[str, str]:
    """What it has printed, once Ctrl-C has ended it well."""
    running.send_signal(signal.SIGINT)
    assert running.stdout is not None
    assert running.stderr is not None
    printed = running.stdout.read(), running.stderr.read()
    assert running.wait(60) == 0
    return printed


def test_all_that_becomes_of_events_is_a_line_for_everybody_who_watches(harness: Harness) -> None:
    harness.plugin(FAILING)
    url = harness.redis_url
    with (
        watching(harness.redis, url) as people,
        watching(harness.redis, url, "--json") as program,
        watching(harness.redis, url, "--type", "verification.data", "--state", "dead") as filtered,
    ):
        with harness.worker():
            first, second = harness.happens("m1"), harness.happens("m2", DATA)
            harness.reaches("m1", "done")
            harness.reaches("m2", "dead")
            told, only = said(people, 6), said(filtered, 1)
            changes = [json.loads(line) for line in said(program, 6).splitlines()]
        more, stderr = ended(people)
        assert [more, *(ended(one)[0] for one in (program, filtered))] == ["", "", ""]
    assert stderr == "watching credhook; Ctrl-C ends it\n"
    of_first = [one for one in changes if one["webhook_id"] == "m1"]
    assert [(one["state"], one["attempt"], one["error"]) for one in of_first] == [
        ("accepted", None, ""),
        ("waiting", 1, "test.fussy: Retry"),
        ("done", 2, ""),
    ]
    assert of_first[1]["retry_in"] == 200
    assert 200 <= of_first[2]["milliseconds"] < 3_600_000
    assert {one["resource_id"] for one in of_first} == {first}
    assert "canary" not in told or "canary" in str(harness.reaches("m2", "dead"))  # No more than the store says.
    assert f"  {second}  m2  " in only
    assert [re.sub(r"\d+ ms", "t", line)[14:] for line in told.splitlines() if "  m1" in line] == [
        f"accepted     issuance.completed        {first}  m1",
        f"waiting      issuance.completed        {first}  m1  t  attempt 1  test.fussy: Retry  again in 0.2 s",
        f"done         issuance.completed        {first}  m1  t  attempt 2",
    ]


def test_changes_are_not_published_without_a_watcher(redis_client: Redis, redis_url: str, events: Run) -> None:
    plant(redis_client, "m3", State.DEAD)
    plant(redis_client, "m4", State.WAITING)
    redis_client.config_resetstat()
    accept(redis_url, "m1", COMPLETED, "r1")
    assert "cmdstat_publish" not in redis_client.info("commandstats")
    with watching(redis_client, redis_url) as running, watching(redis_client, redis_url, "--json") as program:
        accept(redis_url, "m2", "new.type", "r\x9b1\u202e")
        events("replay", "m3", "m4", "--now")
        told = sorted(line[14:] for line in said(running, 3).splitlines())
        assert said(program, 3).isascii()
    assert told == [
        "accepted     issuance.completed        r1  m3  replayed",
        r"quarantined  new.type                  r\x9b1\u202e  m2",
        "waiting      issuance.completed        r1  m4  replayed",
    ]
    assert redis_client.info("commandstats")["cmdstat_publish"]["calls"] == 3


def test_a_connection_that_is_lost_is_said_and_made_anew(redis_client: Redis, redis_url: str) -> None:
    with watching(redis_client, redis_url, "m1", "m2", "--resource", "r1") as running:
        redis_client.client_kill_filter(_type="pubsub")
        assert running.stderr is not None
        told = [running.stderr.readline() for _ in range(3)]
        for one, resource in ("m0", "r1"), ("m2", "r2"), ("m1", "r1"):
            accept(redis_url, one, COMPLETED, resource)
        assert said(running, 1).endswith("accepted     issuance.completed        r1  m1\n")
        assert ended(running) == ("", "")
    assert told[1:] == [
        "Redis does not answer (ConnectionError); trying again\n",
        "Redis answers again; changes in between are not shown\n",
    ]


def test_message_of_another_program_is_passed_over(redis_client: Redis, redis_url: str) -> None:
    with watching(redis_client, redis_url) as running:
        redis_client.publish(INDEX.changes, "hello")
        accept(redis_url, "m1", COMPLETED, "r1")
        assert said(running, 1).endswith("r1  m1\n")
        assert ended(running)[0] == ""


def test_silence_is_no_outage_if_redis_answers_a_ping(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    told = json.dumps({"at": 1, "id": "m1", "state": "done", "type": COMPLETED, "resource": "r1"})
    monkeypatch.setattr(commands, "_SILENT_SECONDS", 0.1)
    redis_client.config_resetstat()
    with ThreadPoolExecutor() as pool:
        change = pool.submit(next, commands.changes(store_on(redis_client)))
        until(lambda: change.done() or "cmdstat_ping" in redis_client.info("commandstats"))
        until(lambda: redis_client.publish(INDEX.changes, told) + 1 and change.done())
    assert change.result().webhook_id == "m1"
