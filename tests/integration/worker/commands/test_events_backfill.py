"""`credhook events backfill`: what the platform says has happened and never arrived is handled, once."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from redis import Redis

from support.platform.platform_settings import leading_to
from support.store.accepting import accept, record
from support.store.stored_events import contents
from support.store.stores import EVENT, INDEX
from support.waiting import until
from support.worker.backfill_setup import Scene, backfilled_ids, scene
from support.worker.events_command import Run

OFFERED, COMPLETED, PARTLY = (f"openid4vc.issuance.{each}" for each in ("offered", "completed", "partiallyIssued"))
REQUESTED, VERIFIED, DATA = (f"openid4vc.verification.{each}" for each in ("requested", "verified", "data"))


@pytest.fixture
def lossy(tmp_path: Path, redis_url: str, authority: trustme.CA) -> Iterator[Scene]:
    with scene(tmp_path, redis_url, authority) as made:
        yield made


def written(redis: Redis) -> list[str]:
    """All that Redis holds but what receivers announce of themselves, again and again."""
    return [line for line in contents(redis) if INDEX.receivers not in line]


def test_lost_events_are_handled_once_and_in_order(lossy: Scene, events: Run) -> None:
    whole = lossy.happen(OFFERED, lost=False, count=10)
    half = lossy.happen(OFFERED, lost=False, count=10)
    until(lambda: sum(1 for _ in lossy.redis.scan_iter(match=EVENT + "*")) >= 20, what="the deliveries")
    lossy.sandbox.faults(drop=1_000_000)
    for resource in half:
        lossy.sandbox.make(COMPLETED, resourceId=resource)
    gone = lossy.happen(OFFERED, lost=True, count=15)[10:]
    for resource in gone:
        lossy.sandbox.make(COMPLETED, resourceId=resource)
    shown = lossy.happen(DATA, lost=True, count=10)
    before = written(lossy.redis)
    lossy.sandbox.faults(pageSize=7)
    counted = lossy.backfilled("--dry-run")
    assert counted["missing"] == 40
    assert counted["types"] == {COMPLETED: 15, OFFERED: 15, DATA: 10}
    assert written(lossy.redis) == before
    assert lossy.backfilled() == {**{k: v for k, v in counted.items() if k != "missing"}, "accepted": 40}
    assert lossy.backfilled()["accepted"] == 0
    ours = backfilled_ids(lossy.redis)
    assert len(ours) == 40
    with lossy.worker():
        until(lambda: not lossy.redis.exists(INDEX.open), what="the end of all events")
    assert Counter(lossy.notes()).most_common(1)[0][1] == 1
    assert len(lossy.notes()) == 60
    for resource in gone:
        assert [line.split()[0] for line in lossy.notes() if resource in line] == [OFFERED, COMPLETED]
    assert {resource: f"{DATA} {resource}" in lossy.notes() for resource in shown} == dict.fromkeys(shown, True)
    assert not {one for one in ours if one.endswith(tuple(whole))}
    story = json.loads(events("show", f"backfilled:{COMPLETED}:{gone[0]}", "--json").stdout)
    assert (story["backfilled"], story["state"]) == (True, "done")
    assert lossy.backfilled()["accepted"] == 0
    assert events("erase", "--resource", gone[0], "--yes").stdout == "erased 2\n"
    assert gone[0] not in "\n".join(contents(lossy.redis))
    again = lossy.backfilled()
    assert (again["accepted"], again["erased"]) == (0, 2)


def test_repeatable_events_are_handled_twice_rather_than_never(redis_client: Redis, redis_url: str) -> None:
    for kind in (PARTLY, COMPLETED):
        redis_client.hset(f"{EVENT}backfilled:{kind}:iss_1", mapping={"type": kind, "resource": "iss_1"})
        redis_client.set(INDEX.backfilled, 1)
        accept(redis_url, f"later {kind}".replace(" ", "-"), kind, "iss_1")
    assert record(redis_client, f"later-{PARTLY}")["state"] == "accepted"
    assert not record(redis_client, f"later-{COMPLETED}")


def test_backfill_waits_out_passing_failures(lossy: Scene) -> None:
    lossy.happen(OFFERED, lost=True, count=3)
    lossy.sandbox.faults(pageSize=1, rateLimit=1, retryAfter=1, serverErrors=1)
    assert lossy.backfilled(CREDHOOK_RATE="20")["accepted"] == 3
    with lossy.backfill(CREDHOOK_CLIENT_SECRET="wrong") as running:
        out, err = running.communicate(timeout=240)
    assert running.returncode == 1
    assert out == "accepted 0 of 0 events of 0 issuances and presentations\n"
    assert err.splitlines()[-1].startswith("Error: token: ")
    assert err.endswith("; accepted events stay, run the command again for the rest\n")


def test_ctrl_c_ends_it_with_what_it_has_found(lossy: Scene) -> None:
    lossy.sandbox.faults(rateLimit=1_000_000, retryAfter=1)
    with lossy.backfill("--json") as running:
        until(lambda: list(lossy.redis.scan_iter(match="*platform*")), what="its first failed call")
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 1
    nothing = {"listed": 0, "happened": 0, "younger": 0, "accepted": 0, "types": {}, "erased": 0, "untold": {}}
    assert json.loads(out) == nothing | {"complete": False}
    last = "Error: stopped by Ctrl-C; accepted events stay, run the command again for the rest"
    assert err.splitlines()[-1] == last


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--since", "30d"), "the store forgets settled events after CREDHOOK_RETENTION, 604800 s"),
        # A little younger than the retention, but the store forgets it before the backfill has ended.
        (("--since", "604000s"), "the store forgets settled events after CREDHOOK_RETENTION, 604800 s"),
        (("--since", "5m"), "--since should be earlier than --until; the default"),
        ((), "Missing option '--since'"),
        (("--since", "1d"), "the loaded handlers want no event type; name types with --type"),
        (("--since", "1d", "--type", "issuance.complete"), "did you mean issuance.completed?"),
    ],
)
def test_wrong_backfill_options_are_refused(
    events: Run, options: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "idle.py").write_text("import credhook\nhandlers = credhook.Handlers('idle')\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = "idle" if options == ("--since", "1d") else "not.loaded.before.the.options.are.checked"
    result = events("backfill", *options, **leading_to("http://127.0.0.1:1"), CREDHOOK_HANDLERS=module)
    assert result.exit_code == 2
    assert says in result.stderr.replace("\n", " ")
