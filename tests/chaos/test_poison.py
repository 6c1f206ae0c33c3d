"""Handlers that do to their worker whatever a handler can do: their events end dead, all others are done."""
# ruff: noqa: T201  The counts are what `make soak` is run for.

import random

import pytest

from support.process import commands
from support.worker.fleet_harness import SHORT, SIZES, FleetHarness
from support.worker.harness import COMPLETED

#: What a handler can do to its worker. Each of these events ends dead; what one of the others returns is as bad.
POISONS = ("error", "hang", "swallow", "exit", "halt", "interrupt", "cancel", "recursion", "huge", "block")

POISONED = """
class Halt(BaseException):
    pass

def deeper(n):
    return deeper(n + 1)

async def swallow():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

@handlers.on("openid4vc.issuance.completed")
async def poisoned(event, context):
    kind = event.webhook_id.partition("_")[0]
    if kind == "error": raise ValueError("no")
    if kind == "hang": await asyncio.sleep(600)
    if kind == "swallow": await swallow()
    if kind == "exit": sys.exit(3)
    if kind == "halt": raise Halt
    if kind == "interrupt": raise KeyboardInterrupt
    if kind == "cancel": raise asyncio.CancelledError
    if kind == "recursion": deeper(0)
    if kind == "huge": raise ValueError("x" * 50_000_000)
    return "x" * 1_000_000

@handlers.on("openid4vc.issuance.completed")
def blocked(event, context):
    if event.webhook_id.startswith("block_"): time.sleep(600)
"""

MENDED = """
@handlers.on("openid4vc.issuance.completed")
async def poisoned(event, context):
    note("handled", event.webhook_id)

@handlers.on("openid4vc.issuance.completed")
def blocked(event, context):
    pass
"""


@pytest.mark.parametrize("size", SIZES)
def test_poison_harms_nobody_else_and_can_be_replayed(rig: FleetHarness, size: str) -> None:
    rig.plugin(POISONED)
    poison = [f"{kind}_1" for kind in POISONS]
    good = [f"good_{number}" for number in range(300 if size == SHORT else 10_000)]
    events = [(one, COMPLETED, f"iss_{one}") for one in (*poison, *good)]
    random.shuffle(events)
    rig.accept(*events)
    settings = {"CREDHOOK_HANDLER_TIMEOUT": "3", "CREDHOOK_MAX_ATTEMPTS": "2"}
    with rig.worker("worker", "--processes", "2", **settings) as worker:
        rig.settles(within=300)
        assert worker.stop() == 0
        log = worker.text
    states = {one: fields["state"] for one, fields in rig.records((*poison, *good)).items()}
    assert {one for one, state in states.items() if state != "done"} == set(poison)
    assert {states[one] for one in poison} == {"dead"}
    assert "worker_died" not in log
    assert "loop_blocked" not in log
    assert max(map(len, log.splitlines())) < 10_000
    assert log.count('"worker_started"') == 2
    print(f"\n10 poisonous events among {len(good)}: the others done, the 10 dead")

    rig.plugin(MENDED)
    replay = ("events", "replay", "--state", "dead", "--yes")
    assert commands.invoke(*replay, environment=rig.environment, folder=rig.folder).stdout == "replayed 10\n"
    with rig.worker("mended"):
        rig.settles()
    assert {fields["state"] for fields in rig.records(poison).values()} == {"done"}
    handled = [note.words[1] for note in rig.notes()]
    # One of them had been handled by this handler, and was dead for the other one's sake.
    assert sorted(handled) == sorted(set(poison) - {"block_1"})
