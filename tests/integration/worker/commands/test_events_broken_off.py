"""`credhook events` when the operator says no or presses Ctrl-C, or Redis goes: it ends with what was done."""

import json
import signal
from collections import Counter

import click
import pytest
from click.testing import CliRunner
from redis import Redis

from credhook.store import State
from credhook.store.bulk import BulkResult
from credhook.worker.commands.bulk import report
from support.redis.redis_proxy import redis_proxy
from support.store.accepting import record
from support.store.stored_events import plant, plant_many
from support.store.stores import INDEX
from support.waiting import until
from support.worker.events_command import asked, process, terminal


def test_a_terminal_is_asked_and_what_changes_meanwhile_is_left(redis_client: Redis, redis_url: str) -> None:
    plant(redis_client, "m1", State.DONE)
    plant(redis_client, "m2", State.DONE)
    with terminal(redis_url, "replay", "--all") as (running, write):
        asked(running)
        plant(redis_client, "m2", State.DEAD)
        write("y")
        assert running.communicate(timeout=60)[0] == "replayed 1, left 1 (1 changed meanwhile)\n"
    with terminal(redis_url, "erase", "--all") as (running, write):
        asked(running)
        write("n")
        assert running.communicate(timeout=60)[1].endswith("Aborted!\n")
        assert running.returncode == 1
    assert record(redis_client, "m1")


@pytest.mark.parametrize(("done", "left", "end", "code"), [(2, 1, "", 0), (0, 1, "", 1), (2, 0, "gone", 1)])
def test_programs_read_whether_all_was_done(done: int, left: int, end: str, code: int) -> None:
    result = BulkResult(3, Counter(done=done, open=left), end)
    outcomes = {"done": ""}, {"open": ""}
    command = click.Command("x", callback=lambda: report(result, "moved", *outcomes, queue="q", as_json=True))
    told = CliRunner().invoke(command, [])
    expected = {"moved": done, "left": {"open": left} if left else {}, "complete": not end}
    assert (json.loads(told.stdout), told.exit_code) == (expected, code)


@pytest.mark.parametrize(
    ("pressed", "why", "rest"),
    [(False, "Redis does not answer (ConnectionError); ", 300), (True, "Stopped by Ctrl-C\n", 500)],
)
def test_interrupted_command_prints_one_line_and_can_be_repeated(
    redis_client: Redis, redis_url: str, pressed: bool, why: str, rest: int
) -> None:
    plant_many(redis_client, 500, State.DEAD)
    with redis_proxy(redis_url) as proxy:
        proxy.lose, proxy.hold = 1, pressed
        with process(proxy.url, "replay", "--state", "dead") as running:
            if pressed:
                until(lambda: proxy.held, what="the first batch")
                running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (1, "")
    assert err.startswith(f"Error: replayed at least 0 of 500; run the command again for the others. {why}")
    with process(redis_url, "replay", "--state", "dead") as running:
        assert running.communicate(timeout=60)[0] == f"replayed {rest}\n"
    assert redis_client.llen(INDEX.jobs) == redis_client.zcard(INDEX.open) == 500
