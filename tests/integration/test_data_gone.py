"""Presented data that the platform gives out once: it is handled, or the event says that it is gone."""

from collections.abc import Callable

import pytest
from commands import credhook
from fleet_harness import Answer, Call, FleetHarness, presentation
from harness import DATA
from waiting import until

VERIFIED = "openid4vc.verification.verified"

KEY = "a-key-of-thirty-two-characters-1"

#: Notes what it was given, and fails the first time.
SECOND_TIME = """
@handlers.on("*")
async def second_time(event, context):
    note("given", event.webhook_id, (event.details.credentials[0].attributes or {}).get("given", "nothing"))
    if event.attempt == 1:
        raise Retry(after=0.1)
"""

HELD = """
@handlers.on("*")
async def held(event, context):
    note("given", event.webhook_id, (event.details.credentials[0].attributes or {}).get("given", "nothing"))
    while not (here / "go").exists():
        await asyncio.sleep(0.01)
"""

Platform = Callable[[Call], Answer]


def full(call: Call) -> Answer:
    return presentation(call.resource, {"given": "Ada"})


def empty(call: Call) -> Answer:
    return presentation(call.resource, None)


def unknown(call: Call) -> Answer:
    return Answer(404)


def first(number: int, then: Platform, before: Platform) -> Platform:
    """The first so many requests of each resource are answered in one way, and all others in another."""
    return lambda call: before(call) if call.number <= number else then(call)


def given(rig: FleetHarness) -> list[tuple[str, ...]]:
    return [note.words[1:] for note in rig.notes()]


@pytest.mark.parametrize(("kind", "gone"), [(DATA, empty), (VERIFIED, unknown)])
def test_after_the_death_of_its_worker_an_event_has_the_data_or_says_that_it_is_gone(
    rig: FleetHarness, gone: Platform, kind: str
) -> None:
    rig.stub.answer = first(1, gone, before=full)
    rig.plugin(HELD)
    # The one without the key goes first: were it the second, it might live to take over the lapsed lease of "kept".
    rig.accept(("unkept", kind, "pre_2"))
    with rig.worker("first") as worker:
        until(lambda: given(rig) == [("unkept", "Ada")])
        worker.kill()
    rig.accept(("kept", kind, "pre_1"))
    with rig.worker("second", CREDHOOK_SNAPSHOT_KEY=KEY) as worker:
        until(lambda: ("kept", "Ada") in given(rig))
        worker.kill()
    exported = credhook("events", "export", "kept", environment={**rig.environment, "CREDHOOK_SNAPSHOT_KEY": KEY})
    assert '"given": "redacted"' in exported.stdout
    (rig.folder / "go").touch()
    with rig.worker("third", CREDHOOK_SNAPSHOT_KEY=KEY):
        rig.reaches("kept", "done")
        rig.reaches("unkept", "data_gone")
    assert sorted(given(rig)) == [("kept", "Ada"), ("kept", "Ada"), ("unkept", "Ada")]
    assert not rig.redis.keys("credhook:credhook:snapshot:*")


@pytest.mark.parametrize("late", [empty, unknown])
def test_data_that_lags_behind_its_event_is_waited_for(rig: FleetHarness, late: Platform) -> None:
    rig.stub.answer = first(1, full, before=late)
    rig.plugin(SECOND_TIME)
    with rig.worker() as worker:
        rig.started(worker)
        rig.accept(("m1", DATA, "pre_1"))
        rig.reaches("m1", "done")
    assert given(rig) == [("m1", "Ada")]
    assert len(rig.stub.calls) == 2


def test_one_look_serves_both_events_of_a_presentation_and_is_kept_for_both(rig: FleetHarness) -> None:
    """The second was there before the look, and so needs none of its own, until it is tried again."""
    rig.stub.answer = first(1, empty, before=full)
    rig.plugin(SECOND_TIME.replace("event.attempt == 1", 'event.webhook_id == "m2" and event.attempt == 1'))
    rig.accept(("m1", VERIFIED, "pre_1"), ("m2", DATA, "pre_1"))
    with rig.worker(CREDHOOK_SNAPSHOT_KEY=KEY):
        rig.settles()
    assert [rig.record(one)["state"] for one in ("m1", "m2")] == ["done", "done"]
    assert given(rig) == [("m1", "Ada"), ("m2", "Ada"), ("m2", "Ada")]
    assert not rig.redis.keys("credhook:credhook:snapshot:*")


@pytest.mark.parametrize("kind", [VERIFIED, "openid4vc.verification.requested"])
def test_a_look_that_found_no_data_does_not_serve_the_event_that_announces_it(rig: FleetHarness, kind: str) -> None:
    rig.stub.answer = first(1, full, before=empty)
    rig.plugin(SECOND_TIME.replace("event.attempt == 1", "False"))
    rig.accept(("m1", kind, "pre_1"), ("m2", DATA, "pre_1"))
    # The order in which they came is that in which they are taken, save that the urgent one comes first.
    rig.redis.delete("credhook:credhook:urgent")
    with rig.worker():
        rig.settles()
    assert given(rig) == [("m1", "nothing"), ("m2", "Ada")]


def test_what_was_verified_without_data_is_handled_so(rig: FleetHarness) -> None:
    """`.verified` does not promise data; only that what was there once is not silently missing later."""
    rig.stub.answer = empty
    rig.plugin(SECOND_TIME)
    rig.accept(("m1", VERIFIED, "pre_1"))
    with rig.worker():
        rig.reaches("m1", "done")
    assert given(rig) == [("m1", "nothing"), ("m1", "nothing")]
