"""Many events of one resource, in any order, over many processes, beside those of others."""
# ruff: noqa: T201  The counts are what `make soak` is run for.

import random
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from fleet_harness import SHORT, SIZES, Answer, Call, FleetHarness, issuance, well

from credhook.events import rank_of

HOT = "iss_hot"
#: As they are in the life of an issuance.
LIFE = ("openid4vc.issuance.offered", "openid4vc.issuance.partiallyIssued", "openid4vc.issuance.completed")
BORN = datetime(2026, 11, 1, tzinfo=UTC)

#: Writes what the resource is like, unless that is older than what has been written.
HANDLER = """
@handlers.on("*")
async def write(event, context):
    hot = event.resource_id == "iss_hot"
    note("begin", event.webhook_id, event.resource_id)
    await asyncio.sleep(0.05 if hot else 0.005)
    if hot:
        words = event.type, event.details.updated_at.isoformat(), event.details.status
        note("stale" if context.stale else "written", event.webhook_id, *words)
    note("end", event.webhook_id, event.resource_id)
"""


def in_state(number: int) -> Answer:
    """The resource after so many changes: each has its moment."""
    status = LIFE[number * len(LIFE) // 50].rpartition(".")[2]
    return issuance(HOT, status, updatedAt=(BORN + timedelta(seconds=number)).isoformat())


def hot_events() -> list[tuple[str, str, str]]:
    """Fifty, in the order in which they happened; each is called as what the resource had become by it."""
    return [(f"hot_{number:02}", LIFE[number * len(LIFE) // 50], HOT) for number in range(50)]


def others(size: str) -> list[tuple[str, str, str]]:
    return [(f"other_{number}", LIFE[-1], f"iss_{number}") for number in range(200 if size == SHORT else 1_000)]


def assert_one_at_a_time(rig: FleetHarness) -> float:
    """No two runs for the hot resource overlap; seconds from the first one's begin to the last one's end."""
    marks = [note for note in rig.notes() if note.words[0] in {"begin", "end"} and note.words[2] == HOT]
    assert [note.words[0] for note in marks] == ["begin", "end"] * 50
    assert all(begin.words[1] == end.words[1] for begin, end in zip(marks[::2], marks[1::2], strict=True))
    assert len({note.words[1] for note in marks}) == 50
    return marks[-1].at - marks[0].at


def assert_nothing_goes_back(rig: FleetHarness) -> str:
    """Nothing written is older than what was written before. Return the last time."""
    written = [note.words[2:4] for note in rig.notes() if note.words[0] == "written"]
    assert written
    for before, after in pairwise(written):
        assert after[1] >= before[1], (before, after)
        # At the same moment the type decides; a later moment may be announced by an earlier type.
        assert after[1] > before[1] or rank_of(after[0]) >= rank_of(before[0]), (before, after)
    return written[-1][1]


def assert_others_went_on(rig: FleetHarness, others: list[tuple[str, str, str]]) -> int:
    """Fifty in a line take their time; most of those beside them are done before. How many of them."""
    ends = {note.words[1]: note.at for note in rig.notes() if note.words[0] == "end"}
    last = max(at for name, at in ends.items() if name.startswith("hot_"))
    before = sum(ends[name] < last for name, _, _ in others)
    assert before > len(others) / 2
    return before


@pytest.mark.parametrize("size", SIZES)
def test_events_that_overtake_each_other_never_take_the_issuance_back(rig: FleetHarness, size: str) -> None:
    """The resource changes while its events come, late and shuffled; every third look finds a replica that lags."""
    state = 0

    def answer(call: Call) -> Answer:
        if call.resource != HOT:
            return well(call)
        return in_state(max(0, state - (10 if call.number % 3 == 0 else 0)))

    rig.stub.answer = answer
    rig.plugin(HANDLER)
    rest = others(size)
    # Each comes up to fifteen changes after its own.
    hot = sorted(enumerate(hot_events()), key=lambda one: one[0] + random.uniform(0, 15))
    with rig.worker("worker", "--processes", "4") as worker:
        rig.started(worker, each=4)
        for number, (happened, event) in enumerate(hot):
            state = max(state, happened)
            share = len(rest) // 50
            rig.accept(event, *rest[number * share : (number + 1) * share])
            time.sleep(0.03)
        rig.settles(within=120)
    took = assert_one_at_a_time(rig)
    last_time = assert_nothing_goes_back(rig)
    seen = [note.words[3] for note in rig.notes() if note.words[0] in {"written", "stale"}]
    assert last_time == max(seen)
    stale = sum(note.words[0] == "stale" for note in rig.notes())
    beside = assert_others_went_on(rig, rest)
    print(
        f"\n50 events of one issuance as it changed: {stale} told that they were stale, in {took:.1f} s; "
        f"{beside} of the {len(rest)} others were done by then"
    )
