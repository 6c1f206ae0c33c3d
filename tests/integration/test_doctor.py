"""`credhook doctor` and what an operator can have set up wrongly: each named, with what to do about it.

The parts are real: Redis, receiver, worker, the platform's sandbox, TLS. The doctor is a process, as an operator runs it.
"""
# ruff: noqa: E501  A row of the table is one line.

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import commands
import pytest
import trustme
from harness import COMPLETED, DATA
from healthy_fleet import PATH_SECRET, Break, Clinic, clinic
from redis_keys import RECEIVERS
from serving import Platform
from signing import SECRET
from tunnel import tunnel

NOWHERE = "nowhere.invalid"


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


def config(name: str, value: str) -> Break:
    return lambda one: one.config(name, value)


def certificate(
    one: Clinic, *, days: int = 60, name: str = "127.0.0.1", authority: trustme.CA | None = None
) -> trustme.LeafCert:
    ends = datetime.now(UTC) + timedelta(days=days, hours=1)
    return (authority or one.authority).issue_cert(name, not_before=ends - timedelta(days=90), not_after=ends)


def own_certificate(one: Clinic) -> dict[str, str]:
    file = one.folder / "own.pem"
    certificate(one, days=5).private_key_and_cert_chain_pem.write_to_path(str(file))
    return {"CREDHOOK_TLS_CERTFILE": str(file)}


def foreign_tls(one: Clinic) -> dict[str, str]:
    """A Redis whose certificate an authority has signed that nobody here trusts."""
    port = int(one.environment["REDIS_URL"].rpartition(":")[2].partition("/")[0])
    url = one.stack.enter_context(tunnel(trustme.CA().issue_cert("127.0.0.1"), port))
    return {"REDIS_URL": url.replace("https", "rediss")}


def elsewhere(one: Clinic) -> dict[str, str]:
    """A public URL that ends at some other server of ours: the sandbox."""
    return one.public(certificate(one), port=int(one.sandbox.url.rpartition(":")[2]))


def refusing(one: Clinic) -> dict[str, str]:
    """Announce a second receiver, which has refused deliveries."""
    said = {"queue": "credhook", "version": "0.1.0", "host": "r2", "durability": "strict", "config_fingerprint": {}}
    return one.announced(RECEIVERS, {**said, "unauthenticated": 5, "refused": 60.0})


def without_receivers(one: Clinic) -> dict[str, str]:
    """On a database of Redis's that nobody else is on."""
    return {"REDIS_URL": one.environment["REDIS_URL"].removesuffix("/0") + "/9"}


