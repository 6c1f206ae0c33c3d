"""How many takes are under way, for how many events, and what becomes of each."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from waiting import until_async

from credhook.worker.queue.claim import Taken
from credhook.worker.queue.intake import Intake


class Queue:
    """Answers a take when it is told to.

    Attributes:
        asked: how many each take has asked for, and how many urgent ones.
        places: how many events the worker has room for.
        admitted: how many the platform bears at a time.
        returned: how many admitted ones were not found.
        started: the events that were started.
        gives_back: whether what was not found can be returned.
        before_admission: called before anything is admitted.
    """

    def __init__(self, places: int = 100) -> None:
        self.asked: list[tuple[int, int]] = []
        self.places = places
        self.admitted = 100
        self.returned: list[int] = []
        self.started: list[str] = []
        self.gives_back = True
        self.before_admission: Callable[[], None] = lambda: None
        self._answers: list[asyncio.Future[Taken]] = []

    def intake(self, group: int = 4) -> Intake:
        """A worker's intake from this queue."""
        claims: Any = SimpleNamespace(take=self.take)
        return Intake(
            claims,
            group=group,
            room=lambda: self.places - len(self.started),
            admit=self.admit,
            give_back=self.give_back,
            start=self.start,
        )

    def start(self, claim: Any) -> None:
        self.started.append(claim.event_id)

    async def admit(self, wanted: int) -> int:
        self.before_admission()
        return min(wanted, self.admitted)

    async def give_back(self, unused: int) -> None:
        if not self.gives_back:
            raise RedisConnectionError("away")
        self.returned.append(unused)

    async def take(self, wanted: int, *, urgent: int, idle: bool) -> Taken:
        self.asked.append((wanted, urgent))
        answer: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        return await answer

    def answer(self, *claims: str, poison_candidates: bool = False, poison_candidate: bool = False) -> None:
        """To the first take that has none."""
        given: Any = tuple(SimpleNamespace(event_id=claim, poison_candidate=poison_candidate) for claim in claims)
        self._answers.pop(0).set_result(Taken(given, None, poison_candidates))

    def fail(self) -> None:
        """Likewise."""
        self._answers.pop(0).set_exception(RedisConnectionError("away"))


async def asked(queue: Queue, number: int) -> None:
    await until_async(lambda: len(queue.asked) == number, what="a take")


async def in_line(queue: Queue) -> tuple[Intake, "asyncio.Task[Taken | None]"]:
    """An intake that was given `a`, all that it had asked for: now two takes are under way, the first awaited."""
    intake = queue.intake(group=1)
    taking = asyncio.create_task(intake.take(more=True, idle=True))
    await asked(queue, 1)
    queue.answer("a")
    await taking
    taking = asyncio.create_task(intake.take(more=True, idle=False))
    await asked(queue, 3)
    return intake, taking


async def test_while_there_is_plenty_a_second_take_is_in_line() -> None:
    queue = Queue()
    intake = queue.intake(group=2)
    first = asyncio.create_task(intake.take(more=True, idle=True))
    await asked(queue, 1)
    assert intake.room == 98
    queue.answer("a", "b")
    assert (await first) is not None
    assert not intake.is_under_way
    second = asyncio.create_task(intake.take(more=True, idle=False))
    await asked(queue, 3)
    assert intake.room == 100 - 2 - 2 * 2
    queue.answer("c")
    await second
    assert intake.is_under_way
    third = asyncio.create_task(intake.take(more=True, idle=False))  # There was less than was asked for.
    queue.answer()
    await third
    assert (len(queue.asked), intake.is_under_way) == (3, False)
    assert (queue.started, queue.returned) == (["a", "b", "c"], [0, 1, 2])


async def test_nothing_is_asked_for_that_there_is_no_room_for() -> None:
    queue = Queue(places=5)
    intake = queue.intake(group=3)
    for claims in ("abc", "de"):
        taking = asyncio.create_task(intake.take(more=True, idle=False))
        await asyncio.sleep(0.01)
        queue.answer(*claims)
        await taking
    assert queue.asked == [(3, 2), (2, 1)]
    assert intake.room == 0


async def test_what_is_under_way_is_awaited_where_nothing_more_is_wanted() -> None:
    queue = Queue()
    intake, taking = await in_line(queue)
    queue.answer("b")
    await taking
    taking = asyncio.create_task(intake.take(more=False, idle=False))
    await asyncio.sleep(0.01)
    queue.answer("c")
    await taking
    assert (queue.started, len(queue.asked), intake.is_under_way) == (["a", "b", "c"], 3, False)


async def test_suspects_end_plenty() -> None:
    queue = Queue()
    intake = queue.intake(group=1)
    taking = asyncio.create_task(intake.take(more=True, idle=True))
    await asked(queue, 1)
    queue.answer("a", poison_candidates=True)
    await taking
    taking = asyncio.create_task(intake.take(more=True, idle=False))
    await asked(queue, 2)
    assert intake.room == 100 - 1 - 1
    queue.answer()
    await taking


async def test_an_idle_process_asks_once_for_it_may_be_given_what_is_to_be_worked_on_alone() -> None:
    queue = Queue()
    intake = queue.intake(group=1)
    for claim in ("a", "b"):
        taking = asyncio.create_task(intake.take(more=True, idle=True))
        await asyncio.sleep(0.01)
        queue.answer(claim)
        await taking
        assert not intake.is_under_way
    assert (queue.started, len(queue.asked)) == (["a", "b"], 2)


@pytest.mark.parametrize(
    "answer", [{"poison_candidates": True}, {"poison_candidate": True}], ids=["others wait", "this one"]
)
async def test_before_anything_starts_it_is_known_that_something_wants_to_be_alone(answer: dict[str, bool]) -> None:
    queue = Queue()
    known: list[bool] = []

    def start(claim: Any) -> None:
        known.append(intake.wanted_alone)

    queue.start = start  # type: ignore[method-assign]
    intake = queue.intake()
    queue.gives_back = False
    taking = asyncio.create_task(intake.take(more=True, idle=True))
    await asked(queue, 1)
    queue.answer("a", **answer)
    assert await taking is not None  # Though the bucket could not be told of the others.
    assert known == [True]


async def test_a_worker_that_was_told_to_stop_meanwhile_takes_nothing() -> None:
    queue = Queue()
    intake = queue.intake()
    queue.before_admission = lambda: setattr(queue, "places", 0)
    assert await intake.take(more=True, idle=True) is None
    assert (queue.asked, queue.returned) == ([], [4])


async def test_a_platform_that_is_left_alone_is_said_and_takes_no_room() -> None:
    queue = Queue()
    queue.admitted = 0
    intake = queue.intake()
    assert await intake.take(more=True, idle=True) is None
    assert (queue.asked, intake.room) == ([], 100)


async def test_a_take_that_fails_loses_nothing_of_the_one_behind_it() -> None:
    queue = Queue()
    intake, taking = await in_line(queue)
    queue.fail()
    with pytest.raises(RedisConnectionError):
        await taking
    queue.answer("b")
    await intake.take(more=True, idle=False)
    assert (queue.started, len(queue.asked), intake.room) == (["a", "b"], 3, 98)


async def test_at_the_end_all_that_was_asked_for_is_started() -> None:
    queue = Queue()
    intake, taking = await in_line(queue)
    queue.answer("b")
    await taking
    ending = asyncio.create_task(intake.finish())
    await asyncio.sleep(0.01)
    assert not ending.done()
    queue.answer("c")
    await ending
    assert (queue.started, intake.is_under_way) == (["a", "b", "c"], False)
