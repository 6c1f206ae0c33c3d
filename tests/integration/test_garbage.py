"""While deliveries and events wait, Python's collector of garbage does not go over all that was imported."""

from pathlib import Path

from fleet_harness import FleetHarness
from serving import receiver

#: Read by Python itself as it starts, and so by none of those that are forked ready for work.
AT_START = """
import atexit, gc
atexit.register(lambda: open("left-alone", "w").write(str(gc.get_freeze_count())))
"""

NOTES = """
import gc

@handlers.on("*")
async def handle(event, context):
    note(str(gc.get_freeze_count()))
"""


def test_a_receiver_leaves_it_alone(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_START)
    with receiver(tmp_path, redis_url, PYTHONPATH=str(tmp_path)) as process:
        assert process.stop() == 0
    assert int((tmp_path / "left-alone").read_text()) > 10_000


def test_a_worker_leaves_it_alone(rig: FleetHarness) -> None:
    (rig.folder / "sitecustomize.py").write_text(AT_START)
    rig.plugin(NOTES)
    rig.accept(("one", "openid4vc.issuance.completed", "iss_1"))
    with rig.worker(PYTHONPATH=str(rig.folder)):
        rig.reaches("one", "done")
    (note,) = rig.notes()
    assert int(note.words[0]) > 10_000
