"""Two versions whose data have different layouts, on one store: the one that the store's number names works.

The newer version is a wheel of this tree, with the next number.
"""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from accepting import RANGE, READ
from commands import credhook
from fleet_harness import FleetHarness
from other_version import Member, installed
from redis import Redis
from serving import Start
from waiting import until

from credhook.store import SCHEMA, Keys

ROOT = Path(__file__).parents[2]
KEYS = Keys("credhook")
#: What the keys of events, their lists and their jobs begin with. Others say which processes are there.
DATA = ("event:", "history:", "resource:", "index:", "open", "leases", "locks", "dead", "causes", "rq:queue:")

HELD = """
@handlers.on("*")
async def first(event, context):
    note("begun", event.webhook_id)
    while event.webhook_id == "held" and not (here / "go").exists():
        await asyncio.sleep(0.01)
    note("ended", event.webhook_id)
"""


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """The next version: it starts processes that need the next schema number."""
    folder = tmp_path_factory.mktemp("newer")
    shutil.copytree(ROOT / "credhook", folder / "source/credhook", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    layout = folder / "source/credhook/store/__init__.py"
    was, becomes = (f"SCHEMA: Final = {number}\n" for number in (SCHEMA, SCHEMA + 1))
    assert was in layout.read_text()
    layout.write_text(layout.read_text().replace(was, becomes))
    return installed(folder / "source", folder)


def data(redis: Redis) -> dict[str, Any]:
    """Return what the store holds of events."""
    keys = {key.decode().removeprefix(KEYS.prefix): key for key in redis.scan_iter()}
    kinds: dict[str, Any] = {name: redis.type(key) for name, key in keys.items() if name.startswith(DATA)}
    return {
        name: redis.execute_command(*READ[kind], keys[name], *RANGE.get(kind, ()))  # type: ignore[no-untyped-call]
        for name, kind in kinds.items()
    }


def runs(rig: FleetHarness) -> Counter[tuple[str, ...]]:
    return Counter(note.words for note in rig.notes())


def refuses(member: Member, sentence: str) -> None:
    """Wait until its log and its probe say so."""
    until(lambda: sentence in member.text, what="the refusal")
    until(lambda: member.readiness()[0] == 503, what="its probe")
    assert sentence in member.readiness()[1]


def test_only_the_version_that_the_stores_number_names_writes(rig: FleetHarness, newer: Start) -> None:
    rig.plugin(HELD)
    is_lower = f"the data of queue credhook has schema {SCHEMA} and this version needs {SCHEMA + 1}"
    is_higher = f"changed the data of queue credhook to schema {SCHEMA + 1} and this one knows {SCHEMA}"
    with (
        Member(rig, "receiver", "receiver") as receiver,
        Member(rig, "worker", "worker", CREDHOOK_GRACE="0.5") as worker,
    ):
        with (
            Member(rig, "receiver", "newer_receiver", newer) as newer_receiver,
            Member(rig, "worker", "newer_worker", newer) as newer_worker,
        ):
            assert newer_receiver.deliver("before") == 503
            for member in (newer_receiver, newer_worker):
                refuses(member, is_lower)
            assert [receiver.deliver(name) for name in ("before", "held")] == [202, 202]
            rig.reaches("before", "done")
            until(lambda: runs(rig)["begun", "held"], what="the event that is held")
            assert newer_worker.stop() == 0
        assert '"worker_started"' not in newer_worker.text

        rig.redis.set(KEYS.schema, SCHEMA + 1)  # As a newer version does before it changes the layout.
        at_the_change = data(rig.redis)
        assert receiver.deliver("refused") == 503
        (rig.folder / "go").touch()
        until(lambda: '"store_unreachable"' in worker.text, what="the end that cannot be written")
        for member in (receiver, worker):
            refuses(member, is_higher)
        with Member(rig, "worker", "older") as older:
            refuses(older, is_higher)
        assert is_higher in credhook("events", "list", environment={"REDIS_URL": rig.redis_url}).stderr
        assert data(rig.redis) == at_the_change

        with (
            Member(rig, "receiver", "newer_receiver", newer) as newer_receiver,
            Member(rig, "worker", "newer_worker", newer),
        ):
            assert newer_receiver.deliver("refused") == 202
            rig.reaches("refused", "done")
            assert worker.stop() == 0
            rig.reaches("held", "done")
    # What the older one could not record runs once more, and what was recorded does not.
    assert [runs(rig)["ended", name] for name in ("before", "held", "refused")] == [1, 2, 1]
