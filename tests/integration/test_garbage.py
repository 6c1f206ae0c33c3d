"""While deliveries and events wait, Python's collector of garbage does not go over all that was imported."""

from support.process.serving import receiver
from support.worker.fleet_harness import FleetHarness

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


def test_receiver_and_worker_leave_it_alone(rig: FleetHarness) -> None:
    (rig.folder / "sitecustomize.py").write_text(AT_START)
    path = str(rig.folder)
    with receiver(rig.folder, rig.redis_url, PYTHONPATH=path) as process:
        assert process.stop() == 0
    assert int((rig.folder / "left-alone").read_text()) > 10_000
    rig.plugin(NOTES)
    rig.accept(("one", "openid4vc.issuance.completed", "iss_1"))
    with rig.worker(PYTHONPATH=path):
        rig.reaches("one", "done")
    (note,) = rig.notes()
    assert int(note.words[0]) > 10_000