BROKEN = {
    "Redis is not there": Broken(set_(REDIS_URL="redis://127.0.0.1:1/0"), "redis.reached", "fail", "does not answer", "nothing listens there: check REDIS_URL"),
    "Redis's password is wrong": Broken(lambda one: {"REDIS_URL": one.environment["REDIS_URL"].replace("//", "//nobody:wrong@")}, "redis.reached", "fail", "does not answer", "and aclfile: restarts lose users"),
    "Redis's authority is not trusted": Broken(foreign_tls, "redis.reached", "fail", "does not answer", "set SSL_CERT_FILE"),
    "Redis evicts": Broken(config("maxmemory-policy", "allkeys-lru"), "redis.noeviction", "fail", "allkeys-lru", "set noeviction"),
    "Redis has no bound": Broken(config("maxmemory", "0"), "redis.maxmemory", "warn", "maxmemory is 0", "set maxmemory"),
    "Redis refuses writes": Broken(config("min-replicas-to-write", "1"), "redis.permissions", "fail", "refuses writes", "min-replicas-to-write"),
    "a command is forbidden": Broken(lambda one: one.user("~* &* +@all -hset -blmove"), "redis.permissions", "fail", "HSET, BLMOVE", "ACL SETUSER <user> +hset +blmove"),
    "keys are closed": Broken(lambda one: one.user("~other:* &* +@all"), "redis.permissions", "fail", "no access to our keys", "~credhook:credhook:* ~rq:queues"),
    "channels are closed": Broken(lambda one: one.user("~* resetchannels &other:* +@all"), "redis.permissions", "fail", "no access to our channels", "&credhook:credhook:* &rq:pubsub:*"),
    "PING is forbidden, and more": Broken(lambda one: one.user("~* &* +@all -ping -time"), "redis.permissions", "fail", "PING, TIME", "+ping +time"),
    "INFO is forbidden": Broken(lambda one: one.user("~* &* +@all -info"), "redis.reached", "fail", "does not tell about itself", "+info"),
    "a wrong value": Broken(set_(CREDHOOK_RETENTION="soon"), "settings.store", "fail", "CREDHOOK_RETENTION", "deploy/README.md", code=2),
    "a key that is none": Broken(set_(CREDHOOK_WEBHOOK_SECRETS="whsec_short"), "settings.receiver", "fail", "CREDHOOK_WEBHOOK_SECRETS", "keys are separated by spaces", code=2),
    "one setting of the platform is missing": Broken(set_(CREDHOOK_CLIENT_SECRET=""), "settings.worker", "fail", "CREDHOOK_CLIENT_SECRET: is not set", "deploy/README.md", code=2),
    "a public URL without TLS": Broken(set_(CREDHOOK_PUBLIC_URL="http://inbox.example/webhooks"), "settings.endpoint", "fail", "CREDHOOK_PUBLIC_URL: should be an https://", "deploy/README.md", code=2),
    "our certificate soon expires": Broken(own_certificate, "certificate.receiver", "warn", "days left: 5", "CREDHOOK_TLS_CERTFILE"),
    "the public host is not known": Broken(set_(CREDHOOK_PUBLIC_URL=f"https://{NOWHERE}/webhooks"), "public_url.reached", "fail", "not known here", "DNS record"),
    "nothing listens at the public URL": Broken(set_(CREDHOOK_PUBLIC_URL="https://127.0.0.1:1/webhooks"), "public_url.reached", "fail", "nothing listens", "start the proxy"),
    "no TLS at the public URL": Broken(lambda one: {"CREDHOOK_PUBLIC_URL": f"https://127.0.0.1:{one.receiver.port}/webhooks"}, "public_url.reached", "fail", "does not speak TLS", "CREDHOOK_TLS_CERTFILE"),
    "the public certificate has expired": Broken(lambda one: one.public(certificate(one, days=-1)), "public_url.certificate", "fail", "expired", "renew the certificate"),
    "the public certificate soon expires": Broken(lambda one: one.public(certificate(one, days=5)), "public_url.certificate", "warn", "days left: 5", "renew the certificate"),
    "the public certificate has another name": Broken(lambda one: one.public(certificate(one, name="other.example")), "public_url.certificate", "fail", "mismatch", "CREDHOOK_PUBLIC_URL's host"),
    "the public certificate is nobody's": Broken(lambda one: one.public(certificate(one, authority=trustme.CA())), "public_url.certificate", "fail", "unable to get", "an authority that the platform trusts"),
    "the public URL leads elsewhere": Broken(elsewhere, "public_url.receiver", "fail", "takes no deliveries", "the proxy's back end"),
    "the public URL has another path": Broken(lambda one: one.public(certificate(one), path="/webhooks"), "public_url.receiver", "fail", "no deliveries at this path", "CREDHOOK_PATH_SECRET"),
    "the handlers are not there": Broken(set_(CREDHOOK_HANDLERS="clinic_handler"), "handlers.load", "fail", "there is no module", "name one as in an import"),
    "no handlers are loaded": Broken(set_(CREDHOOK_HANDLERS="idle"), "handlers.load", "warn", "no handlers are loaded", "@handlers.on"),
    "the token host is not known": Broken(set_(CREDHOOK_TOKEN_URL=f"https://{NOWHERE}/token"), "platform.api", "fail", "no answer", "check CREDHOOK_TOKEN_URL"),
    "the client secret is wrong": Broken(set_(CREDHOOK_CLIENT_SECRET="wrong-canary"), "platform.api", "fail", "refuses this client: 401", "CREDHOOK_CLIENT_SECRET"),
    "the API is not there": Broken(set_(CREDHOOK_API_URL="http://127.0.0.1:1"), "platform.api", "fail", "no answer", "check CREDHOOK_API_URL"),
    "nothing is registered": Broken(lambda one: one.public(certificate(one)), "platform.endpoints", "fail", "delivers nothing", "credhook endpoints apply"),
    "fewer types are registered": Broken(lambda one: one.registered(COMPLETED), "platform.endpoints", "fail", DATA, "credhook endpoints apply"),
    "more types are registered": Broken(lambda one: one.registered(), "platform.endpoints", "warn", "more than handlers want", "credhook endpoints apply"),
    "no receiver is there": Broken(without_receivers, "fleet.receivers", "warn", "no receiver has announced itself", "credhook receiver"),
    "no worker is there": Broken(set_(CREDHOOK_QUEUE="other"), "fleet.workers", "warn", "no worker of the queue other", "CREDHOOK_QUEUE=other"),
    "the secret is another": Broken(refusing, "fleet.refusals", "warn", "5 deliveries had no valid signature", "CREDHOOK_WEBHOOK_SECRETS"),
}  # fmt: skip


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, sandbox: Platform, authority: trustme.CA, ca: Path
) -> Iterator[Clinic]:
    with clinic(tmp_path_factory.mktemp("clinic"), sandbox, authority, ca) as one:
        yield one


