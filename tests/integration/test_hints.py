"""What goes wrong around credhook, and the line that says so: each names what to look at, and not its neighbour.

Authors' mistakes are in test_authors_mistakes.py, those that `credhook doctor` finds in test_doctor.py.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme
from commands import credhook
from harness import Harness
from redis import Redis
from serving import Receiver, receiver
from signing import OTHER_SECRET, body, headers
from tunnel import tunnel
from waiting import until

#: A name that no name server knows: RFC 2606.
NOWHERE = "nowhere.invalid"


def hint(text: str, event: str) -> str:
    """The hint of the last line for that event."""
    lines = [json.loads(line) for line in text.splitlines() if f'"event":"{event}"' in line]
    return str(lines[-1].get("hint", "")) if lines else ""


@dataclass(frozen=True)
class Case:
    """What is sent, what the hint names, and what it does not."""

    at: float
    secret: str
    named: str
    not_named: str


DELIVERIES = {
    "signed an hour ago": Case(-3600, "", "this host's clock", "SECRETS"),
    "signed in ten minutes": Case(600, "", "ahead of this host's clock", "SECRETS"),
    "signed with another key": Case(0, OTHER_SECRET, "CREDHOOK_WEBHOOK_SECRETS", "clock"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, module_redis: str) -> Iterator[Receiver]:
    with receiver(tmp_path_factory.mktemp("receiver"), module_redis) as process:
        yield process


@pytest.mark.parametrize("name", DELIVERIES)
def test_a_delivery_that_is_refused(server: Receiver, name: str) -> None:
    case, before = DELIVERIES[name], len(server.text)
    secret = {"secret": case.secret} if case.secret else {}
    sent = headers("m", body(), at=time.time() + case.at, **secret)
    assert httpx.post(server.url, content=body(), headers=sent).status_code == 401
    said = until(lambda: hint(server.text[before:], "delivery_refused"), what="the line")
    assert case.named in said
    assert case.not_named not in said


def test_a_full_redis_at_receiver_and_worker(harness: Harness, tmp_path: Path) -> None:
    with receiver(tmp_path, harness.redis_url) as server, harness.worker() as worker:
        until(lambda: '"worker_started"' in worker.text, what="the worker")
        harness.redis.config_set("maxmemory", 1)
        try:
            assert httpx.post(server.url, content=body(), headers=headers("m", body())).status_code == 503
            told = {
                "delivery_refused": until(lambda: hint(server.text, "delivery_refused"), what="the receiver's"),
                "redis_unusable": until(lambda: hint(worker.text, "redis_unusable"), what="the worker's"),
            }
        finally:
            harness.redis.config_set("maxmemory", 0)
    for said in told.values():
        assert "raise its maxmemory" in said
        assert "REDIS_URL" not in said


def test_a_token_host_that_is_not_known(harness: Harness) -> None:
    elsewhere = {"CREDHOOK_TOKEN_URL": f"https://{NOWHERE}/token"}
    done = credhook("endpoints", "list", environment=harness.environment | elsewhere)
    assert done.returncode == 1
    harness.happens("m")
    with harness.worker(**elsewhere) as worker:
        until(lambda: '"event":"token_refused"' in worker.text, what="the failed token request")
    said = next(line for line in worker.text.splitlines() if '"event":"token_refused"' in line)
    for one in (done.stderr, said):
        assert "host's name is not known here: check CREDHOOK_TOKEN_URL" in one
        assert "CREDHOOK_API_URL" not in one


@pytest.mark.parametrize(
    ("rights", "named"),
    [
        ("~* +@all -zrange", "may not run ZRANGE: `ACL SETUSER <user> +zrange` allows it"),
        ("~other:* +@all", "`ACL SETUSER <user> ~credhook:* ~rq:*` allows it"),
    ],
)
def test_what_an_access_control_list_refuses(redis_client: Redis, redis_url: str, rights: str, named: str) -> None:
    redis_client.execute_command(f"ACL SETUSER limited reset on >pw {rights}")  # type: ignore[no-untyped-call]
    redis_client.hset("credhook:credhook:event:m", "state", "done")
    url = redis_url.replace("redis://", "redis://limited:pw@")
    options = [] if "zrange" in rights else ["--id", "m"]
    done = credhook("events", "list", *options, environment={"REDIS_URL": url})
    redis_client.execute_command("ACL DELUSER limited")  # type: ignore[no-untyped-call]
    assert done.returncode == 1
    assert named in done.stderr
    assert "pw" not in done.stderr


def test_a_redis_whose_authority_is_not_trusted(redis_url: str, authority: trustme.CA, ca: Path) -> None:
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    with tunnel(authority.issue_cert("127.0.0.1"), port) as url:
        environment = {"REDIS_URL": url.replace("https", "rediss")}
        refused = credhook("events", "list", environment=environment)
        trusted = credhook("events", "list", environment=environment | {"SSL_CERT_FILE": str(ca)})
    assert "certificate is not trusted: set SSL_CERT_FILE" in refused.stderr
    assert (refused.returncode, trusted.returncode) == (1, 0), trusted.stderr


@pytest.mark.parametrize(("module", "extra"), [("watchfiles", "local"), ("honcho", "local")])
def test_a_module_of_an_extra_that_is_not_installed(tmp_path: Path, module: str, extra: str) -> None:
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError({module!r}, name={module!r})\n")
    command = "dev" if module == "watchfiles" else "demo"
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    start = [sys.executable, "-m", "credhook", command]  # Anew: what is forked has imported it.
    done = subprocess.run(start, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == f"credhook: {module} is not installed: pip install 'credhook[{extra}]'\n"
    assert done.returncode == 1
