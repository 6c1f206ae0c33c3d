"""Operations that go out together: `first` operations wait for others, and each caller gets its own outcome."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest

from credhook.group_commit import GroupCommit
from support.virtual_time import on_own_clock

LIMIT = 20


class Away(Exception):
    """The store does not answer now."""


def is_away(error: Exception) -> bool:
    return isinstance(error, Away)


def now() -> float:
    return asyncio.get_running_loop().time()


class Store:
    """Takes some seconds for a group. `reply` makes the reply to an operation, which is the operation by default."""

    def __init__(self, seconds: float = 0.0, reply: Callable[[str], object] = lambda name: name) -> None:
        self.seconds, self.reply = seconds, reply
        self.groups: list[list[str]] = []
        #: When each group began.
        self.began: list[float] = []

    async def run(self, operations: list[str]) -> list[Any]:
        self.groups.append(operations)
        self.began.append(now())
        replies = [self.reply(name) for name in operations]
        await asyncio.sleep(self.seconds)
        return replies


@on_own_clock
async def test_first_operations_wait_for_the_window_or_another_operation() -> None:
    store = Store(20)
    commit = GroupCommit(store.run, limit=LIMIT, window_seconds=10.0)
    settlements = [commit.write(name, first=True) for name in ("s1", "s2")]
    await asyncio.sleep(9)
    assert store.groups == []
    record = commit.write("r1")
    await asyncio.sleep(0.5)
    meanwhile = [commit.write("r2"), commit.write("s3", first=True)]
    assert await asyncio.gather(*settlements, record, *meanwhile) == ["s1", "s2", "r1", "r2", "s3"]
    began = now()
    assert await commit.write("s4", first=True) == "s4"
    assert now() - began == pytest.approx(30, abs=0.001)
    assert store.groups == [["s1", "s2", "r1"], ["s3", "r2"], ["s4"]]


@on_own_clock
async def test_operations_that_arrive_during_a_group_wait_for_the_window() -> None:
    store = Store(20)
    commit = GroupCommit(store.run, limit=LIMIT, window_seconds=10.0)
    record = commit.write("r1")
    await asyncio.sleep(1)
    await asyncio.gather(record, commit.write("s1", first=True))
    assert store.began[1] - store.began[0] == pytest.approx(30, abs=0.001)


@on_own_clock
async def test_operation_of_a_cancelled_caller_is_written() -> None:
    store = Store()
    commit = GroupCommit(store.run, limit=LIMIT)
    gone, stays = commit.write("gone"), commit.write("stays")
    gone.cancel()
    assert await stays == "stays"
    assert store.groups == [["gone", "stays"]]


@on_own_clock
async def test_answered_callers_join_the_next_group() -> None:
    store = Store(1)
    commit = GroupCommit(store.run, limit=2)

    async def caller(name: str) -> None:
        await commit.write(name)
        await commit.write(name)

    await asyncio.gather(*(caller(name) for name in "abc"))
    assert store.groups == [["a", "b"], ["c", "a"], ["b", "c"]]


@pytest.mark.parametrize("away", [(), (1,), (2,), (1, 3)])
@on_own_clock
async def test_group_has_at_most_the_limit_of_operations(away: tuple[int, ...]) -> None:
    def reply(name: str) -> str:
        if len(store.groups) in away:
            raise Away
        return name

    store = Store(reply=reply)
    commit = GroupCommit(store.run, limit=LIMIT, is_temporary=is_away)
    began = now()
    names = [f"r{number}" for number in range(2 * LIMIT + 1)]
    assert await asyncio.gather(*map(commit.write, names)) == names
    assert now() - began == pytest.approx(0.05 * len(away), abs=0.001)
    assert [len(group) for group in store.groups] == [LIMIT] * (2 + len(away)) + [1]


@on_own_clock
async def test_first_operations_begin_the_group() -> None:
    store = Store(1)
    commit = GroupCommit(store.run, limit=3)
    names = ["r1", "s1", "r2", "s2", "s3", "s4"]
    await asyncio.gather(*(commit.write(name, first=name.startswith("s")) for name in names))
    assert store.groups == [["s1", "s2", "s3"], ["s4", "r1", "r2"]]


@on_own_clock
async def test_temporary_error_is_tried_again_once_a_second_at_most() -> None:
    store = Store(reply=lambda name: Away() if len(store.groups) < 9 else name)
    assert await GroupCommit(store.run, limit=LIMIT, is_temporary=is_away).write("x") == "x"
    waits = [after - before for before, after in pairwise(store.began)]
    assert waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], abs=0.001)


@on_own_clock
async def test_first_operation_overtakes_operations_that_are_tried_again() -> None:
    store = Store(reply=lambda name: Away() if len(store.groups) < 3 and name.startswith("r") else name)
    commit = GroupCommit(store.run, limit=2, is_temporary=is_away)
    records = [commit.write(name) for name in ("r1", "r2", "r3")]
    await asyncio.sleep(0.01)
    assert await commit.write("s1", first=True) == "s1"
    assert await asyncio.gather(*records) == ["r1", "r2", "r3"]
    assert store.groups == [["r1", "r2"], ["s1", "r1"], ["r1", "r2"], ["r3"]]


@on_own_clock
async def test_error_of_one_operation_reaches_its_caller_alone() -> None:
    store = Store(reply=lambda name: ValueError(name) if name == "bad" else name)
    commit = GroupCommit(store.run, limit=LIMIT, is_temporary=is_away)
    bad, good = commit.write("bad"), commit.write("good")
    with pytest.raises(ValueError, match="bad"):
        await bad
    assert await good == "good"


@on_own_clock
async def test_raised_error_reaches_all_callers_of_the_group_and_no_others() -> None:
    def reply(name: str) -> str:
        if name == "a":
            raise ValueError
        return name

    commit = GroupCommit(Store(reply=reply).run, limit=2, is_temporary=is_away)
    refused, also_refused, written = await asyncio.gather(*map(commit.write, "abc"), return_exceptions=True)
    assert isinstance(refused, ValueError)
    assert refused is also_refused
    assert written == "c"


@on_own_clock
async def test_refusal_reaches_all_who_wait_and_not_the_group_under_way() -> None:
    commit = GroupCommit(Store(1).run, limit=1)
    under_way = commit.write("a")
    await asyncio.sleep(0)
    waiting = [commit.write("b"), commit.write("s", first=True)]
    assert commit.waiting == 2
    commit.refuse_waiting(ValueError())
    assert commit.waiting == 0
    refused = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in refused] == [ValueError] * 2
    assert await under_way == "a"


@pytest.mark.parametrize("first", [False, True])
@on_own_clock
async def test_drain_returns_when_all_is_written(first: bool) -> None:
    commit = GroupCommit(Store(1).run, limit=1, window_seconds=100.0)
    began = now()
    writes = [commit.write(name, first=first) for name in "ab"]
    await commit.drain()
    assert [write.result() for write in writes] == ["a", "b"]
    assert now() - began == pytest.approx(2, abs=0.001)


@on_own_clock
async def test_group_runs_outside_the_context_of_its_first_caller() -> None:
    trace: ContextVar[str] = ContextVar("trace", default="none")
    trace.set("a caller's")
    assert await GroupCommit(Store(reply=lambda _: trace.get()).run, limit=1).write("x") == "none"
