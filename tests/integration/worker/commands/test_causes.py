"""`credhook causes`, and `credhook events … --cause`, on a real Redis."""

import json
import re
import time
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis import Redis

from credhook.store import State
from credhook.store import selection as search
from credhook.store.causes import standing as still_standing
from credhook.worker.commands.events import causes as command
from support.store.stored_events import plant, plant_many
from support.store.stores import EVENT, INDEX, store_on
from support.worker.events_command import Run, listed
from support.worker.harness import DATA

BAD, SLOW = "0badc0de", "510e0000"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, env={"CREDHOOK_RETENTION": "3600"}, catch_exceptions=False)


@pytest.fixture
def failed(redis_client: Redis, events: Run) -> Redis:
    """Two events that a bug has given up, one that it may yet, and one that another cause has.

    After a crash, the bug's index still names `moved`, which its handler has failed with another error since.
    """
    plant(redis_client, "m1", State.DEAD, age=30)
    plant(redis_client, "m2", State.DATA_GONE, DATA, age=20)
    plant(redis_client, "m3", State.WAITING, age=10)
    plant(redis_client, "m4", State.DEAD)
    plant(redis_client, "moved", State.DEAD)
    plant(redis_client, "settled", State.DONE)  # By a worker of the version before.
    now = int(time.time()) * 1_000
    standing = {"m1": now - 60_000, "m2": now, "m3": -now, "settled": -now, "expired": now - 10**7, "moved": 1}
    standing |= {"gone": -now, "forgotten": -1, "late": -now + 10**8}  # The pause of `late` outlasts the retention.
    cause(redis_client, BAD, "a.bad", standing, last=2_000, failures=7)
    redis_client.hset(EVENT + "moved", "c:a.bad", "0721e2e5")
    cause(redis_client, SLOW, "a.slow", {"m4": now}, last=1_000, failures=1)
    return redis_client


def cause(redis: Redis, cause_id: str, who: str, standing: dict[str, int], *, last: int, failures: int) -> None:
    fields: dict[Any, Any] = {"who": who, "what": "ValueError", "at": "a/b.py:3 f", "since": "a 1", "version": "a 2"}
    redis.hset(INDEX.cause(cause_id), mapping={**fields, "first": 1_000, "failures": failures})
    for one in standing:
        if redis.exists(EVENT + one):
            redis.hset(EVENT + one, "c:" + who, cause_id)
    redis.zadd(INDEX.causes, {cause_id: last, "00000000": 1})  # The other one has expired.
    redis.zadd(INDEX.standing(cause_id), dict(standing))


@pytest.mark.usefixtures("failed")
def test_they_are_shown_the_latest_first_with_what_to_do_next() -> None:
    first, second = map(json.loads, run("--json").stdout.splitlines())
    assert first == {
        "id": BAD, "handler": "a.bad", "error": "ValueError", "at": "a/b.py:3 f", "open": 4, "given_up": 2,
        "failures": 7, "first": "1970-01-01T00:00:01.000Z", "last": "1970-01-01T00:00:02.000Z",
        "since": "a 1", "version": "a 2",
    }  # fmt: skip
    assert second["id"] == SLOW
    printed = run().stdout
    assert "first (UTC)          last (UTC)" in printed.splitlines()[0]
    assert printed.index(BAD) < printed.index(SLOW)
    times = "1970-01-01 00:00:01|1970-01-01 00:00:02"
    shown = f"{BAD}|a.bad|ValueError|a/b.py:3 f|4|2|7|{times}|a 2, since a 1"
    assert re.sub(" {2,}", "|", printed.splitlines()[1]) == shown
    assert "there may be more" not in run("--limit", "3").stdout
    assert "there may be more; raise --limit to see them" in run("--limit", "1").stdout


def test_where_nothing_has_failed_it_says_so(events: Run) -> None:
    assert run().stdout == "no causes: nothing has failed\n"
    assert run("--json").stdout == ""


def test_more_events_than_a_page_have_one_cause(redis_client: Redis) -> None:
    plant_many(redis_client, 1_100, State.DEAD)
    ids = [f"msg_{number:05}" for number in range(1_100)]
    cause(redis_client, BAD, "a.bad", dict.fromkeys(ids, 1), last=1_000, failures=1)
    assert sorted(still_standing(store_on(redis_client), BAD) or ()) == sorted(ids)


def test_what_is_done_meanwhile_is_not_done_again(events: Run, failed: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker settles m3 after it was found to stand with the cause, and before its record is read."""

    def settling(*what: Any) -> list[str]:
        ids = list(still_standing(*what) or ())
        failed.hset(EVENT + "m3", "state", State.DONE)
        return ids

    monkeypatch.setattr(search, "standing", settling)
    assert events("replay", "--cause", BAD).stdout == "replayed 2\n"
    assert failed.hget(EVENT + "m3", "state") == b"done"


def test_the_events_of_one_are_listed_counted_replayed_and_erased(events: Run, failed: Redis) -> None:
    assert listed(events("list", "--json", "--cause", BAD)) == ["m3", "m2", "m1"]  # And none that is done.
    assert listed(events("list", "--json", "--cause", BAD, "--state", "dead")) == ["m1"]
    assert listed(events("list", "--json", "--cause", BAD, "--id", "m2", "--id", "m4")) == ["m2"]
    assert len(events("replay", "--cause", BAD, "--dry-run", "--json").stdout.splitlines()) == 3
    left = "replayed 0, left 3 (1 open, 2 that the handler does not want)\n"  # For one handler, none is hurried.
    assert events("replay", "--cause", BAD, "--handler", "a.bad").stdout.endswith(left)
    assert events("replay", "--cause", BAD).stdout == "replayed 3\n"  # One of them has waited.
    assert listed(events("list", "--json", "--cause", BAD)) == []
    assert events("erase", "--cause", SLOW, "--yes").stdout == "erased 1\n"
    assert not failed.exists(INDEX.standing(SLOW))


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize("command", ["list", "replay", "erase"])
def test_an_unknown_cause_is_refused(events: Run, command: str) -> None:
    expected = {"00000000": "there is no cause 00000000; `credhook causes` lists them", "x": "id of a cause"}
    for unknown, says in expected.items():
        refused = events(command, "--cause", unknown)
        assert refused.exit_code == 2
        assert says in " ".join(refused.stderr.split())
