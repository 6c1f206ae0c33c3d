"""Both admin listeners with several processes: what is exported stays true when some of them die.

Receivers under load, one of which is killed, are in tests/integration/receiver/test_processes.py.
"""

import os
import signal
from itertools import pairwise

import pytest

from credhook.sandbox.local.environment import free_port
from support.process.scraping import PROMTOOL, Scrape, fallen, promtool, well_formed
from support.process.serving import children, receiver
from support.waiting import until
from support.worker.harness import COMPLETED, Harness

SHARED = {"credhook_queue_length", "credhook_oldest_open_event_age_seconds", "credhook_workers", "credhook_events"}


@pytest.fixture
def admin() -> str:
    return f"127.0.0.1:{free_port()}"


def valid(scrape: Scrape) -> Scrape:
    assert well_formed(scrape), scrape.text
    if PROMTOOL:
        assert promtool("check", "metrics", given=scrape.text) == ""
    return scrape


def settled_at(address: str, name: str, expected: float) -> Scrape:
    """The first scrape in which that sum is as expected."""
    found: list[Scrape] = []

    def ask() -> bool:
        found.append(valid(Scrape.of(address)))
        return found[-1].total(name) >= expected

    until(ask, what=f"{name} {expected}")
    assert found[-1].total(name) == expected
    assert not any(fallen(one, other) for one, other in pairwise(found))
    return found[-1]


def test_metrics_stay_true_when_a_worker_is_killed(harness: Harness, admin: str) -> None:
    harness.plugin("""
from prometheus_client import Counter

welcomed = Counter("accounts_welcomed", "An author's own.", ["kind"])

@handlers.on("*")
async def first(event, context):
    welcomed.labels("new").inc()
    if event.webhook_id == "deadly":
        note("held")
        await asyncio.sleep(600)

@handlers.on("openid4vc.issuance.completed")
def second(event, context):
    if event.webhook_id.startswith("bad"):
        raise GiveUp("never")
""")
    for number in range(20):
        harness.happens(f"m{number}")
    harness.happens("bad")
    shared, options = f"127.0.0.1:{free_port()}", ("--workers", "2")
    with (
        receiver(harness.folder, harness.redis_url, options=options, CREDHOOK_ADMIN=shared),
        harness.worker("worker", "--processes", "2", CREDHOOK_ADMIN=admin, CREDHOOK_LEASE="15") as worker,
    ):
        until(lambda: "worker_started" in worker.text)
        until(lambda: "credhook_platform_pause_seconds" in Scrape.of(admin).names)
        settled_at(admin, "credhook_handler_duration_seconds_count", 42)  # A process writes one figure after another.
        scrape = settled_at(admin, "credhook_attempts_total", 21)
        runs = scrape.series("credhook_handler_runs_total")
        assert runs == {
            ("test.first", "done", COMPLETED): 21,
            ("test.second", "done", COMPLETED): 20,
            ("test.second", "gave_up", COMPLETED): 1,
        }
        assert scrape.value("accounts_welcomed_total", "new") == 21
        assert scrape.value("credhook_attempts_total", "done") == 20
        assert scrape.value("credhook_attempts_total", "dead") == 1
        assert scrape.series("credhook_handler_duration_seconds_count") == {("test.first",): 21, ("test.second",): 21}
        assert scrape.value("credhook_fetch_duration_seconds_count", "2xx") == 21
        assert scrape.value("credhook_delivery_to_done_seconds_count") == 20
        assert scrape.value("credhook_token_fetches_total", "granted") in {1, 2}  # One of each process, in time.
        assert scrape.value("credhook_platform_breaker") == 0
        until(lambda: Scrape.of(shared).value("credhook_events", "dead") == 1)  # The store is read first.
        until(lambda: Scrape.of(shared).total("credhook_workers") == 2)
        assert valid(Scrape.of(shared)).names >= SHARED
        assert scrape.names >= SHARED

        harness.happens("deadly")
        until(lambda: "held" in harness.notes())
        until(lambda: Scrape.of(admin).value("credhook_events_in_flight") == 1)
        before = set(children(worker))
        for pid in before:  # Whichever has it.
            os.kill(pid, signal.SIGKILL)
        until(lambda: (Scrape.of(admin).value("credhook_events_reclaimed_total") or 0) >= 1)
        until(lambda: Scrape.of(admin).value("credhook_events_in_flight") == 1, what="the dead having nothing")
        until(lambda: Scrape.of(shared).total("credhook_workers") == 2)
        after = valid(Scrape.of(admin))
        assert not fallen(scrape, after)
        harness.happens("again")
        assert settled_at(admin, "credhook_attempts_total", 22).value("credhook_attempts_total", "done") == 21
