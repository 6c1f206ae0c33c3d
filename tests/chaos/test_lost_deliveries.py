"""Deliveries that the platform has given up, beside others that go on: backfilled by two at once, each handled once."""
# ruff: noqa: T201  The counts are what `make soak` is run for.

import json
from collections import Counter
from pathlib import Path

import pytest
import trustme
from backfill_setup import backfilled_ids, scene
from fleet_harness import SHORT, SIZES
from redis_keys import EVENT, INDEX
from waiting import until

OFFERED, COMPLETED = "openid4vc.issuance.offered", "openid4vc.issuance.completed"


@pytest.mark.parametrize("size", SIZES)
def test_what_was_dropped_is_handled_once_and_what_had_arrived_is_not_handled_again(
    size: str, tmp_path: Path, redis_url: str, authority: trustme.CA
) -> None:
    number = 50 if size == SHORT else 1_000
    with scene(tmp_path, redis_url, authority, scale=3e-5 if size == SHORT else 1e-3) as lossy:
        had_arrived = lossy.happen(OFFERED, lost=False, count=number)
        until(lambda: lossy.redis.zcard(INDEX.open) == number, within=120, what="the deliveries")
        dropped = lossy.happen(OFFERED, lost=True, count=number // 2)
        for resource in dropped:
            lossy.sandbox.make(COMPLETED, resourceId=resource)
        lossy.given_up()
        lossy.sandbox.faults(drop=0, pageSize=40, rateLimit=1)
        with lossy.worker("worker", "--processes", "2"):
            running = [lossy.backfill("--json", CREDHOOK_RATE="50") for _ in range(2)]
            live: list[str] = []
            while any(one.poll() is None for one in running):
                live += [lossy.sandbox.make(OFFERED) for _ in range(2)]
            found = [json.loads(one.communicate()[0]) for one in running]
            assert all(one["complete"] for one in found)
            assert lossy.backfilled()["accepted"] == 0
            handled = 2 * number + len(live)
            until(lambda: len(lossy.notes()) >= handled, within=300, what="the handlers")
            until(lambda: not lossy.redis.exists(INDEX.open), within=60, what="the end of all events")
        runs = Counter(lossy.notes())
        assert set(runs.values()) == {1}
        assert len(runs) == handled
        assert {f"{OFFERED} {one}" for one in (*had_arrived, *live)} <= runs.keys()
        in_order = [
            lossy.notes().index(f"{OFFERED} {one}") < lossy.notes().index(f"{COMPLETED} {one}") for one in dropped
        ]
        assert all(in_order)
        ours = backfilled_ids(lossy.redis)
        assert len(ours) >= number  # Of what came live, a list may have shown some before their deliveries arrived.
        assert len(list(lossy.redis.scan_iter(match=EVENT + "*", count=1_000))) == handled
    print(
        f"\n{number} dropped, {number} had arrived, {len(live)} came beside: {len(ours)} backfilled, all handled once"
    )
