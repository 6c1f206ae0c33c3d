"""`credhook doctor` and what an operator can have set up wrongly: each named, with what to do about it.

The parts are real: Redis, receiver, worker, the platform's sandbox, TLS. Most tests run the doctor in their own process.
"""
# ruff: noqa: E501  A row of the table is one line.

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import trustme
from redis import Redis

from credhook.ops.doctor import _check_redis
from credhook.ops.outside import EVERY_SECONDS, look_outside
from credhook.ops.verdict import Outside, read_outside
from credhook.sandbox.local.environment import local_redis
from credhook.settings import StoreSettings, WorkerSettings, public_url
from credhook.store.announcements import announced
from support.platform.scripted_server import CUT, answering
from support.platform.tunnel import tunnel
from support.process import commands
from support.process.serving import Platform, Process, Receiver, receiver, running
from support.receiver.signing import SECRET
from support.redis.redis_server import configured
from support.store.stores import INDEX, store_on
from support.waiting import until

NOWHERE = "nowhere.invalid"
HANDLERS = """
from credhook import Handlers

handlers = Handlers("clinic")

@handlers.on("openid4vc.issuance.completed", "openid4vc.verification.data")
async def keep(event, context): ...
"""
PATH_SECRET = "clinic-path-secret-0123456789"
DELIVERIES = f"/webhooks/{PATH_SECRET}"


@dataclass
class Clinic:
    """What is there, what a host with all settings has in its environment, and what is ended with the test."""

    folder: Path
    redis: Redis
    receiver: Receiver
    sandbox: Platform
    authority: trustme.CA
    environment: dict[str, str]
    stack: ExitStack = field(default_factory=ExitStack)

    def doctor(self, **otherwise: str) -> tuple[int, dict[str, dict[str, str]], str]:
        """Exit code, findings by name, and all that it has said."""
        environment = {**self.environment, **otherwise}
        done = commands.invoke("doctor", "--json", environment=environment, folder=self.folder)
        findings = [json.loads(line) for line in done.stdout.splitlines()]
        return done.returncode, {one["name"]: one for one in findings}, done.stdout + done.stderr

    def config(self, name: str, value: str) -> dict[str, str]:
        """Configure Redis otherwise, for this test."""
        self.stack.enter_context(configured(self.redis, name, value))
        return {}

    def user(self, rights: str) -> dict[str, str]:
        """Be a user of Redis with these rights alone."""
        self.redis.execute_command(f"ACL SETUSER limited reset on >limited-password {rights}")  # type: ignore[no-untyped-call]
        self.stack.callback(self.redis.execute_command, "ACL DELUSER limited")
        return {"REDIS_URL": self.environment["REDIS_URL"].replace("redis://", "redis://limited:limited-password@")}

    def certificate(
        self, *, days: int = 60, name: str = "127.0.0.1", authority: trustme.CA | None = None
    ) -> trustme.LeafCert:
        ends = datetime.now(UTC) + timedelta(days=days, hours=1)
        return (authority or self.authority).issue_cert(name, not_before=ends - timedelta(days=90), not_after=ends)

    def public(self, path: str = DELIVERIES, port: int = 0, **certificate: Any) -> dict[str, str]:
        """Have another public URL, with that certificate; without a port it leads to the receiver."""
        url = self.stack.enter_context(tunnel(self.certificate(**certificate), port or self.receiver.port))
        return {"CREDHOOK_PUBLIC_URL": url + path}


Break = Callable[[Clinic], dict[str, str]]


class Broken(NamedTuple):
    """How to break one thing, the check that finds it, its verdict, words of finding and remedy, and the exit code."""

    make: Break
    named: str
    verdict: str
    found: str
    remedy: str
    code: int = 1


def set_(**otherwise: str) -> Break:
    return lambda _: otherwise


def own_certificate(one: Clinic) -> dict[str, str]:
    file = one.folder / "own.pem"
    one.certificate(days=5).private_key_and_cert_chain_pem.write_to_path(str(file))
    one.authority.cert_pem.write_to_path(str(file), append=True)
    return {"CREDHOOK_TLS_CERTFILE": str(file)}


