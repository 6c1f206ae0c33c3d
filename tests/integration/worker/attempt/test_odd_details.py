"""Details of any shape reach the handler, and presented data survives a handler that fails."""

import asyncio
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from credhook.store import State
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.attempt.details import RecentData
from credhook.worker.attempt.retry import GiveUp, Retry
from credhook.worker.handlers.registry import Handlers
from support.process.commands import invoke
from support.virtual_time import on_own_clock
from support.waiting import until
from support.worker.attempts import attempts
from support.worker.fleet_harness import Answer, Call, FleetHarness, Stub, presentation, well
from support.worker.harness import COMPLETED, DATA

CLAIMS = {"given_name": "Ada"}


class Noting:
    """Handlers that note the raw details, and raise what the test says in their first runs."""

    def __init__(self, *ends: Exception) -> None:
        self.handlers, self.notes, self._ends = Handlers("test"), list[Any](), list(ends)
        self.handlers.on("*")(self.handle)

    async def handle(self, event: Any, context: Any) -> None:
        self.notes.append(event.details.raw)
        if self._ends:
            raise self._ends.pop(0)


@pytest.mark.parametrize(
    "body",
    [
        {"data": {"id": "pre_1", "status": "verified", "credentials": [{"claims": CLAIMS}]}},
        {"data": {"id": "pre_1", "status": "verified", "credentials": "eyJ.x"}},
        {"data": {"id": "pre_1", "type": "presentation", "attributes": {"status": "verified", "claims": CLAIMS}}},
        {"presentation": {"id": "pre_1", "status": "verified"}, "claims": CLAIMS},
        [{"claims": CLAIMS}, {"claims": CLAIMS}],
        "eyJ.x",
    ],
)
async def test_data_of_any_shape_reaches_the_handler_at_once(redis_url: str, stub: Stub, body: Any) -> None:
    noting, stub.answer = Noting(), lambda _: Answer(body=body)
    async with attempts(redis_url, stub, noting.handlers) as made:
        await made.accept("m1", DATA, "pre_1")
        assert (await made.next()).state is State.DONE
    assert noting.notes == [body]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (DATA, {"data": {"id": "x", "status": "verified", "credentials": []}}),
        (DATA, {"data": {"id": "x", "status": "requested"}}),
        (DATA, {"data": None}),
        (COMPLETED, {"data": {}}),
    ],
)
async def test_details_that_stay_without_data_reach_the_handler_at_last(
    redis_url: str, stub: Stub, kind: str, body: Any
) -> None:
    noting, stub.answer = Noting(), lambda _: Answer(body=body)
    async with attempts(redis_url, stub, noting.handlers, MAX_ATTEMPTS="2") as made:
        await made.accept("m1", kind, "x")
        assert [(await made.next()).state for _ in range(2)] == [State.WAITING, State.DONE]
    assert noting.notes == [body]


@pytest.mark.parametrize("then", [Answer(410), Answer(404), Answer(body={"data": None}), presentation("pre_1", {})])
async def test_data_that_is_readable_once_survives_a_handler_that_fails(
    redis_url: str, stub: Stub, then: Answer
) -> None:
    def answer(call: Call) -> Answer:
        return presentation(call.resource, {"given": "Ada"}) if call.number == 1 else then

    noting, stub.answer = Noting(Retry(after=0.02), Retry(after=0.02)), answer
    async with attempts(redis_url, stub, noting.handlers) as made:
        await made.accept("m1", DATA, "pre_1")
        assert [(await made.next()).state for _ in range(3)] == [State.WAITING, State.WAITING, State.DONE]
        assert made.processor.snapshots.recent.get("m1") is None
        assert not await made.redis.keys("credhook:credhook:snapshot:*")
    assert noting.notes == [presentation("pre_1", {"given": "Ada"}).body] * 3


@pytest.mark.parametrize("then", [Answer(410), Answer(404), presentation("pre_1", {})])
async def test_data_that_another_process_has_seen_is_gone(redis_url: str, stub: Stub, then: Answer) -> None:
    noting = Noting(Retry(after=0.02))
    async with attempts(redis_url, stub, noting.handlers) as made:
        await made.accept("m1", DATA, "pre_1")
        assert (await made.next()).state is State.WAITING
    stub.answer = lambda _: then
    async with attempts(redis_url, stub, noting.handlers) as made:
        assert (await made.next()).state is State.DATA_GONE


