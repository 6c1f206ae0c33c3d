"""A receiver that is flooded stays small and goes on taking deliveries: short in the suite, long in the soak."""

import json
import resource
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trustme
from floods import (
    DRIPPED_BODIES,
    DRIPPED_HEADS,
    ENDLESS_TRAILERS,
    FAST,
    SILENCE,
    SLOW,
    UNFINISHED_HEADS,
    Flood,
    Target,
    attack,
    deliver,
    forget_peak,
    peak,
    resident,
)
from serving import Process, running
from signing import SECRET
from waiting import until

from credhook.sandbox.local.environment import free_port

#: MiB that a flooded receiver may take beside what it takes at rest. uvloop allocates 256 KiB for each TLS connection.
MOST = 100.0
MOST_WITH_TLS = 400.0


@contextmanager
def open_files(number: int) -> Iterator[None]:
    """What is started within may open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def exposed(folder: Path, redis_url: str, *, tls: bool, files: int) -> Iterator[tuple[Process, Target, Target]]:
    """A receiver, its public port and its admin listener."""
    port, admin = free_port(), free_port()
    environment = {"REDIS_URL": redis_url, "PORT": str(port), "CREDHOOK_WEBHOOK_SECRETS": SECRET}
    environment |= {"CREDHOOK_ADMIN": f"127.0.0.1:{admin}"}
    trust = None
    if tls:
        authority, certificate = trustme.CA(), folder / "cert.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
        trust = ssl.create_default_context()
        authority.configure_trust(trust)
        environment["CREDHOOK_TLS_CERTFILE"] = str(certificate)
    with open_files(files):
        starting = running(folder / "flooded.log", "receiver", environment=environment)
        process = starting.__enter__()
    try:
        target = Target(port, trust)
        until(lambda: deliver(target, "warm") == 202, what="the first delivery")
        yield process, target, Target(admin)
    finally:
        starting.__exit__(None, None, None)


def honest(target: Target, seconds: float) -> Counter[int]:
    """Deliveries ten times a second; how often each status was answered, 0 for none."""
    statuses: Counter[int] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        statuses[deliver(target, f"honest_{time.monotonic_ns()}")] += 1
        time.sleep(0.1)
    return statuses


def delivered(target: Target, webhook_id: str, statuses: Counter[int]) -> bool:
    """Deliver once, and note the status."""
    status = deliver(target, webhook_id)
    statuses[status] += 1
    return status == 202


@pytest.mark.parametrize("flood", [ENDLESS_TRAILERS, UNFINISHED_HEADS], ids=lambda flood: flood.name)
@pytest.mark.parametrize("listener", ["public", "admin"])
def test_a_flood_costs_little_memory(tmp_path: Path, redis_url: str, flood: Flood, listener: str) -> None:
    with exposed(tmp_path, redis_url, tls=False, files=1_024) as (process, public, admin):
        rest = resident(process.process.pid)
        forget_peak(process.process.pid)
        with attack(public if listener == "public" else admin, [flood] * 40) as begun:
            until(lambda: begun.cut.total() >= 80, what="the end of each connection, twice")
            assert deliver(public, "honest") == 202
        assert peak(process.process.pid) - rest < MOST


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_honest_deliveries_go_on_under_more_slow_senders_than_files_may_be_open(
    tmp_path: Path, redis_url: str, *, tls: bool
) -> None:
    with exposed(tmp_path, redis_url, tls=tls, files=224) as (process, public, _):
        with attack(public, [DRIPPED_HEADS, DRIPPED_BODIES, SILENCE] * 60):
            until(lambda: '"made_room"' in process.text, what="the first that gives way")
            # On a busy machine an honest sender may come before a slow one is due to give way, or be slow itself. Like
            # the platform, it then comes again.
            statuses: Counter[int] = Counter()
            for number in range(20):
                until(partial(delivered, public, f"honest_{number}", statuses), what=f"delivery {number}")
        assert statuses.total() < 80, statuses
        lines = [json.loads(line) for line in process.text.splitlines()]
        assert [line["allowed"] for line in lines if line["event"] == "fewer_connections"] == [128]
        assert sum(line["event"] == "senders_cut_off" and line["reason"] == "made_room" for line in lines) == 1
        assert process.stop() == 0


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_all_floods_at_once_cost_limited_memory(tmp_path: Path, redis_url: str, *, tls: bool) -> None:
    every = [*FAST, *SLOW, UNFINISHED_HEADS]
    with exposed(tmp_path, redis_url, tls=tls, files=4_096) as (process, public, admin):
        rest = resident(process.process.pid)
        forget_peak(process.process.pid)
        with attack(public, every * 70), attack(admin, every * 5):
            time.sleep(20)
            statuses = honest(public, 40)
        more = peak(process.process.pid) - rest
        print(f"\n{more:.0f} MiB more than at rest; honest deliveries: {dict(statuses)}")  # noqa: T201  For the record.
        assert more < (MOST_WITH_TLS if tls else MOST)
        assert statuses[202] >= 0.9 * sum(statuses.values())
        assert "Traceback" not in process.text


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_eleven_hundred_slow_senders_do_not_keep_deliveries_out(tmp_path: Path, redis_url: str, *, tls: bool) -> None:
    with exposed(tmp_path, redis_url, tls=tls, files=1_024) as (process, public, _):
        with attack(public, [*([DRIPPED_HEADS, DRIPPED_BODIES, SILENCE] * 366), SILENCE, SILENCE]):
            time.sleep(10)
            statuses = honest(public, 30)
        print(f"\nhonest deliveries: {dict(statuses)}")  # noqa: T201  For the record.
        assert statuses.keys() == {202}
        assert process.stop() == 0
