"""`credhook events run`: the handlers of one event, run here by hand, beside workers and in their place."""

import asyncio
import subprocess
from typing import Any

import pytest

from credhook.store.connection import open_redis
from credhook.worker.queue.claims import Claims
from support.process.commands import Done, credhook, invoke, start
from support.store.accepting import accept, everything, record
from support.store.stores import EVENT, store_on
from support.worker.harness import COMPLETED, DATA, Harness

HANDLERS = """
@handlers.on("*")
async def first(event, context):
    note("first", event.webhook_id, event.attempt, event.details.status)
    await context.progress.save(1)

@handlers.on("*", after=first, condition=lambda event: event.details.is_("completed"))
def second(event, context):
    note("second", context.api.issuances.get(event.resource_id).status)

@handlers.on("openid4vc.verification.data")
def breaks(event, context):
    raise GiveUp("closed")
"""


@pytest.fixture
def harness(harness: Harness) -> Harness:
    harness.plugin(HANDLERS)
    return harness


def run_event(harness: Harness, *arguments: str) -> Done:
    return invoke("events", "run", *arguments, environment=harness.environment, folder=harness.folder)


def test_run_shows_each_handler_and_changes_nothing(harness: Harness) -> None:
    harness.happens("m1")
    before = everything(harness.redis)
    done = run_event(harness, "m1")
    assert done.returncode == 0, done.stderr
    header, first, second, last = done.stdout.splitlines()
    assert header.split() == ["handler", "outcome", "ms", "error"]
    assert [line.split()[:2] for line in (first, second)] == [["test.first", "done"], ["test.second", "done"]]
    assert last == "m1 would be done"
    assert harness.notes() == ["first m1 1 completed", "second completed"]
    assert everything(harness.redis) == before
    assert run_event(harness, "m1", "--handler", "test.first").stdout.count("test.") == 1


def test_failed_handler_is_shown_with_its_reason(harness: Harness) -> None:
    harness.happens("m1", DATA)
    done = run_event(harness, "m1")
    assert done.returncode == 1
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert rows[1:] == [
        ["test.first", "done", rows[1][2]], ["test.second", "skipped"], ["test.breaks", "dead", "closed"],
        ["m1", "would", "be dead: test.breaks: closed"],
    ]  # fmt: skip
    assert "handler_failed" in done.stderr
    assert record(harness.redis, "m1")["state"] == "accepted"


def test_taken_event_is_settled_and_left_by_workers(harness: Harness) -> None:
    harness.happens("m1")
    done = run_event(harness, "m1", "--take")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "m1 is done")
    fields = record(harness.redis, "m1")
    assert fields["state"] == "done"
    assert fields["h:test.first"].startswith("done ")
    with harness.worker("worker", "--burst") as worker:
        assert worker.process.wait(60) == 0
    assert len(harness.notes()) == 2
    again = run_event(harness, "m1", "--take")
    assert (again.returncode, again.stdout) == (1, "")
    assert "m1 cannot be taken: it has ended; `credhook events replay ID` puts it back" in again.stderr


def test_run_beside_dev_shows_messages_of_errors(harness: Harness) -> None:
    harness.plugin("@handlers.on('*')\ndef fails(event, context):\n    raise ValueError('a claim')\n")
    harness.happens("m1")
    for dev, is_shown in ("0", False), ("1", True):
        environment = harness.environment | {"CREDHOOK_DEV": dev}
        done = credhook("events", "run", "m1", environment=environment, folder=harness.folder)
        assert ("handler_failed" in done.stderr, "a claim" in done.stderr) == (True, is_shown)


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["m2"], 1, "the store of the queue credhook has no event m2"),
    (["m1", "--handler", "test.third"], 2, "test.third is not loaded; `credhook handlers list` shows all handlers"),
    (["m1", "--handler", "test.breaks"], 1, "test.breaks does not want openid4vc.issuance.completed; test.first, "),
    (["m1", "--take", "--debug"], 2, "leave out --debug and --handler"),
])  # fmt: skip
def test_run_that_cannot_be_made_is_refused(harness: Harness, arguments: list[str], code: int, message: str) -> None:
    harness.happens("m1")
    done = run_event(harness, *arguments)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert harness.notes() == []


@pytest.mark.parametrize(("fields", "obstacle"), [
    ({"state": "waiting", "due": "9999999999999"}, "it waits for its next attempt; `credhook events replay ID"),
    ({}, "a worker has it; wait, or leave out --take"),
    ({"resource": "other"}, "a worker has another event of its resource; wait, or leave out --take"),
])  # fmt: skip
def test_event_that_cannot_be_taken_says_why(harness: Harness, fields: dict[Any, Any], obstacle: str) -> None:
    async def claim(webhook_id: str) -> None:
        async with open_redis(harness.redis_url) as redis:
            assert not isinstance(await Claims(store_on(redis), lease=60, worker="w").claim(webhook_id), str)

    harness.happens("m1")
    accept(harness.redis_url, "m2", COMPLETED, "other")
    asyncio.run(claim("m2" if fields else "m1"))
    if fields:
        harness.redis.hset(EVENT + "m1", mapping=fields)
    done = run_event(harness, "m1", "--take")
    assert (done.returncode, harness.notes()) == (1, [])
    assert f"Error: m1 cannot be taken: {obstacle}" in done.stderr


def test_debugger_stops_in_the_handler_without_a_time_limit(harness: Harness) -> None:
    harness.plugin(
        "@handlers.on('*', timeout=0.1)\nasync def first(event, context):\n"
        "    breakpoint()\n    note(event.webhook_id)\n"
    )
    harness.happens("m1", COMPLETED)
    command = ["-m", "credhook", "events", "run", "m1", "--debug"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with start(command, env=harness.environment, cwd=str(harness.folder), **pipes) as process:
        shown, _ = process.communicate("import time; time.sleep(0.3)\np event.resource_id\nc\n", timeout=100)
    assert "m1 would be done" in shown
    assert harness.notes() == ["m1"]
