"""`credhook causes`, and `credhook events … --cause`, on a real Redis."""

import json
import re
import time
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis import Redis

from credhook.store import State
from credhook.worker.commands.events import causes as command
from support.store.stored_events import plant
from support.store.stores import INDEX
from support.worker.events_command import Run, listed
from support.worker.harness import DATA

BAD, SLOW = "0badc0de", "510e0000"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, env={"CREDHOOK_RETENTION": "3600"}, catch_exceptions=False)


@pytest.fixture
def failed(redis_client: Redis, events: Run) -> Redis:
    """Two events that a bug has given up, one that it may yet, and one that another cause has."""
    blamed = {"a.bad": BAD}
    plant(redis_client, "m4", State.DEAD, causes={"a.slow": SLOW})
    time.sleep(0.002)
    plant(redis_client, "m1", State.DEAD, age=30, causes=blamed)
    plant(redis_client, "m2", State.DATA_GONE, DATA, age=20, causes=blamed)
    plant(redis_client, "m3", State.WAITING, age=10, causes=blamed)
    time.sleep(0.002)
    plant(redis_client, "moved", State.DEAD, causes={"a.bad": "0721e2e5"})
    describe(redis_client, BAD, "a.bad")
    describe(redis_client, SLOW, "a.slow")
    return redis_client


def describe(redis: Redis, cause_id: str, who: str) -> None:
    fields: dict[Any, Any] = {"who": who, "what": "ValueError", "at": "a/b.py:3 f", "version": "a 2", "first": 1_000}
    redis.hset(INDEX.cause + cause_id, mapping=fields)


@pytest.mark.usefixtures("failed")
def test_causes_are_shown_the_latest_first() -> None:
    moved, first, second = map(json.loads, run("--json").stdout.splitlines())
    assert first | {"last": ""} == {
        "id": BAD, "handler": "a.bad", "error": "ValueError", "at": "a/b.py:3 f", "open": 1, "given_up": 2,
        "first": "1970-01-01T00:00:01.000Z", "last": "", "version": "a 2",
    }  # fmt: skip
    assert (moved["id"], second["id"]) == ("0721e2e5", SLOW)
    assert moved["last"] >= first["last"] > second["last"]
    _, _, printed, *_ = run().stdout.splitlines()
    last = first["last"][:19].replace("T", " ")
    expected = f"{BAD}|a.bad|ValueError|a/b.py:3 f|1|2|1970-01-01 00:00:01|{last}|a 2"
    assert re.sub(" {2,}", "|", printed) == expected
    assert "more" not in run("--limit", "3").stdout
    assert run("--limit", "1").stdout.endswith("2 more; raise --limit to see them\n")


@pytest.mark.usefixtures("events")
def test_fetches_that_get_a_404_lead_to_the_settings_of_the_paths(redis_client: Redis) -> None:
    plant(redis_client, "m1", State.DEAD, causes={"fetch": BAD})
    fields: dict[Any, Any] = {"who": "fetch", "what": "NotFound 404", "at": "", "first": 1_000}
    redis_client.hset(INDEX.cause + BAD, mapping=fields)
    assert "check CREDHOOK_ISSUANCE_PATH and CREDHOOK_PRESENTATION_PATH, whose default is a guess" in run().stdout
    redis_client.hset(INDEX.cause + BAD, "what", "Unavailable 503")
    assert "CREDHOOK" not in run().stdout


def test_no_cause_is_shown_where_nothing_has_failed(events: Run) -> None:
    assert run().stdout == "no causes: no event has an open failure\n"
    assert run("--json").stdout == ""


def test_count_says_that_it_has_not_read_all(failed: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credhook.store.causes.READ_LIMIT", 1)
    assert "counted among the latest" in run().stdout


def test_the_events_of_one_are_listed_counted_replayed_and_erased(events: Run, failed: Redis) -> None:
    assert listed(events("list", "--json", "--cause", BAD)) == ["m3", "m2", "m1"]  # And none that is done.
    assert listed(events("list", "--json", "--cause", BAD, "--state", "dead")) == ["m1"]
    assert listed(events("list", "--json", "--cause", BAD, "m2", "m4")) == ["m2"]
    assert listed(events("list", "--json", "--cause", "0721e2e5")) == ["moved"]  # Its description has lapsed.
    describe(failed, "11111111", "a.bad")
    assert events("list", "--cause", "11111111").exit_code == 0  # Its events have been erased.
    assert len(events("replay", "--cause", BAD, "--dry-run", "--json").stdout.splitlines()) == 3
    left = "replayed 0, left 3 (1 open, 2 that the handler does not want)\n"  # For one handler, none is hurried.
    assert events("replay", "--cause", BAD, "--handler", "a.bad").stdout.endswith(left)
    assert events("replay", "--cause", BAD).stdout == "replayed 3\n"  # One of them has waited.
    assert listed(events("list", "--json", "--cause", BAD)) == []
    assert events("erase", "--cause", SLOW, "--yes").stdout == "erased 1\n"
    assert SLOW not in run().stdout


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize("command", ["list", "replay", "erase"])
def test_an_unknown_cause_is_refused(events: Run, command: str) -> None:
    expected = {"00000000": "there is no cause 00000000; `credhook causes` lists them", "x": "id of a cause"}
    for unknown, says in expected.items():
        refused = events(command, "--cause", unknown)
        assert refused.exit_code == 2
        assert says in " ".join(refused.stderr.split())