def over_tls(one: Clinic, authority: trustme.CA) -> dict[str, str]:
    """A Redis whose certificate the authority has signed."""
    port = int(one.environment["REDIS_URL"].rpartition(":")[2].partition("/")[0])
    url = one.stack.enter_context(tunnel(one.certificate(authority=authority), port))
    return {"REDIS_URL": url.replace("https", "rediss")}


BROKEN = {
    "Redis is not there": Broken(set_(REDIS_URL="redis://127.0.0.1:1/0"), "redis.reached", "fail", "does not answer", "nothing listens there: check REDIS_URL"),
    "Redis's password is wrong": Broken(lambda one: {"REDIS_URL": one.environment["REDIS_URL"].replace("//", "//nobody:wrong@")}, "redis.reached", "fail", "does not answer", "and aclfile: restarts lose users"),
    "Redis's authority is not trusted": Broken(lambda one: over_tls(one, trustme.CA()), "redis.reached", "fail", "does not answer", "set SSL_CERT_FILE"),
    "Redis evicts": Broken(lambda one: one.config("maxmemory-policy", "allkeys-lru"), "redis.noeviction", "fail", "allkeys-lru", "set noeviction"),
    "Redis has no bound": Broken(lambda one: one.config("maxmemory", "0"), "redis.maxmemory", "warn", "maxmemory is 0", "set maxmemory"),
    "Redis refuses writes": Broken(lambda one: one.config("min-replicas-to-write", "1"), "redis.replicas", "fail", "refuses writes", "min-replicas-to-write"),
    "keys are closed": Broken(lambda one: one.user("~other:* &* +@all"), "redis.reached", "fail", "does not tell about itself", "allow the patterns with ~"),
    "INFO is forbidden": Broken(lambda one: one.user("~* &* +@all -info"), "redis.reached", "fail", "does not tell about itself", "+info"),
    "a wrong value": Broken(set_(CREDHOOK_RETENTION="soon"), "settings.store", "fail", "CREDHOOK_RETENTION", "deploy/README.md", code=2),
    "a key that is none": Broken(set_(CREDHOOK_WEBHOOK_SECRETS="whsec_short"), "settings.receiver", "fail", "CREDHOOK_WEBHOOK_SECRETS", "keys are separated by spaces", code=2),
    "one setting of the platform is missing": Broken(set_(CREDHOOK_CLIENT_SECRET=""), "settings.worker", "fail", "CREDHOOK_CLIENT_SECRET: is not set", "deploy/README.md", code=2),
    "a public URL without TLS": Broken(set_(CREDHOOK_PUBLIC_URL="http://inbox.example/webhooks"), "settings.endpoint", "fail", "CREDHOOK_PUBLIC_URL: should be an https://", "deploy/README.md", code=2),
    "our certificate soon expires": Broken(own_certificate, "certificate.receiver", "warn", "days left: 5", "renew the file that CREDHOOK_TLS_CERTFILE names; the next connection uses it, but"),
    "the client's certificate soon expires": Broken(lambda one: {"CREDHOOK_CLIENT_CERTFILE": own_certificate(one)["CREDHOOK_TLS_CERTFILE"]}, "certificate.client", "warn", "days left: 5", "renew the file that CREDHOOK_CLIENT_CERTFILE names"),
    "the public host is not known": Broken(set_(CREDHOOK_PUBLIC_URL=f"https://{NOWHERE}/webhooks"), "public_url.reached", "fail", "its host's name is not known here", "check CREDHOOK_PUBLIC_URL and its DNS record"),
    "nothing listens at the public URL": Broken(set_(CREDHOOK_PUBLIC_URL="https://127.0.0.1:1/webhooks"), "public_url.reached", "fail", "nothing listens", "start the proxy, or check CREDHOOK_PUBLIC_URL's port"),
    "no TLS at the public URL": Broken(lambda one: {"CREDHOOK_PUBLIC_URL": f"https://127.0.0.1:{one.receiver.port}/webhooks"}, "public_url.reached", "fail", "it does not speak TLS", "let the proxy end TLS there, or set CREDHOOK_TLS_CERTFILE"),
    "the public certificate has expired": Broken(lambda one: one.public(days=-1), "public_url.certificate", "fail", "expired", "renew the certificate"),
    "the public certificate soon expires": Broken(lambda one: one.public(days=5), "public_url.certificate", "warn", "days left: 5", "renew the certificate"),
    "the public certificate has another name": Broken(lambda one: one.public(name="other.example"), "public_url.certificate", "fail", "mismatch", "CREDHOOK_PUBLIC_URL's host"),
    "the public certificate is nobody's": Broken(lambda one: one.public(authority=trustme.CA()), "public_url.certificate", "fail", "senders refuse the certificate: unable to get", "an authority that the platform trusts"),
    "the public URL leads elsewhere": Broken(lambda one: one.public(port=int(one.sandbox.url.rpartition(":")[2])), "public_url.receiver", "fail", "takes no deliveries", "the proxy's back end"),
    "the public URL has another path": Broken(lambda one: one.public(path="/webhooks"), "public_url.receiver", "fail", "no deliveries at this path", "CREDHOOK_PATH_SECRET"),
    "no HTTP at the public URL": Broken(lambda one: one.public(port=one.stack.enter_context(answering(lambda *_: b"SSH-2.0\r\n" + CUT)).server_address[1]), "public_url.receiver", "fail", "the connection broke (BadStatusLine)", "see the log of the proxy"),
    "a promise that takes replicas": Broken(lambda one: {"REDIS_URL": one.environment["REDIS_URL"].removesuffix("0") + "1", "CREDHOOK_DURABILITY": "replicated:1"}, "redis.replicated", "fail", "0 of 1 replicas", "CREDHOOK_DURABILITY=strict"),
    "the handlers are not there": Broken(set_(CREDHOOK_HANDLERS="clinic_handler"), "handlers.load", "fail", "there is no module", "name one as in an import"),
    "no handlers are loaded": Broken(set_(CREDHOOK_HANDLERS="idle"), "handlers.load", "warn", "no handlers are loaded", "decorate functions with @handlers.on(…), or let CREDHOOK_HANDLERS name their module"),
    "the token host is not known": Broken(set_(CREDHOOK_TOKEN_URL=f"https://{NOWHERE}/token"), "platform.api", "fail", "no answer", "check CREDHOOK_TOKEN_URL"),
    "the client secret is wrong": Broken(set_(CREDHOOK_CLIENT_SECRET="wrong-canary"), "platform.api", "fail", "refuses this client: 401", "CREDHOOK_CLIENT_SECRET"),
    "the API is not there": Broken(set_(CREDHOOK_API_URL="http://127.0.0.1:1"), "platform.api", "fail", "no answer", "check CREDHOOK_API_URL"),
    "no worker is there": Broken(set_(CREDHOOK_QUEUE="other"), "fleet.workers", "warn", "no worker of the queue other", "CREDHOOK_QUEUE=other"),
}  # fmt: skip


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, sandbox: Platform, authority: trustme.CA, ca: Path
) -> Iterator[Clinic]:
    """All parts, started; the endpoint is registered."""
    folder = tmp_path_factory.mktemp("clinic")
    (folder / "clinic_handlers.py").write_text(HANDLERS)
    (folder / "idle.py").write_text("import credhook\nhandlers = credhook.Handlers('idle')\n")
    with ExitStack() as stack:
        url = stack.enter_context(local_redis(folder, options=("--maxmemory", "1gb")))
        redis = stack.enter_context(Redis.from_url(url))
        server = stack.enter_context(receiver(folder, url, CREDHOOK_PATH_SECRET=PATH_SECRET))
        public = stack.enter_context(tunnel(authority.issue_cert("127.0.0.1"), server.port))
        platform = {name: value for name, value in sandbox.environment.items() if "WEBHOOK" not in name}
        environment = {
            **platform,
            "REDIS_URL": url,
            "CREDHOOK_HANDLERS": "clinic_handlers",
            "CREDHOOK_WEBHOOK_SECRETS": SECRET,
            "CREDHOOK_PATH_SECRET": PATH_SECRET,
            "CREDHOOK_PUBLIC_URL": public + DELIVERIES,
            "SSL_CERT_FILE": str(ca),
            "PATH": os.environ["PATH"],
        }
        worker: Process = stack.enter_context(running(folder / "worker.log", "worker", environment=environment))
        one = Clinic(folder, redis, server, sandbox, authority, environment)
        done = commands.invoke("endpoints", "apply", environment=environment, folder=folder)
        assert done.returncode == 0, done.stderr
        until(lambda: redis.hlen(INDEX.receivers) and redis.hlen(INDEX.announcements), what=f"both; {worker.text}")
        until(lambda: redis.exists(INDEX.outside), what=f"the worker's checks from outside; {worker.text}")
        yield one
        listed = commands.invoke("api", "endpoints", "list", environment=environment, folder=folder).stdout
        for endpoint in json.loads(listed):
            commands.invoke("endpoints", "delete", endpoint["id"], environment=environment, folder=folder)


