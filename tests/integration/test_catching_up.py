"""A handler that has come later catches up with what was done before its time, and no other handler runs again."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from accepting import record
from attempts import Attempts, attempts
from events_command import Run
from fleet_harness import Stub
from redis import Redis
from stored_events import plant

from credhook.store import State
from credhook.worker.attempt.retry import GiveUp, Retry
from credhook.worker.handlers.registry import Handlers
from credhook.worker.queue.replay import Replay, Settled
from credhook.worker.queue.unhandled import Unhandled

COMPLETED: Final = "openid4vc.issuance.completed"


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub().running() as stub:
        yield stub


def handlers(ran: list[str], **ends: Exception | None) -> Handlers:
    """A handler for each name, which ends as the test says."""
    all_of_them = Handlers("test")
    for name, error in ends.items():

        async def handle(event: Any, context: Any, name: str = name, error: Exception | None = error) -> None:
            ran.append(name)
            if error is not None:
                raise error

        handle.__name__ = name
        all_of_them.on(COMPLETED)(handle)
    return all_of_them


async def done_before_its_time(made: Attempts, redis: Redis) -> None:
    """An event that was done when there was only one handler; then two more came, and one is asked to catch up."""
    await made.accept("m1", COMPLETED, "r1")
    assert (await made.next()).state is State.DONE
    outcomes = Replay(redis, queue="credhook")([Settled("m1", "done")], handler="test.late", types=[COMPLETED])
    assert outcomes == [b"replayed"]


async def test_it_runs_alone_and_its_wish_goes_with_the_settlement(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    ran: list[str] = []
    async with attempts(redis_url, stub, handlers(ran, first=None)) as before:
        await done_before_its_time(before, redis_client)
    async with attempts(redis_url, stub, handlers(ran, first=None, late=None, later=None)) as made:
        assert (await made.next()).state is State.DONE
    assert ran == ["first", "late"]
    settled = record(redis_client, "m1")
    assert {name for name in settled if name.startswith("h:")} == {"h:test.first", "h:test.late"}
    assert "only" not in settled


async def test_it_alone_is_tried_again_and_given_up(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    ran: list[str] = []
    async with attempts(redis_url, stub, handlers(ran, first=None)) as before:
        await done_before_its_time(before, redis_client)
    async with attempts(redis_url, stub, handlers(ran, first=None, late=Retry(after=0.01), later=None)) as made:
        assert (await made.next()).state is State.WAITING
        assert record(redis_client, "m1")["only"] == "test.late"
    async with attempts(redis_url, stub, handlers(ran, first=None, late=GiveUp("no"), later=None)) as made:
        assert (await made.next()).state is State.DEAD
    assert ran == ["first", "late", "late"]
    assert "only" not in record(redis_client, "m1")


async def test_a_worker_without_it_leaves_the_event_to_one_that_has_it(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    ran: list[str] = []
    async with attempts(redis_url, stub, handlers(ran, first=None, later=None)) as old:
        await old.accept("m1", COMPLETED, "r1")
        redis_client.hset(
            "credhook:credhook:event:m1", mapping={"h:test.first": "done", "only": "test.late", "fence": 1}
        )
        assert (await old.next()).state is State.UNHANDLED
    assert record(redis_client, "m1")["only"] == "test.late"
    without = Unhandled(redis_client, queue="credhook", wanted={COMPLETED: ("test.first", "test.later")})
    assert without.put_back() == 0
    names = ("test.first", "test.late", "test.later")
    assert Unhandled(redis_client, queue="credhook", wanted={COMPLETED: names}).put_back() == 1
    async with attempts(redis_url, stub, handlers(ran, first=None, late=None, later=None)) as new:
        assert (await new.next()).state is State.DONE
    assert ran == ["late"]


def test_the_command_chooses_by_type_and_time_and_lets_it_run_alone_for_what_is_done(
    redis_client: Redis, events: Run, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin_that_is_late.py").write_text(
        f'from credhook import Handlers\nhandlers = Handlers("late")\n\n@handlers.on("{COMPLETED}")\n'
        "async def handle(event, context): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plant(redis_client, "done", State.DONE, age=60, ended={"a.other": "done"})
    plant(redis_client, "dead", State.DEAD, age=60, ended={"a.other": "dead: ValueError"})
    plant(redis_client, "old", State.DONE, age=7_200, ended={"a.other": "done"})
    plant(redis_client, "unrelated", State.DONE, "openid4vc.issuance.failed", ended={"a.other": "done"})
    plant(redis_client, "unwanted", State.DONE, "openid4vc.issuance.failed", ended={"late.handle": "done"})
    options = ("--handler", "late.handle", "--since", "1h")
    result = events("replay", *options, CREDHOOK_HANDLERS="plugin_that_is_late")
    assert result.stdout == "replayed 2, left 2 (2 that the handler does not want)\n"
    assert record(redis_client, "done")["only"] == "late.handle"
    assert record(redis_client, "done")["h:a.other"] == "done"
    assert "only" not in record(redis_client, "dead")  # There the others that have not ended are to run as well.
    assert record(redis_client, "old")["state"] == record(redis_client, "unwanted")["state"] == "done"