async def test_an_event_that_is_given_up_leaves_no_data_in_memory(redis_url: str, stub: Stub) -> None:
    async with attempts(redis_url, stub, Noting(GiveUp("no")).handlers) as made:
        await made.accept("m1", DATA, "pre_1")
        assert (await made.next()).state is State.DEAD
        assert made.processor.snapshots.recent.get("m1") is None


@on_own_clock
async def test_data_in_memory_is_bounded_in_number_size_and_time() -> None:
    recent = RecentData()
    for number in range(1_002):
        recent.put(f"e{number}", b"x")
    assert [recent.get(f"e{number}") for number in (0, 1, 2, 1_001)] == [None, None, b"x", b"x"]
    recent.put("large", bytes(20 * 1024 * 1024))
    recent.put("large", bytes(20 * 1024 * 1024))
    recent.put("small", b"x")
    assert recent.get("large") is not None  # Its first bytes count no longer.
    recent.put("another", bytes(20 * 1024 * 1024))
    assert recent.get("large") is None
    assert recent.get("another") is not None
    await asyncio.sleep(3_599)
    assert recent.get("another") is not None
    await asyncio.sleep(2)
    assert recent.get("another") is None
    recent.put("another", b"y")
    assert recent.get("another") == b"y"


@on_own_clock
async def test_data_that_comes_again_stays_for_its_whole_time() -> None:
    recent = RecentData()
    recent.put("e1", b"before a replay")
    recent.drop("e1")
    await asyncio.sleep(2_000)
    recent.put("e1", b"after it")
    await asyncio.sleep(3_000)
    assert recent.get("e1") == b"after it"


async def test_a_path_is_in_doubt_once_several_resources_and_no_other_got_a_404(redis_url: str, stub: Stub) -> None:
    stub.answer = lambda call: Answer(404) if call.resource.startswith("x") else well(call)
    async with attempts(redis_url, stub, Noting().handlers) as made:
        for number, resource in enumerate(("x0", "x0", "x1", "x2", "x3")):  # One id may be wrong.
            assert made.processor.lookups.never_found == (("issuance",) if number == 4 else ())
            await made.accept(f"m{number}", COMPLETED, resource)
            with capture_logs() as lines:
                await made.next(Attempt(await made.claim_of(f"m{number}")))
            assert "CREDHOOK_ISSUANCE_PATH" in lines[0]["hint"]
        assert made.processor.lookups.never_found == ("issuance",)
        await made.accept("found", COMPLETED, "y")
        await made.next(Attempt(await made.claim_of("found")))
        assert not made.processor.lookups.never_found
        for event_id, kind, hint in (("m5", COMPLETED, ""), ("m6", DATA, "CREDHOOK_PRESENTATION_PATH")):
            await made.accept(event_id, kind, f"x{event_id}")
            with capture_logs() as lines:
                await made.next(Attempt(await made.claim_of(event_id)))
            assert hint in lines[0]["hint"]
            assert bool(hint) is bool(lines[0]["hint"])


async def test_fetch_that_gets_a_500_is_repeated_once_in_place(redis_url: str, stub: Stub) -> None:
    stub.answer = lambda call: Answer(500) if call.number % 2 or call.resource == "x1" else well(call)
    async with attempts(redis_url, stub, Noting().handlers) as made:
        await made.accept("m0", COMPLETED, "x0")
        assert (await made.next()).state is State.DONE
        await made.accept("m1", COMPLETED, "x1")
        assert (await made.next()).error == "Unavailable 500"
    assert [call.resource for call in stub.calls] == ["x0", "x0", "x1", "x1"]


def test_status_and_causes_name_the_setting_of_a_path_that_finds_nothing(rig: FleetHarness) -> None:
    rig.stub.answer = lambda _: Answer(404)
    rig.plugin("""
@handlers.on("*")
async def handle(event, context):
    note(event.webhook_id)
""")
    rig.accept(*((f"m{number}", COMPLETED, f"x{number}") for number in range(3)))
    with rig.worker():
        for name in ("status", "causes"):
            command = partial(invoke, name, environment=rig.environment)
            until(lambda command=command: "check CREDHOOK_ISSUANCE_PATH" in command().stdout)  # type: ignore[misc]
