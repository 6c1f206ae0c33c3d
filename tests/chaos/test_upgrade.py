"""Versions and secrets change under load, as deploy/UPGRADE.md says. Nothing is lost or run twice.

A new process starts and is ready before the old one stops. The sender stands for the platform and for the proxy.
"""
# ruff: noqa: T201  The counts are what `make soak` is run for.

import asyncio
import itertools
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import trustme
from redis import Redis
from redis.exceptions import AuthenticationError

from support import plain
from support.checkout import ROOT
from support.platform.sandbox_api import authorized, registered
from support.process.commands import invoke
from support.process.other_version import Member, installed
from support.process.serving import Platform
from support.receiver.repeating_sender import deliver_all
from support.receiver.signing import OTHER_SECRET, SECRET, body, headers
from support.waiting import until
from support.worker.fleet_harness import LONG, SHORT, SIZES, Answer, Call, FleetHarness, presentation, well

#: An earlier commit with the same schema of the store. There is no way back to 0.2.0rc1, which has another one.
CANDIDATE = "5d771a79bbddb43e44ef7ba05e388a8e1755961b"
OLD, NEW = "a-secret-of-last-year-0123456789", "the-secret-of-this-year-01234567"

HANDLERS = """
from credhook.store.announcements import version
build = version()

@handlers.on("*", retries=10_000)
async def first(event, context):
    if event.webhook_id == "sealed" and not (here / "go").exists():
        note("put_off", event.webhook_id)
        raise Retry(after=1)
    note("first", event.webhook_id, build)
"""


class Fleet:
    """Receivers that speak TLS, workers, and the platform that delivers to them.

    Attributes:
        url: where the platform delivers to; the proxy chooses the receiver.
        secret: what the platform signs with.
        settings: those of the processes that start from now on.
    """

    def __init__(self, rig: FleetHarness, authority: trustme.CA, sandbox: Platform, size: str) -> None:
        self.rig, self.authority, self.sandbox, self.size = rig, authority, sandbox, size
        self.python = sys.executable
        certificate = rig.folder / "certificate.pem"
        authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
        self.set_user(f"on >{OLD} ~* &* +@all")
        rig.stub.client_secrets = {OLD}
        self.settings = {
            "REDIS_URL": self.redis_url(OLD),
            "CREDHOOK_TLS_CERTFILE": str(certificate),
            "CREDHOOK_PATH_SECRET": OLD,
            "CREDHOOK_CLIENT_SECRET": OLD,
            "CREDHOOK_SNAPSHOT_KEY": OLD,
            "CREDHOOK_LEASE": "15",
        }
        self.secret, self.url = SECRET, f"https://localhost/webhooks/{OLD}"
        self.members: dict[str, list[Member]] = {"receiver": [], "worker": []}
        self._number = itertools.count()
        self._over = False
        for part in self.members:
            for _ in range(1 if size == SHORT else 2):
                self._add(part)

    def redis_url(self, password: str) -> str:
        return self.rig.redis_url.replace("//", f"//inbox:{password}@")

    def set_user(self, rules: str) -> None:
        self.rig.redis.execute_command(f"ACL SETUSER inbox {rules}")  # type: ignore[no-untyped-call]

    def _add(self, part: str) -> None:
        member = Member(self.rig, part, f"{part}{next(self._number)}", self.python, **self.settings)
        self.members[part].append(member)
        until(lambda: member.readiness()[0] == 200 and f'"{part}_started"' in member.text, what=f"the {part}")

    def replace(self, *parts: str, **settings: str) -> None:
        """Restart each process with these settings: the new one is ready before the old one stops."""
        self.settings |= settings
        for part in parts:
            for _ in range(len(self.members[part])):
                self._add(part)
                assert self.members[part].pop(0).stop() == 0

    def address(self) -> str:
        """Return the URL at one of the receivers, in turn."""
        parts, receivers = urlsplit(self.url), [*self.members["receiver"]]  # A copy: another thread replaces them.
        port = receivers[next(self._number) % len(receivers)].port
        return parts._replace(netloc=f"{parts.netloc}:{port}").geturl()

    @property
    def trust(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context

    def post(self, webhook_id: str, content: bytes, secret: str | None = None) -> int:
        signed = headers(webhook_id, content, secret=secret or self.secret)
        return plain.post(self.address(), content=content, headers=signed, verify=self.trust).status_code

    def go_on(self) -> None:
        """Return once some more events were handled."""
        before = len(self.rig.notes())
        until(lambda: len(self.rig.notes()) >= before + 20, what="more events")

    @contextmanager
    def load(self) -> Iterator[tuple[list[str], Counter[int]]]:
        """Deliver during the block, at least so many. Yield the ids and the answers, complete after the block."""
        sent: list[str] = []
        answers: Counter[int] = Counter()

        def supply() -> Iterator[str]:
            while not self._over or (self.size == LONG and len(sent) < 5_000):
                sent.append(f"m{len(sent):05}")
                yield sent[-1]

        pause = 0.4 if self.size == SHORT else 0.02
        sending = deliver_all(self.address, supply(), secret=lambda: self.secret, trust=self.trust, pause=pause)
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(asyncio.run, sending)
            try:
                self.go_on()
                yield sent, answers
                self.go_on()
            finally:
                self._over = True
            answers += result.result()


def webhook_secret(fleet: Fleet) -> None:
    fleet.replace("receiver", CREDHOOK_WEBHOOK_SECRETS=f"{OTHER_SECRET} {SECRET}")
    fleet.secret = OTHER_SECRET  # At the platform.
    fleet.go_on()
    fleet.replace("receiver", CREDHOOK_WEBHOOK_SECRETS=OTHER_SECRET)
    assert fleet.post("forged", body(), SECRET) == 401


def path_secret_and_public_url(fleet: Fleet) -> None:
    def apply(*options: str, url: str) -> str:
        """Register the URL. Return the only one that is registered then."""
        handlers = {"CREDHOOK_HANDLERS": "credhook.worker.handlers.logging_handler"}
        environment = {**fleet.sandbox.environment, **handlers, "CREDHOOK_PUBLIC_URL": url}
        done = invoke("endpoints", "apply", *options, environment=environment)
        assert (done.returncode, done.stderr) == (0, "")
        (endpoint,) = registered(fleet.sandbox)
        return str(endpoint["url"])

    fleet.url = apply(url=fleet.url)
    fleet.replace("receiver", CREDHOOK_PATH_SECRET=f"{NEW} {OLD}")
    fleet.url = apply(url=f"https://localhost/webhooks/{NEW}")
    fleet.go_on()
    fleet.replace("receiver", CREDHOOK_PATH_SECRET=NEW)
    fleet.url = apply("--moved", url=f"https://127.0.0.1/webhooks/{NEW}")


def client_secret(fleet: Fleet) -> None:
    fleet.rig.stub.client_secrets = {OLD, NEW}  # At the platform.
    fleet.replace("worker", CREDHOOK_CLIENT_SECRET=NEW)
    fleet.rig.stub.client_secrets = {NEW}


def redis_password(fleet: Fleet) -> None:
    fleet.set_user(f">{NEW}")
    fleet.replace("receiver", "worker", REDIS_URL=fleet.redis_url(NEW))
    fleet.set_user(f"<{OLD}")
    with Redis.from_url(fleet.redis_url(OLD)) as client, pytest.raises(AuthenticationError):
        client.ping()


def snapshot_key(fleet: Fleet) -> None:
    """An event that was sealed with the old key is opened, and the platform shows its data only once."""

    def once(call: Call) -> Answer:
        is_gone = call.resource == "pre_sealed" and call.number > 1
        return presentation(call.resource, None) if is_gone else well(call)

    fleet.rig.stub.answer = once
    assert fleet.post("sealed", body("openid4vc.verification.data", "pre_sealed")) == 202
    until(lambda: ("put_off", "sealed") in [note.words for note in fleet.rig.notes()], what="the first attempt")
    fleet.replace("worker", CREDHOOK_SNAPSHOT_KEY=f"{NEW} {OLD}")
    (fleet.rig.folder / "go").touch()
    fleet.rig.reaches("sealed", "done")
    fleet.replace("worker", CREDHOOK_SNAPSHOT_KEY=NEW)


def version(fleet: Fleet) -> None:
    """Back to an earlier version and forward again."""
    source, archive = fleet.rig.folder / "candidate", fleet.rig.folder / "candidate.tar"
    source.mkdir()
    git = ("git", "-C", str(ROOT))
    differs = [*git, "diff", "--quiet", CANDIDATE, "--", "*.py", "*.lua", ":!tests"]
    if subprocess.run(differs, check=False, capture_output=True).returncode != 1:  # More: it is not there.
        pytest.skip(f"needs commit {CANDIDATE} in git, and code that differs from it")
    subprocess.run([*git, "archive", "-o", str(archive), CANDIDATE], check=True)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(source)], check=True)
    fleet.python = installed(source, fleet.rig.folder)
    fleet.replace("receiver", "worker")
    fleet.go_on()
    fleet.python = sys.executable
    fleet.replace("worker", "receiver")


