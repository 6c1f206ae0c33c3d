"""Redis as it is rented, in forms that a server of this machine can take; deploy/REDIS.md names the services."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from credhook.sandbox.local.environment import PORTS, free_port, local_redis, start_server
from support import plain
from support.process.commands import invoke
from support.process.serving import nobody_listens, receiver
from support.receiver.floods import deliver
from support.receiver.signing import SECRET
from support.waiting import until
from support.worker.fleet_harness import FleetHarness, Stub
from support.worker.harness import PLAIN

#: What services keep to themselves.
DENIED = (
    *("ACL", "BGREWRITEAOF", "BGSAVE", "CLUSTER", "CONFIG", "DEBUG", "MIGRATE", "MODULE", "MONITOR", "SAVE"),
    *("SHUTDOWN", "SYNC"),
)
SERVICE = tuple(word for command in DENIED for word in ("--rename-command", command, ""))
NO_FILE = ("--appendonly", "no")


@contextmanager
def rented(folder: Path, *options: str, replica: bool = False) -> Iterator[str]:
    """Yield the URL of such a Redis, with a replica or without."""
    with local_redis(folder, options=options) as url:
        if not replica:
            yield url
            return
        (folder / "replica").mkdir()
        following = ("--replicaof", "127.0.0.1", url.rpartition(":")[2].partition("/")[0], *NO_FILE)
        with local_redis(folder / "replica", options=following) as follower, Redis.from_url(url) as master:
            until(lambda: "slave0" in master.info("replication"), what="the replica")
            with Redis.from_url(follower) as one:
                until(lambda: one.info("replication")["master_link_status"] == "up", what="its copy")
            yield url


@pytest.mark.parametrize(
    ("options", "replica", "durability", "lacking"),
    [
        pytest.param((*SERVICE, *NO_FILE), True, "replicated", "append_only_file", id="a replica and no file"),
        pytest.param((*SERVICE, "--appendfsync", "everysec"), False, "standard", "fsync", id="a file, each second"),
    ],
)
def test_a_service_that_keeps_its_commands_to_itself(
    options: tuple[str, ...], replica: bool, durability: str, lacking: str, tmp_path: Path, stub: Stub
) -> None:
    with rented(tmp_path, *options, replica=replica) as url:
        settings = {"REDIS_URL": url, "CREDHOOK_WEBHOOK_SECRETS": SECRET, "CREDHOOK_DURABILITY": durability}
        rig = FleetHarness(tmp_path, url, stub)
        has_waitaof = rig.redis.info("server")["redis_version"] >= "7.2"
        strict = failed(invoke("doctor", "--json", environment=settings | {"CREDHOOK_DURABILITY": "strict"}).stdout)
        assert f"redis.{lacking}" in strict or (lacking == "fsync" and has_waitaof)
        assert failed(invoke("doctor", "--json", environment=settings).stdout) == set()
        rig.plugin("\n@handlers.on('*')\nasync def first(event, context): note(event.webhook_id)\n")
        admin = f"127.0.0.1:{free_port()}"
        promises = receiver(tmp_path, url, CREDHOOK_DURABILITY=durability)
        with promises as server, rig.worker(CREDHOOK_ADMIN=admin) as worker:
            until(lambda: deliver(server.port, "m") == 202, what=f"an event; {server.text}")
            rig.settles()
            assert "redis_unusable" not in worker.text
            until(lambda: plain.get(f"http://{admin}/readyz").status_code == 200, what="the worker's readiness")
        assert [note.words for note in rig.notes()] == [("m",)]
        rig.redis.close()


def failed(doctor: str) -> set[str]:
    return {row["name"] for row in map(json.loads, doctor.splitlines()) if row["verdict"] == "fail"}


def test_a_cluster_is_refused_in_one_sentence_wherever_one_looks(tmp_path: Path, stub: Stub) -> None:
    said = "Redis is a cluster; use one without cluster mode, with replicas and Sentinel"
    # Its nodes talk on a port 10,000 above, which must be free and not be one that the system gives away.
    port = next(port for port in iter(free_port, 0) if port + 10_000 < PORTS[1] and nobody_listens(port + 10_000))
    url = f"redis://127.0.0.1:{port}/0"
    with start_server(tmp_path, port, ("--cluster-enabled", "yes")) as shard, Redis.from_url(url) as redis:
        redis.execute_command("CLUSTER ADDSLOTS", *range(16_384))
        until(lambda: redis.execute_command("CLUSTER INFO")["cluster_state"] == "ok", what="the one shard")
        rig = FleetHarness(tmp_path, url, stub)
        rig.plugin(PLAIN)
        with receiver(tmp_path, url) as server, rig.worker() as worker:
            assert deliver(server.port, "m") == 503
            for process in (server, worker):
                until(lambda process=process: said in process.text, what="the sentence")  # type: ignore[misc]
                assert '"uncaught"' not in process.text
        rig.redis.close()
        assert said in invoke("doctor", environment={"REDIS_URL": url}).stdout
        assert not redis.exists("credhook:credhook:event:m")
        shard.kill()
