"""`credhook events` when somebody says no or presses Ctrl-C, or Redis goes: what was done is told, no more is done."""

import json
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from typing import Any

import click
import pytest
from accepting import record
from click.testing import CliRunner
from events_command import Run, asked, process, terminal
from redis import Redis
from redis_proxy import redis_proxy
from stored_events import INDEX, plant, plant_many
from waiting import until

from credhook.store import State
from credhook.worker.commands.batches import BATCH, BulkResult, report, work_through


def test_a_terminal_is_asked_and_what_changes_meanwhile_is_left(redis_client: Redis, redis_url: str) -> None:
    plant(redis_client, "m1", State.DONE)
    plant(redis_client, "m2", State.DONE)
    with terminal(redis_url, "replay", "--all") as (running, write):
        asked(running)
        plant(redis_client, "m2", State.DEAD)
        write("y\n")
        assert running.communicate(timeout=60)[0] == "replayed 1, left 1 (1 changed meanwhile)\n"
    with terminal(redis_url, "erase", "--all") as (running, write):
        asked(running)
        write("n\n")
        assert running.communicate(timeout=60)[1].endswith("nothing was changed\n")
        assert running.returncode == 1
    with terminal(redis_url, "erase", "--all") as (running, _):
        asked(running)
        while running.poll() is None:  # Python does not see a signal that comes just before it begins to read.
            running.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                running.wait(3)
        assert running.communicate()[1].endswith("nothing was changed\n")
        assert running.returncode == 130
    assert record(redis_client, "m1")


def test_ctrl_c_ends_between_two_batches_with_what_was_done(redis_client: Redis, redis_url: str) -> None:
    plant_many(redis_client, 500, State.DEAD)
    with redis_proxy(redis_url) as proxy:
        proxy.hold = True
        with process(proxy.url, "replay", "--state", "dead") as running:
            until(lambda: proxy.held, what="the first batch")
            running.send_signal(signal.SIGINT)
            proxy.hold = False
            assert running.communicate(timeout=60) == ("replayed 200; stopped by Ctrl-C before the other 300\n", "")
            assert running.returncode == 130
    assert redis_client.llen(INDEX.jobs) == 200


def test_ctrl_c_ends_what_follows_the_batches_as_well() -> None:
    def step(batch: list[int]) -> list[bytes]:
        if batch[0] == BATCH:
            signal.raise_signal(signal.SIGINT)
        return [b"erased"] * len(batch)

    result = work_through(range(3 * BATCH), step, "erasing")
    assert (result.interrupted, result.outcomes) == (True, {"erased": 2 * BATCH})
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("done", "left", "end", "code"),
    [(2, 1, {}, 0), (0, 1, {}, 1), (2, 0, {"interrupted": True}, 130), (2, 0, {"error": "gone"}, 1)],
)
def test_programs_read_whether_all_was_done(done: int, left: int, end: dict[str, Any], code: int) -> None:
    result = BulkResult(3, Counter(done=done, open=left), **end)
    command = click.Command("x", callback=lambda: report(result, "moved", {"done": ""}, {"open": ""}, as_json=True))
    told = CliRunner().invoke(command, [])
    expected = {"moved": done, "left": {"open": left} if left else {}, "complete": not end}
    assert (json.loads(told.stdout), told.exit_code) == (expected, code)


def test_a_redis_that_goes_in_the_middle_is_one_line_and_the_rest_can_follow(
    redis_client: Redis, redis_url: str
) -> None:
    plant_many(redis_client, 500, State.DEAD)
    with redis_proxy(redis_url) as proxy:
        proxy.lose = 1
        with process(proxy.url, "replay", "--state", "dead") as running:
            out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (1, "")
    assert err.startswith(
        "Error: replayed at least 0 of 500; run the command again for the others. "
        "Redis does not answer (ConnectionError); "
    )
    with process(redis_url, "replay", "--state", "dead") as running:
        assert running.communicate(timeout=60)[0] == "replayed 300\n"
    assert redis_client.llen(INDEX.jobs) == redis_client.zcard(INDEX.open) == 500


def test_a_redis_that_is_not_there_is_one_line(events: Run) -> None:
    for arguments in (("list",), ("show", "m1"), ("replay", "--all"), ("erase", "--all", "--yes")):
        result = events(*arguments, REDIS_URL="redis://127.0.0.1:1/0", CREDHOOK_REDIS_CERTFILE="")
        assert result.exit_code == 1
        assert result.stderr == (
            "Error: Redis does not answer (ConnectionError); "
            "nothing listens there: check REDIS_URL, whether Redis runs, and why not: a full disk ends it\n"
        )