CHANGES = [
    *(webhook_secret, path_secret_and_public_url, client_secret, redis_password, snapshot_key),
    pytest.param(version, marks=pytest.mark.soak),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_nothing_is_lost_or_run_twice_during(
    rig: FleetHarness, authority: trustme.CA, sandbox: Platform, change: Callable[[Fleet], None], size: str
) -> None:
    rig.plugin(HANDLERS)
    fleet = Fleet(rig, authority, sandbox, size)
    try:
        with fleet.load() as (sent, answers):
            change(fleet)
        rig.settles(within=120)
    finally:
        for member in itertools.chain(*fleet.members.values()):
            member.kill()
        rig.redis.acl_deluser("inbox")
        with authorized(sandbox) as api:
            for endpoint in registered(sandbox):
                api.delete(f"/me-creds/api/endpoints/{endpoint['id']}")
    runs = Counter(note.words[1] for note in rig.notes() if note.words[0] == "first")
    builds = Counter(note.words[2] for note in rig.notes() if note.words[0] == "first")
    kept = rig.records(sent)
    lost = [webhook_id for webhook_id in sent if kept[webhook_id].get("state") != "done"]
    doubled = [webhook_id for webhook_id in sent if runs[webhook_id] > 1]
    print(f"\n{change.__name__}: {len(sent)} sent, {len(lost)} lost, {len(doubled)} doubled; handled by {dict(builds)}")
    print(f"answers {dict(answers)}, 0 where there was none")
    assert (lost, doubled, answers[202]) == ([], [], len(sent))
    assert answers.keys() <= {202, 0}  # A connection that its receiver closes gets no answer.
    assert change is not version or len(builds) == 2
