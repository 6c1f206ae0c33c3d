"""Workers that differ, side by side: what one of them has no handler for ends up handled, and only once.

Old workers know nothing of the type. New ones bring its first handler, and take the place of the old ones one after the
other while events keep coming. Then a second handler is brought, and catches up by one command.
"""
# ruff: noqa: T201  The counts are what `make soak` is run for.

import time
from collections import Counter
from contextlib import ExitStack

import pytest

from support.process import commands
from support.process.serving import Process
from support.waiting import until
from support.worker.fleet_harness import SHORT, SIZES, FleetHarness
from support.worker.harness import COMPLETED

#: Workers of each version.
WORKERS = 2

FIRST = """
@handlers.on("openid4vc.issuance.completed")
async def first(event, context):
    note("first", event.webhook_id, event.attempt)
    await asyncio.sleep(0.01)
"""
SECOND = """
@handlers.on("openid4vc.issuance.completed")
async def second(event, context):
    note("second", event.webhook_id, event.attempt)
"""
THIRD = SECOND.replace("second", "third")
OTHER = """
@handlers.on("openid4vc.issuance.failed")
async def other(event, context):
    note("other", event.webhook_id)
"""


def version(rig: FleetHarness, name: str, *handlers: str) -> str:
    """Deploy a version with these handlers besides the one for another type; its CREDHOOK_HANDLERS."""
    rig.plugin(OTHER + "".join(handlers), name)
    return name


def states(rig: FleetHarness, webhook_ids: list[str]) -> Counter[str]:
    return Counter(fields["state"] for fields in rig.records(webhook_ids).values())


def handled(rig: FleetHarness) -> Counter[tuple[str, ...]]:
    """Handler and webhook-id → how often it has run."""
    return Counter(note.words[:2] for note in rig.notes())


@pytest.mark.parametrize("size", SIZES)
def test_each_handler_runs_once_during_a_rolling_deploy(rig: FleetHarness, size: str) -> None:
    count = 200 if size == SHORT else 2_000
    ids = [f"m{number:04}" for number in range(count)]
    before, during = ids[: count // 2], ids[count // 2 :]
    with ExitStack() as stack:

        def started(number: int, handlers: str) -> Process:
            return stack.enter_context(rig.worker(f"{handlers}{number}", CREDHOOK_HANDLERS=handlers))

        no_handler = version(rig, "old")
        old = [started(number, no_handler) for number in range(WORKERS)]
        rig.started(*old)
        rig.accept(*((one, COMPLETED, f"iss_{one}") for one in before))
        until(lambda: states(rig, before) == {"unhandled": len(before)}, what="the end of what nobody handles")
        assert not rig.stub.calls

        one_handler = version(rig, "one", FIRST)
        new: list[Process] = []
        for number, leaving in enumerate(old):
            new.append(started(number, one_handler))
            part = during[number::WORKERS]
            for start in range(0, len(part), 20):
                rig.accept(*((one, COMPLETED, f"iss_{one}") for one in part[start : start + 20]))
                time.sleep(0.05)
            rig.started(new[-1])
            assert leaving.stop() == 0
        until(lambda: states(rig, ids) == {"done": count}, what="each event's handler", within=120)
        assert handled(rig) == {("first", one): 1 for one in ids}
        passed_on = sum(process.text.count('"event_unhandled"') for process in old) - len(before)

        two_handlers = version(rig, "two", FIRST, SECOND, THIRD)
        rig.started(*(started(number, two_handlers) for number in range(WORKERS)))
        assert [process.stop() for process in new] == [0] * WORKERS
        environment = rig.environment | {"CREDHOOK_HANDLERS": two_handlers}
        replay = ("events", "replay", "--handler", "test.second", "--since", "1h")
        replayed = commands.invoke(*replay, environment=environment, folder=rig.folder)
        assert replayed.stdout == f"replayed {count}\n"
        until(lambda: states(rig, ids) == {"done": count}, what="the second handler's end", within=120)
        expected = {(name, one): 1 for name in ("first", "second") for one in ids}
        assert handled(rig) == expected
    print(
        f"\n{count} events of a type whose first handler was being deployed: each handled once, {passed_on} taken by a "
        "worker without it while there was one with it; a second handler ran once for each, and no other again"
    )
