"""Each process as a user of Redis with no more than the rule that `credhook doctor --acl` prints for it."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis as AsyncRedis

from credhook.sandbox.local.environment import free_port, local_redis
from credhook.store.health import ask
from credhook.store.permissions import Part, commands
from support import plain
from support.console.console import Console
from support.process.commands import credhook
from support.process.serving import receiver
from support.receiver.floods import deliver
from support.receiver.signing import SECRET, body
from support.store.stores import INDEX, job_id
from support.waiting import until
from support.worker.events_command import process
from support.worker.harness import DATA, Harness

#: Commands that this test itself, or the server, sends.
OURS = {"acl", "auth", "flushall", "config", "info", "command", "pubsub", "client"}


@pytest.fixture
def users(harness: Harness) -> Iterator[dict[Part, dict[str, str]]]:
    """Make the users that the doctor names; return their REDIS_URL."""
    rules = credhook("doctor", "--acl", environment={"REDIS_URL": harness.redis_url}).stdout.splitlines()
    for line in rules:
        harness.redis.execute_command(line.replace("PASSWORD", "secret"))  # type: ignore[no-untyped-call]
    harness.redis.execute_command("ACL LOG RESET")  # type: ignore[no-untyped-call]
    yield {part: {"REDIS_URL": harness.redis_url.replace("//", f"//credhook-{part}:secret@")} for part in Part}
    harness.redis.execute_command("ACL DELUSER " + " ".join(f"credhook-{part}" for part in Part))  # type: ignore[no-untyped-call]


def denied(harness: Harness) -> list[str]:
    log: Any = harness.redis.acl_log()
    # redis-py tells its name to each Redis, and older ones do not know the command.
    return [str(one) for one in log if one["object"].partition("|")[0] != "client"]


def test_rqs_own_maintenance_may_note_a_job_between_two_lists(
    harness: Harness, users: dict[Part, dict[str, str]]
) -> None:
    harness.happens("moved")
    assert harness.redis.rpoplpush(INDEX.jobs, INDEX.intermediate) == job_id("moved").encode()
    with harness.worker("worker", "--isolation", "fork", **users[Part.WORKER]):
        harness.reaches("moved", "done")
    assert denied(harness) == []


@pytest.mark.parametrize(("isolation", "event_id"), [("loop", "m1"), ("fork", "m/1")])
def test_an_event_from_its_delivery_to_its_end(
    harness: Harness, users: dict[Part, dict[str, str]], tmp_path: Path, isolation: str, event_id: str
) -> None:
    admin = free_port()
    taking = {**users[Part.WORKER], "CREDHOOK_ADMIN": f"127.0.0.1:{admin}"}
    harness.redis.config_resetstat()
    by_operator = users[Part.OPERATOR]
    with (
        receiver(tmp_path, users[Part.RECEIVER]["REDIS_URL"]) as server,
        harness.worker("worker", "--isolation", isolation, **taking) as worker,
        process(by_operator["REDIS_URL"], "tail") as tail,
        ExitStack() as at_the_end,
        Console(tmp_path, by_operator["REDIS_URL"]) as pages,
        pages.operator() as browser,
    ):
        at_the_end.callback(tail.kill)  # Leaving its own block waits for its end.
        changes = INDEX.changes
        until(lambda: harness.redis.pubsub_numsub(changes)[0][1], what="tail's subscription")
        sent = body(event_type=DATA, resource_id=harness.sandbox.make(DATA))
        assert deliver(server.port, event_id, sent) == 202
        harness.reaches(event_id, "done")
        assert denied(harness) == []
        assert tail.stdout is not None
        assert event_id in tail.stdout.readline()
        assert plain.get(f"http://127.0.0.1:{admin}/metrics").is_success
        for command in (
            ("events", "list"),
            ("events", "show", event_id),
            ("events", "replay", "--all", "--yes"),
            ("causes",),
            ("status",),
            ("doctor",),
            ("events", "erase", "--resource", "nothing", "--yes"),
        ):
            done = credhook(*command, environment=by_operator)
            assert "NOPERM" not in done.stdout + done.stderr
        for page in ("/", "/events", f"/event?id={event_id}", "/causes"):
            assert browser.get(page).is_success
        until(lambda: len(harness.notes()) == 2, what=f"the replay; {worker.text}")
        assert credhook("events", "erase", "--all", "--yes", environment=by_operator).returncode == 0
        assert worker.stop() == 0
        assert "python_warning" not in worker.text  # RQ warns where it may not use CLIENT.
    assert denied(harness) == []
    stats: Any = harness.redis.info("commandstats")
    sent_to_redis = {name.removeprefix("cmdstat_").partition("|")[0] for name in stats} - OURS
    allowed = {name.partition("|")[0] for part in Part for name in commands(part)}
    assert sent_to_redis <= allowed


def test_a_worker_waits_and_status_says_so_until_all_that_it_needs_is_allowed(
    harness: Harness, users: dict[Part, dict[str, str]]
) -> None:
    def told() -> str:
        return credhook("status", environment=users[Part.OPERATOR]).stdout

    harness.redis.execute_command("ACL SETUSER credhook-worker -multi -exec -config resetchannels")  # type: ignore[no-untyped-call]
    harness.happens("m1")
    admin = f"127.0.0.1:{free_port()}"
    with harness.worker("worker", **users[Part.WORKER], CREDHOOK_ADMIN=admin) as worker:
        hints = until(lambda: re.findall(r'"hint":"([^"]*)","event":"redis_unusable"', worker.text), what="the hint")
        line = str(hints[0])
        assert "may not run MULTI, EXEC and REDIS_URL's user has no access to our channels" in line
        assert "no worker of the queue credhook is alive, and 1 event waits" in told()
        remedy = line.rpartition("; ")[2].replace("<user>", "credhook-worker")
        harness.redis.execute_command(remedy)  # type: ignore[no-untyped-call]
        harness.reaches("m1", "done")
        until(lambda: plain.get(f"http://{admin}/readyz").is_success, what="readiness without CONFIG")
    assert "all is well" not in told()


def test_a_receiver_is_ready_once_all_that_it_needs_is_allowed(
    harness: Harness, users: dict[Part, dict[str, str]], tmp_path: Path
) -> None:
    harness.redis.execute_command("ACL SETUSER credhook-receiver -copy -config")  # type: ignore[no-untyped-call]
    admin = f"127.0.0.1:{free_port()}"
    settings = {"CREDHOOK_DURABILITY": "standard", "CREDHOOK_ADMIN": admin}
    with receiver(tmp_path, users[Part.RECEIVER]["REDIS_URL"], options=("--workers", "2"), **settings) as server:
        ready = server.url.replace("/webhooks", "/readyz")
        assert plain.get(ready).text == "not ready\n"
        assert "permissions" in plain.get(f"http://{admin}/readyz").text
        until(lambda: '"check":"permissions"' in server.text, what="the check")
        harness.redis.execute_command("ACL SETUSER credhook-receiver +copy")  # type: ignore[no-untyped-call]
        until(lambda: plain.get(ready).is_success, what="readiness")


async def test_a_command_that_was_renamed_is_named(tmp_path: Path) -> None:
    with local_redis(tmp_path, options=("--rename-command", "COPY", "", "--rename-command", "CONFIG", "")) as url:
        done = credhook("doctor", "--json", environment={"REDIS_URL": url})
        async with AsyncRedis.from_url(url) as redis:
            facts = await ask(redis)
    found = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert found["redis.permissions"]["what"] == "Redis has no command CONFIG GET, COPY"
    assert "rename-command" in found["redis.permissions"]["remedy"]
    assert facts.fsync == ""
    fsync = found["redis.fsync"]  # From Redis 7.2 on, WAITAOF does without CONFIG.
    assert facts.can_wait or ("CONFIG GET is denied" in fsync["what"] and "+config|get" in fsync["remedy"])


def test_a_host_with_a_process_of_its_own_tries_what_that_process_needs(
    harness: Harness, users: dict[Part, dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "CREDHOOK_WEBHOOK_SECRETS").write_text(SECRET)
    environment = {**users[Part.RECEIVER], "CREDENTIALS_DIRECTORY": str(tmp_path), "CREDHOOK_DURABILITY": "standard"}
    harness.redis.config_set("appendfsync", "everysec")
    done = credhook("doctor", "--json", environment=environment)
    found = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert (found["redis.permissions"]["verdict"], found["redis.fsync"]["verdict"]) == ("ok", "ok")
    assert found["fleet.workers"]["verdict"] == "skipped"
    done = credhook("doctor", environment={**harness.environment, **users[Part.WORKER]})
    harness.redis.config_set("appendfsync", "always")
    assert "redis.fsync" not in done.stdout  # A worker's user cannot read the receivers' durability.
    harness.redis.execute_command("ACL SETUSER credhook-receiver -publish")  # type: ignore[no-untyped-call]
    for secret in (SECRET, "whsec_short"):
        done = credhook("doctor", environment={**environment, "CREDHOOK_WEBHOOK_SECRETS": secret})
        assert "REDIS_URL's user may not run PUBLISH; ACL SETUSER <user> +publish" in done.stdout
