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
    rest = [(f"other_{number}", LIFE[-1], f"iss_{number}") for number in range(200 if size == SHORT else 1_000)]
    # Each is called as what the resource had become by it, and comes up to fifteen changes after its own.
    hot = [(number, (f"hot_{number:02}", LIFE[number * len(LIFE) // 50], HOT)) for number in range(50)]
    hot.sort(key=lambda one: one[0] + random.uniform(0, 15))
    with rig.worker("worker", "--processes", "4") as worker:
        rig.started(worker, each=4)
        for number, (happened, event) in enumerate(hot):
            state = max(state, happened)
            share = len(rest) // 50
            rig.accept(event, *rest[number * share : (number + 1) * share])
            time.sleep(0.03)
        rig.settles(within=120)
    # No two runs for the hot resource overlap.
    notes = rig.notes()
    marks = [note for note in notes if note.words[0] in {"begin", "end"} and note.words[2] == HOT]
    assert [note.words[0] for note in marks] == ["begin", "end"] * 50
    assert all(begin.words[1] == end.words[1] for begin, end in zip(marks[::2], marks[1::2], strict=True))
    assert len({note.words[1] for note in marks}) == 50
    # Nothing written is older than what was written before.
    written = [note.words[2:4] for note in notes if note.words[0] == "written"]
    for before, after in pairwise(written):
        assert after[1] >= before[1], (before, after)
        # At the same moment the type decides; a later moment may be announced by an earlier type.
        assert after[1] > before[1] or rank_of(after[0]) >= rank_of(before[0]), (before, after)
    stale = [note.words[3] for note in notes if note.words[0] == "stale"]
    assert written[-1][1] == max([*stale, *(moment for _, moment in written)])
    # Fifty in a line take their time; most of those beside them are done before.
    beside = sum(note.at < marks[-1].at for note in notes if note.words[0] == "end" and note.words[2] != HOT)
    assert beside > len(rest) / 2
    print(
        f"\n50 events of one issuance as it changed: {len(stale)} told that they were stale, "
        f"in {marks[-1].at - marks[0].at:.1f} s; {beside} of the {len(rest)} others were done by then"
    )