@pytest.fixture
def one(fleet: Clinic) -> Iterator[Clinic]:
    """The fleet; what a test breaks is mended after it."""
    with ExitStack() as stack:
        fleet.stack = stack
        yield fleet


def test_a_fleet_that_is_well_and_stays_so(one: Clinic) -> None:
    before = {key for key in one.redis.scan_iter() if b"event" in key}
    one.sandbox.faults(serverErrors=1)  # It asks again.
    code, found, said = one.doctor()
    assert {name: row for name, row in found.items() if row["verdict"] != "ok"}.keys() == {
        f"certificate.{one}" for one in ("receiver", "client", "redis")
    }
    assert code == 0, said
    assert {row["remedy"] for row in found.values()} == {""}
    after = set(one.redis.scan_iter())
    assert {key for key in after if b"event" in key} == before
    assert {key for key in after if b"doctor" in key} == set()


def status(one: Clinic) -> tuple[int, Any]:
    done = commands.invoke(
        "status", "--json", environment={"REDIS_URL": one.environment["REDIS_URL"]}, folder=one.folder
    )
    return done.returncode, json.loads(done.stdout)


def test_the_leading_worker_keeps_its_checks_from_outside_for_status(one: Clinic) -> None:
    code, found = status(one)
    names = ["public_url.reached", "public_url.certificate", "public_url.receiver", "platform.endpoints"]
    assert [(finding[1], finding[0]) for finding in found["outside"]["findings"]] == [(name, "ok") for name in names]
    assert (code, found["attention"]) == (0, [])
    assert PATH_SECRET not in json.dumps(found)
    assert EVERY_SECONDS < one.redis.ttl(INDEX.outside) <= 86_400  # It shows its age if checks cease.


