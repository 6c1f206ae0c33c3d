"""A platform that is down, asks for a pause, or allows so many calls a second: a fleet leaves it alone."""
# ruff: noqa: T201  The counts are what `make soak` is run for.

import json
import time
from collections import Counter
from datetime import datetime

import pytest

from credhook.worker.platform.circuit import THRESHOLD
from support.waiting import until
from support.worker.fleet_harness import SHORT, SIZES, Answer, Call, FleetHarness, well
from support.worker.harness import COMPLETED, PLAIN

#: Events that four processes together have in flight.
IN_FLIGHT = 20
#: Seconds from the first call on in which a herd would come.
BEGINNING = 0.1
#: Calls that fail before every process leaves the platform alone. Ten open the breaker of a process that has not heard
#: of the pause, and the calls that it has in flight fail as well.
FAILURES = 4 * THRESHOLD + IN_FLIGHT


@pytest.fixture
def rig(rig: FleetHarness) -> FleetHarness:
    rig.plugin(PLAIN)
    return rig


def events(start: int, count: int) -> list[tuple[str, str, str]]:
    return [(f"m{number}", COMPLETED, f"iss_{number}") for number in range(start, start + count)]


@pytest.mark.parametrize("size", SIZES)
def test_an_outage_costs_few_attempts_and_ends_without_a_herd(rig: FleetHarness, size: str) -> None:
    """Events come while four processes, who share what they know, leave the platform alone.

    A herd is what would come if all of them went on at once: a call of each event that may be in flight, in the same
    moment. A busy machine makes a herd smaller, never larger.
    """
    lasts, backlog = (4.0, 400) if size == SHORT else (60.0, 3_000)
    down = False
    rig.stub.answer = lambda call: Answer(503) if down else well(call)
    rig.stub.takes = 0.05
    with rig.worker("worker", "--processes", "4", CREDHOOK_CONCURRENCY=str(IN_FLIGHT // 4)) as worker:
        rig.started(worker, each=4)
        rig.accept(*events(0, backlog))
        rig.settles(within=120)
        down, began, accepted = True, time.time(), backlog
        more = int(backlog / lasts / 20)
        while time.time() < began + lasts:  # What comes meanwhile, a twentieth of a second each.
            rig.accept(*events(accepted, more))
            accepted += more
            time.sleep(max(0.0, began + (accepted - backlog) / backlog * lasts - time.time()))
        failed = rig.stub.answered[503]
        down, ended = False, time.time()
        rig.settles(within=300)
        log = worker.text
    records = rig.records(f"m{number}" for number in range(accepted)).values()
    assert {one["state"] for one in records} == {"done"}
    lost = sum(int(one.get("attempts", 1)) - 1 for one in records)  # Beyond the one each that handled them.
    later = [call for call in rig.stub.calls if call.at >= ended]
    gentle = sum(call.at < later[0].at + BEGINNING for call in later)
    first = later[0].at - ended
    took = max(note.at for note in rig.notes()) - ended
    print(
        f"\n503 for {lasts:.0f} s while {accepted - backlog} came: {failed} calls failed, {lost} attempts spent, "
        f"the first call {first:.1f} s after, all handled in {took:.1f} s; {gentle} calls in the first moments"
    )
    # Later there are only probes, and none of them counts as an attempt. The last probe of each process succeeds.
    assert lost <= failed - max(0, log.count('"platform_probed"') - 4) <= FAILURES
    assert gentle <= IN_FLIGHT / 2
    assert len(rig.notes()) == accepted


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("rate", "least_share"), [("3", 0.8), (None, 0.5)])
def test_the_fleet_uses_what_a_limiting_platform_allows(
    rig: FleetHarness, rate: str | None, least_share: float
) -> None:
    """Four processes meet a platform that is down, and then allows three requests in each second of its clock."""
    allowed, down_seconds, lasts = 3, 10.0, 120.0
    is_down = True
    seconds: Counter[int] = Counter()

    def answer(call: Call) -> Answer:
        if is_down:
            return Answer(503, retry_after="5")
        seconds[int(call.at)] += 1
        return well(call) if seconds[int(call.at)] <= allowed else Answer(429, retry_after="5")

    rig.stub.answer = answer
    settings = {"CREDHOOK_RATE": rate} if rate else {}
    rig.accept(*events(0, 1_000))
    with rig.worker("worker", "--processes", "4", CREDHOOK_CONCURRENCY="10", **settings) as worker:
        rig.started(worker, each=4)
        until(lambda: rig.stub.answered[503] > 0, what="the first call")
        time.sleep(down_seconds)
        down_calls = len(rig.stub.calls)
        is_down, began = False, time.time()
        time.sleep(lasts)
        passed, refused = rig.stub.answered[200], rig.stub.answered[429]
        log = worker.text
    share = passed / (allowed * (time.time() - began))
    records = rig.records(f"m{number}" for number in range(1_000)).values()
    done = [one["state"] == "done" for one in records]  # A record of one attempt does not count it.
    spent = sum(int(one.get("attempts", is_done)) - is_done for one, is_done in zip(records, done, strict=True))
    print(
        f"\nCREDHOOK_RATE={rate}: {down_calls} calls in {down_seconds:.0f} s of 503, then {passed} calls passed and "
        f"{refused} were refused in {lasts:.0f} s, {share:.2f} of what the platform allows; {spent} attempts spent"
    )
    print(*[line for line in log.splitlines() if "platform_paused" in line], sep="\n")
    assert share >= least_share
    assert spent == 0


@pytest.mark.parametrize("size", SIZES)
def test_the_fleet_keeps_to_the_rate_and_uses_it_up(rig: FleetHarness, size: str) -> None:
    lasts = 4.0 if size == SHORT else 30.0
    count = int(50 * (lasts + 30))
    rig.accept(*events(0, count))
    with rig.worker("worker", "--processes", "3", CREDHOOK_RATE="50") as worker:
        rig.started(worker, each=3)
        until(lambda: len(rig.stub.calls) > 60, what="the end of the first second's burst")
        begun = time.time()
        until(lambda: time.time() > begun + lasts, within=lasts + 60)
        calls = list(rig.stub.calls)
        starts = [json.loads(line)["timestamp"] for line in worker.text.splitlines() if '"worker_started"' in line]
    earliest = min(datetime.fromisoformat(start).timestamp() for start in starts)
    assert len(calls) < count  # There was always more to do.
    rate = sum(begun <= call.at < begun + lasts for call in calls) / lasts
    print(f"\nCREDHOOK_RATE=50 and 3 processes: {rate:.1f} calls a second over {lasts:.0f} s")
    # A busy machine may make its calls later than it was let, and many of them at once; but never before it was let.
    for number, call in enumerate(sorted(calls, key=lambda call: call.at)):
        assert number <= 50 * (1 + call.at - earliest)
    assert size == SHORT or rate >= 45
