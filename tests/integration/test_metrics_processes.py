"""Both admin listeners with several processes: what is exported stays true when some of them die.

Receivers under load, one of which is killed, are in test_processes.py.
"""

import os
import signal
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from harness import COMPLETED, Harness
from redis import Redis
from redis_keys import EVENT
from scraping import PROMTOOL, Scrape, fallen, promtool, well_formed
from serving import children, receiver
from waiting import until

from credhook.sandbox.local.environment import free_port

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


def test_workers_under_load_one_of_which_is_killed(harness: Harness, admin: str) -> None:
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
    with harness.worker("worker", "--processes", "2", CREDHOOK_ADMIN=admin, CREDHOOK_LEASE="15") as worker:
        until(lambda: "worker_started" in worker.text)
        until(lambda: "credhook_platform_breaker" in Scrape.of(admin).names)
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
        assert scrape.value("credhook_platform_breaker", "closed") == 1
        until(lambda: Scrape.of(admin).value("credhook_events", "dead") == 1)  # The store is read first.
        until(lambda: Scrape.of(admin).total("credhook_workers") == 2)

        harness.happens("deadly")
        until(lambda: "held" in harness.notes())
        until(lambda: Scrape.of(admin).value("credhook_events_in_flight") == 1)
        before = set(children(worker))
        for pid in before:  # Whichever has it.
            os.kill(pid, signal.SIGKILL)
        until(lambda: (Scrape.of(admin).value("credhook_events_reclaimed_total") or 0) >= 1)
        until(lambda: Scrape.of(admin).value("credhook_events_in_flight") == 1, what="the dead having nothing")
        until(lambda: Scrape.of(admin).total("credhook_workers") == 2)
        after = valid(Scrape.of(admin))
        assert not fallen(scrape, after)
        harness.happens("again")
        assert settled_at(admin, "credhook_attempts_total", 22).value("credhook_attempts_total", "done") == 21


def test_each_event_in_a_process_of_its_own_is_counted_too(harness: Harness, admin: str) -> None:
    for number in range(4):
        harness.happens(f"m{number}")
    with harness.worker("worker", "--isolation", "fork", CREDHOOK_ADMIN=admin) as worker:
        until(lambda: "worker_started" in worker.text)
        scrape = settled_at(admin, "credhook_attempts_total", 4)
        assert scrape.value("credhook_handler_runs_total", "test.first", "done", COMPLETED) == 4
        # In a file of its own, which the last fork may not have written when it was read.
        until(lambda: Scrape.of(admin).value("credhook_fetch_duration_seconds_count", "2xx") == 4)


def test_receiver_and_worker_together_tell_the_truth_in_sum(
    harness: Harness, tmp_path: Path, admin: str, redis_client: Redis
) -> None:
    for number in range(9):
        redis_client.hset(f"{EVENT}dead{number}", "state", "dead")
        redis_client.zadd("credhook:credhook:dead", {f"dead{number}": 2e12 + number})
    receiving, two = f"127.0.0.1:{free_port()}", ("--workers", "2")
    with receiver(tmp_path, harness.redis_url, options=two, CREDHOOK_ADMIN=receiving) as process, ExitStack() as stack:
        until(lambda: SHARED - {"credhook_workers"} <= Scrape.of(receiving).names)
        worker = stack.enter_context(harness.worker("worker", "--processes", "2", CREDHOOK_ADMIN=admin))
        until(lambda: "worker_started" in worker.text)
        until(lambda: Scrape.of(receiving).total("credhook_workers") == 2)
        until(lambda: "credhook_platform_breaker" in Scrape.of(admin).names)
        scrapes = [valid(Scrape.of(address)) for address in (receiving, admin)]
        assert sum(one.total("credhook_events") for one in scrapes) == 9
        assert sum(one.total("credhook_workers") for one in scrapes) == 2
        assert scrapes[0].names >= SHARED
        assert not SHARED & scrapes[1].names
        process.kill()
        until(lambda: Scrape.of(admin).names >= SHARED, what="the worker's turn")
        assert Scrape.of(admin).total("credhook_events") == 9
