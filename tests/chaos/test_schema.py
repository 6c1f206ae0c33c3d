"""Two versions whose data have different layouts, on one store: the one that the store's number names works."""

from collections import Counter
from functools import partial

from credhook.store import SCHEMA
from support.process.commands import invoke
from support.process.other_version import Member
from support.store.stored_events import of_events
from support.store.stores import INDEX
from support.waiting import until
from support.worker.fleet_harness import FleetHarness

#: Run by Python before anything else.
NEWER = "import credhook.store\ncredhook.store.SCHEMA += 1\n"

HELD = """
@handlers.on("*")
async def first(event, context):
    note("begun", event.webhook_id)
    while event.webhook_id == "held" and not (here / "go").exists():
        await asyncio.sleep(0.01)
    note("ended", event.webhook_id)
"""


def runs(rig: FleetHarness) -> Counter[tuple[str, ...]]:
    return Counter(note.words for note in rig.notes())


def refuses(member: Member, sentence: str) -> None:
    """Wait until its log and its probe say so."""
    until(lambda: sentence in member.text, what="the refusal")
    until(lambda: member.readiness()[0] == 503, what="its probe")
    assert sentence in member.readiness()[1]


def test_only_the_version_that_the_stores_number_names_writes(rig: FleetHarness) -> None:
    rig.plugin(HELD)
    (rig.folder / "newer").mkdir()
    (rig.folder / "newer/sitecustomize.py").write_text(NEWER)
    newer = partial(Member, rig, PYTHONPATH=str(rig.folder / "newer"))
    is_lower = f"the data of queue credhook has schema {SCHEMA} and this version needs {SCHEMA + 1}"
    is_higher = f"changed the data of queue credhook to schema {SCHEMA + 1} and this one knows {SCHEMA}"
    with (
        Member(rig, "receiver", "receiver") as receiver,
        Member(rig, "worker", "worker", CREDHOOK_GRACE="0.5") as worker,
    ):
        assert receiver.deliver("before") == 202  # The first event decides.
        with newer("receiver", "newer_receiver") as newer_receiver, newer("worker", "newer_worker") as newer_worker:
            assert newer_receiver.deliver("held") == 503
            for member in (newer_receiver, newer_worker):
                refuses(member, is_lower)
            assert receiver.deliver("held") == 202
            rig.reaches("before", "done")
            until(lambda: runs(rig)["begun", "held"], what="the event that is held")
            assert newer_worker.stop() == 0
        assert '"worker_started"' not in newer_worker.text

        rig.redis.set(INDEX.schema, SCHEMA + 1)  # As a newer version does before it changes the layout.
        at_the_change = of_events(rig.redis)
        assert receiver.deliver("refused") == 503
        (rig.folder / "go").touch()
        until(lambda: '"store_unreachable"' in worker.text, what="the end that cannot be written")
        for member in (receiver, worker):
            refuses(member, is_higher)
        with Member(rig, "worker", "older") as older:
            refuses(older, is_higher)
        assert is_higher in invoke("events", "list", environment={"REDIS_URL": rig.redis_url}).stderr
        assert of_events(rig.redis) == at_the_change

        with newer("receiver", "newer_receiver") as newer_receiver, newer("worker", "newer_worker"):
            assert newer_receiver.deliver("refused") == 202
            rig.reaches("refused", "done")
            assert worker.stop() == 0
            rig.reaches("held", "done")
    # What the older one could not record runs once more, and what was recorded does not.
    assert [runs(rig)["ended", name] for name in ("before", "held", "refused")] == [1, 2, 1]
