"""What goes wrong around credhook, and the line that says so: each names what to look at, and not its neighbour.

Authors' mistakes are in worker/handlers/test_authors_mistakes.py. `credhook doctor` is tested in ops/test_doctor.py.
"""

import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import trustme
from redis import Redis

from credhook.sandbox.local.environment import free_port
from support.platform.tunnel import tunnel
from support.process.commands import invoke, run
from support.process.serving import Receiver, receiver
from support.receiver.signing import OTHER_SECRET, SECRET, body, headers
from support.redis.redis_server import configured
from support.waiting import until
from support.worker.harness import Harness


def hint(text: str, event: str) -> str:
    """The hint of the last line for that event."""
    lines = [json.loads(line) for line in text.splitlines() if f'"event":"{event}"' in line]
    return str(lines[-1].get("hint", "")) if lines else ""


@pytest.mark.parametrize(
    ("at", "secret", "named", "not_named"),
    [
        (-3_600, SECRET, "this host's clock", "SECRETS"),
        (600, SECRET, "ahead of this host's clock", "SECRETS"),
        (0, OTHER_SECRET, "CREDHOOK_WEBHOOK_SECRETS", "clock"),
    ],
)
def test_a_delivery_that_is_refused(server: Receiver, at: float, secret: str, named: str, not_named: str) -> None:
    before, sent = len(server.text), headers("m", body(), at=time.time() + at, secret=secret)
    assert httpx.post(server.url, content=body(), headers=sent).status_code == 401
    said = until(lambda: hint(server.text[before:], "delivery_refused"), what="the line")
    assert named in said
    assert not_named not in said


def test_a_full_redis_at_receiver_and_worker(harness: Harness, tmp_path: Path) -> None:
    harness.happens("first")
    with receiver(tmp_path, harness.redis_url) as server, harness.worker() as worker:
        harness.reaches("first", "done")
        with configured(harness.redis, "maxmemory", "1"):
            assert httpx.post(server.url, content=body(), headers=headers("m", body())).status_code == 503
            told = {
                "delivery_refused": until(lambda: hint(server.text, "delivery_refused"), what="the receiver's"),
                "redis_unusable": until(lambda: hint(worker.text, "redis_unusable"), what="the worker's"),
            }
        httpx.post(server.url, content=body(), headers=headers("m", body())).raise_for_status()
        over = '"event":"redis_recovered"'
        until(lambda: over in server.text and over in worker.text, what="the end of the outage")
    for said in told.values():
        assert "raise its maxmemory" in said
        assert "REDIS_URL" not in said


@pytest.mark.parametrize(
    ("rights", "named"),
    [
        ("~* +@all -xrevrange", "may not run XREVRANGE: allow +xrevrange, as deploy/redis-users.acl does"),
        ("~other:* +@all", "allow the patterns with ~ in deploy/redis-users.acl, or correct CREDHOOK_QUEUE"),
    ],
)
def test_hint_names_the_command_that_redis_denies(redis_client: Redis, redis_url: str, rights: str, named: str) -> None:
    redis_client.execute_command(f"ACL SETUSER limited reset on >pw {rights}")  # type: ignore[no-untyped-call]
    redis_client.hset("credhook:credhook:event:m", "state", "done")
    url = redis_url.replace("redis://", "redis://limited:pw@")
    options = [] if "xrevrange" in rights else ["m"]
    done = invoke("events", "list", *options, environment={"REDIS_URL": url})
    redis_client.execute_command("ACL DELUSER limited")  # type: ignore[no-untyped-call]
    assert done.returncode == 1
    assert named in done.stderr
    assert "pw" not in done.stderr


def test_a_redis_that_asks_for_a_client_certificate(
    redis_url: str, authority: trustme.CA, ca: Path, tmp_path: Path
) -> None:
    for name, issuer in (("own.pem", authority), ("stranger.pem", trustme.CA())):
        issuer.issue_cert("credhook").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / name))
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    with tunnel(authority.issue_cert("127.0.0.1"), port, known=authority) as url:
        environment = {"REDIS_URL": url.replace("https", "rediss"), "SSL_CERT_FILE": str(ca)}
        for name in ("", "stranger.pem", "own.pem"):
            shown = {"CREDHOOK_REDIS_CERTFILE": str(tmp_path / name)} if name else {}
            done = invoke("events", "list", environment=environment | shown)
            assert done.returncode == (name != "own.pem")
            assert ("set CREDHOOK_REDIS_CERTFILE to one that it trusts" in done.stderr) == bool(done.returncode)


def test_a_redis_without_tls_waits_for_the_rest_of_a_command() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"rediss://127.0.0.1:{silent.getsockname()[1]}"
        done = invoke("events", "list", environment={"REDIS_URL": url})
    assert done.returncode == 1
    assert "no answer in time: check REDIS_URL, where rediss:// is for a Redis that speaks TLS" in done.stderr


def test_a_redis_that_has_no_connection_left(redis_client: Redis, redis_url: str) -> None:
    with configured(redis_client, "maxclients", "1"):
        refused = invoke("events", "list", environment={"REDIS_URL": redis_url})
    assert refused.returncode == 1
    assert "its maxclients" in refused.stderr


@pytest.mark.parametrize("part", ["receiver", "worker"])
def test_no_folder_for_temporary_files(harness: Harness, part: str) -> None:
    program = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # As on a disk that is full or read-only.
sys.argv[1:] = ["{}", "2"]
runpy.run_module("credhook.{}", run_name="__main__")
"""
    option = "--workers" if part == "receiver" else "--processes"
    settings = {"CREDHOOK_WEBHOOK_SECRETS": SECRET, "CREDHOOK_ADMIN": f"127.0.0.1:{free_port()}"}
    done = run("-c", program.format(option, part), env=harness.environment | settings, cwd=harness.folder)
    assert done.returncode == 1
    assert "set TMPDIR" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("trustme", r"credhook: trustme is not installed: pip install blockbuster trustme watchfiles\n"),
        ("httpx", r'\{.*"ModuleNotFoundError".*httpx\.py:1 <module>"\]\}\n'),  # The installation is damaged.
    ],
)
def test_a_module_that_is_not_installed(tmp_path: Path, module: str, said: str) -> None:
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('{module}', name='{module}')\n")
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    start = [sys.executable, "-m", "credhook", "demo"]
    done = subprocess.run(start, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert re.fullmatch(said, done.stderr)
    assert done.returncode == 1