@pytest.fixture
def one(fleet: Clinic) -> Iterator[Clinic]:
    """The fleet; what a test breaks is mended after it."""
    with ExitStack() as stack:
        fleet.stack = stack
        yield fleet


def test_a_fleet_that_is_well_and_stays_so(one: Clinic) -> None:
    before = {key for key in one.redis.scan_iter() if b"event" in key}
    code, found, said = one.doctor()
    assert {name: row for name, row in found.items() if row["verdict"] != "ok"}.keys() == {
        "certificate.receiver",
        "certificate.client",
        "certificate.redis",
    }
    assert code == 0, said
    assert {row["remedy"] for row in found.values()} == {""}
    after = set(one.redis.scan_iter())
    assert {key for key in after if b"event" in key} == before
    assert {key for key in after if b"doctor" in key} == set()


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named_with_its_remedy(one: Clinic, name: str) -> None:
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


@pytest.mark.parametrize("rights", ["~other:* &* +@all", "~* resetchannels &other:* +@all", "~* &* +@all -hset"])
def test_redis_takes_the_rules_that_are_named_and_then_all_is_allowed(one: Clinic, rights: str) -> None:
    limited = one.user(rights)
    _, found, _ = one.doctor(**limited)
    one.redis.execute_command(found["redis.permissions"]["remedy"].replace("<user>", "limited"))  # type: ignore[no-untyped-call]
    _, found, said = one.doctor(**limited)
    assert found["redis.permissions"]["verdict"] == "ok", said


#: What a host of each kind has of it all.
HOSTS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "a receiver's": (("REDIS_URL", "CREDHOOK_WEBHOOK_SECRETS", "CREDHOOK_PATH_SECRET"), {"settings.worker", "settings.endpoint", "platform.api", "handlers.load", "public_url.reached"}),
    "a worker's": (("REDIS_URL", "CREDHOOK_API_URL", "CREDHOOK_TOKEN_URL", "CREDHOOK_CLIENT_ID", "CREDHOOK_CLIENT_SECRET", "CREDHOOK_HANDLERS"), {"settings.receiver", "settings.endpoint", "platform.endpoints", "public_url.reached"}),
    "somebody's": (("REDIS_URL",), {"settings.receiver", "settings.worker", "settings.endpoint", "platform.api", "handlers.load"}),
}  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_with_a_part_of_the_settings_is_told_what_was_skipped(one: Clinic, host: str, tmp_path: Path) -> None:
    names, skipped = HOSTS[host]
    for name in names:  # In files, as systemd and Kubernetes give them; other tests have them in the environment.
        (tmp_path / name).write_text(one.environment[name])
    environment = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    done = commands.credhook("doctor", "--json", environment=environment, folder=one.folder)
    found = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert {name: found[name]["verdict"] for name in skipped} == dict.fromkeys(skipped, "skipped")
    assert all(found[name]["what"] for name in skipped)
    settings = {name for name in found if name.startswith("settings.")}
    assert {name for name in settings if found[name]["verdict"] == "ok"} == settings - skipped
    assert found["redis.reached"]["verdict"] == found["fleet.workers"]["verdict"] == "ok"
    assert done.returncode == 0


def test_who_says_nothing_does_not_keep_it(one: Clinic) -> None:
    """Redis, the public URL, the token endpoint: each accepts the connection, and that is all."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        code, found, _ = one.doctor(
            REDIS_URL=f"redis://{at}/0",
            CREDHOOK_PUBLIC_URL=f"https://{at}/webhooks",
            CREDHOOK_TOKEN_URL=f"http://{at}/token",
            CREDHOOK_FETCH_TIMEOUT="0.5",
        )
    assert code == 1
    assert "in time" in found["redis.reached"]["remedy"]
    assert "in time" in found["public_url.reached"]["what"]
    assert "CREDHOOK_TOKEN_URL" in found["platform.api"]["remedy"]


def test_people_read_a_line_for_each_check(one: Clinic) -> None:
    done = commands.credhook("doctor", environment=one.environment | {"CREDHOOK_QUEUE": "x"}, folder=one.folder)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert all(line.split()[0] in {"ok", "warn", "fail", "skipped"} for line in lines)
    assert any(line.startswith("warn    fleet.workers           no worker of the queue x is alive") for line in lines)