@pytest.mark.parametrize(("seconds", "is_repeated"), [(60, False), (301, True), (-600, True)], ids=str)
def test_checks_from_outside_are_repeated_after_five_minutes(
    redis_client: Redis, seconds: int, is_repeated: bool
) -> None:
    """Redis's clock may have been set back since the last ones."""
    store, unused = store_on(redis_client), Mock()
    at = store.clock() - 1_000 * seconds
    redis_client.set(INDEX.outside, Outside(at=at, findings=()).model_dump_json())
    look_outside(store, unused, None)
    kept = read_outside(store)
    assert kept is not None
    assert (kept.at != at) is is_repeated


def look_outside_again(one: Clinic, monkeypatch: pytest.MonkeyPatch, **otherwise: str) -> list[str]:
    """Make the checks as the leading worker does. Return the names of the findings that status then shows."""
    for name, value in {**one.environment, **otherwise}.items():
        monkeypatch.setenv(name, value)
    settings: Any = WorkerSettings
    one.redis.delete(INDEX.outside)
    look_outside(store_on(one.redis), settings(), public_url())
    code, found = status(one)
    assert code == int(bool(found["attention"]))
    return [finding["name"] for finding in found["attention"]]


#: What is broken, and the finding from outside. A failing API has a finding of its own.
OUTSIDE: dict[str, tuple[Break, list[str]]] = {
    "nothing": (set_(), []),
    "the proxy is gone": (set_(CREDHOOK_PUBLIC_URL="https://127.0.0.1:1/webhooks"), ["public_url.reached"]),
    "the proxy's certificate has expired": (lambda one: one.public(days=-1), ["public_url.certificate", "platform.endpoints"]),
    "another server answers": (lambda one: one.public(port=int(one.sandbox.url.rpartition(":")[2])), ["public_url.receiver"]),
    "the API does not answer": (set_(CREDHOOK_API_URL="http://127.0.0.1:1"), []),
    "the client may not call the API": (set_(CREDHOOK_CLIENT_SECRET="wrong-canary"), []),
    "no public URL is set": (set_(CREDHOOK_PUBLIC_URL=""), []),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_status_shows_what_a_worker_finds_from_outside(one: Clinic, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    make, expected = OUTSIDE[name]
    found = look_outside_again(one, monkeypatch, **make(one))
    assert [finding for finding in found if finding in expected or finding != "platform.endpoints"] == expected
    look_outside_again(one, monkeypatch)


def test_status_finds_a_deleted_endpoint(one: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = commands.invoke("api", "endpoints", "list", environment=one.environment, folder=one.folder).stdout
    for endpoint in json.loads(listed):
        commands.invoke("endpoints", "delete", endpoint["id"], environment=one.environment, folder=one.folder)
    assert look_outside_again(one, monkeypatch) == ["platform.endpoints"]
    assert commands.invoke("endpoints", "apply", environment=one.environment, folder=one.folder).returncode == 0
    assert look_outside_again(one, monkeypatch) == []
    # What the handlers of a worker want that has been gone for long is not missed.
    alive = next(announced(one.redis.hgetall(INDEX.announcements)))
    gone = json.dumps(json.loads(alive.text) | {"handlers": {"gone.f": ["openid4vc.issuance.partiallyIssued"]}})
    one.redis.hset(INDEX.announcements, "gone.s.1", f"1 1 {gone}")
    assert look_outside_again(one, monkeypatch) == []


#: What a host of each kind has of it all, and what is said of the rest.
FILES = {"receiver": "TLS", "client": "CLIENT", "redis": "REDIS"}
NO_URL = {f"certificate.{name}": f"CREDHOOK_{kind}_CERTFILE is not set here" for name, kind in FILES.items()} | {
    "settings.endpoint": "CREDHOOK_PUBLIC_URL is not set here"
}
NO_PLATFORM = {
    **NO_URL,
    "settings.worker": "this host knows no platform",
    "platform.api": "the settings of the platform are missing or incomplete",
    "handlers.load": "this is not a worker's host",
}
NO_SECRETS = {"settings.receiver": "this host has no receiver's secrets"}
HOSTS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "receiver": (("REDIS_URL", "CREDHOOK_WEBHOOK_SECRETS", "CREDHOOK_PATH_SECRET"), NO_PLATFORM),
    "worker": (("REDIS_URL", "CREDHOOK_API_URL", "CREDHOOK_TOKEN_URL", "CREDHOOK_CLIENT_ID", "CREDHOOK_CLIENT_SECRET", "CREDHOOK_HANDLERS"), {**NO_URL, **NO_SECRETS, "platform.endpoints": "this host does not know the public URL, or which types handlers want"}),
    "operator": (("REDIS_URL",), {**NO_PLATFORM, **NO_SECRETS}),
}  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_with_a_part_of_the_settings_is_told_what_was_skipped(one: Clinic, host: str, tmp_path: Path) -> None:
    names, skipped = HOSTS[host]
    for name in names:  # In files, as systemd and Kubernetes give them; other tests have them in the environment.
        (tmp_path / name).write_text(one.environment[name])
    environment = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    done = commands.invoke("doctor", "--json", environment=environment, folder=one.folder)
    found = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert {name: found[name]["verdict"] for name in skipped} == dict.fromkeys(skipped, "skipped")
    assert {name: found[name]["what"] for name in skipped} == skipped
    settings = {name for name in found if name.startswith("settings.")}
    assert {name for name in settings if found[name]["verdict"] == "ok"} == settings - skipped.keys()
    assert found["redis.reached"]["verdict"] == found["fleet.workers"]["verdict"] == "ok"
    assert {name: row for name, row in found.items() if row["verdict"] in {"warn", "fail"}} == {}
    assert done.returncode == 0


@pytest.mark.parametrize("name", BROKEN)
def test_doctor_names_what_is_broken_and_its_remedy(one: Clinic, name: str) -> None:
    row = BROKEN[name]
    code, found, said = one.doctor(**row.make(one))
    finding = found[row.named]
    assert finding["verdict"] == row.verdict, finding
    assert row.found in finding["what"]
    assert row.remedy in finding["remedy"]
    assert code == row.code
    client_secret = one.environment["CREDHOOK_CLIENT_SECRET"] + "\n"
    for secret in (SECRET, PATH_SECRET, "wrong-canary", "limited-password", client_secret):
        assert secret not in said
    assert "Traceback" not in said


def test_command_that_the_operator_may_not_run_is_named(one: Clinic) -> None:
    _, found, _ = one.doctor(**one.user("~* &* +@all -zcard"))
    assert found["fleet.workers"]["verdict"] == "skipped"
    assert "may not run ZCARD: allow +zcard, as deploy/redis-users.acl does" in found["fleet.workers"]["remedy"]


def test_a_clock_that_is_behind_is_told_by_how_much(one: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", one.environment["REDIS_URL"])
    monkeypatch.setattr("credhook.ops.doctor.time", Mock(time=lambda: time.time() + 3_600))
    found = {each.name: each.what for each in _check_redis(StoreSettings(), durability="strict")}
    assert found["redis.clock"] == "Redis's clock is 3600 s behind this host's"


def test_doctor_gives_up_on_silent_servers(one: Clinic) -> None:
    """The public URL and the token endpoint each accept the connection, and that is all."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        urls = {"CREDHOOK_PUBLIC_URL": f"https://{at}/webhooks", "CREDHOOK_TOKEN_URL": f"http://{at}/token"}
        code, found, _ = one.doctor(**urls, CREDHOOK_FETCH_TIMEOUT="0.5")
    assert code == 1
    assert "it does not answer in time" in found["public_url.reached"]["what"]
    assert found["public_url.reached"]["remedy"].startswith("check the firewall; a public address may be unreachable")
    assert "CREDHOOK_TOKEN_URL" in found["platform.api"]["remedy"]


def test_people_read_a_line_for_each_check(one: Clinic) -> None:
    url = one.public(name="other.example")["CREDHOOK_PUBLIC_URL"].replace("127.0.0.1", "localhost")
    wrong = {"CREDHOOK_QUEUE": "x", "CREDHOOK_PUBLIC_URL": url, **over_tls(one, one.authority)}
    wrong["CREDHOOK_REDIS_CERTFILE"] = own_certificate(one)["CREDHOOK_TLS_CERTFILE"]
    done = commands.invoke("doctor", environment=one.environment | wrong, folder=one.folder)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert all(line.split()[0] in {"ok", "warn", "fail", "skipped"} for line in lines)
    assert any(line.startswith("warn    fleet.workers           no worker of the queue x is alive") for line in lines)
    assert any(line.startswith("warn    certificate.redis") for line in lines)
    remedy = "use a certificate for CREDHOOK_PUBLIC_URL's host"
    assert any("the certificate" in line and remedy in line for line in lines)
