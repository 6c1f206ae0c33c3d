"""Operations that go out together: `first` operations wait for others, and each caller gets its own outcome."""

import asyncio
from contextvars import ContextVar
from itertools import pairwise

import pytest

from credhook.group_commit import GroupCommit
from support.virtual_time import in_own_time

LIMIT = 20
Groups = list[list[str]]


class Away(Exception):
    """The store does not answer now."""


def is_away(error: Exception) -> bool:
    return isinstance(error, Away)


def test_first_operations_wait_for_the_window_or_another_operation() -> None:
    groups: Groups = []

    async def run(operations: list[str]) -> list[int]:
        groups.append(operations)
        await asyncio.sleep(20)
        return [len(groups)] * len(operations)

    async def write() -> None:
        commit = GroupCommit(run, limit=LIMIT, window_seconds=10.0)
        settlements = [commit.write(name, first=True) for name in ("s1", "s2")]
        await asyncio.sleep(9)
        assert groups == []
        record = commit.write("r1")
        await asyncio.sleep(0.5)
        meanwhile = [commit.write("r2"), commit.write("s3", first=True)]
        assert await asyncio.gather(*settlements, record, *meanwhile) == [1, 1, 1, 2, 2]
        late = commit.write("s4", first=True)
        began = asyncio.get_running_loop().time()
        assert await late == 3
        assert asyncio.get_running_loop().time() - began == pytest.approx(30, abs=0.001)

    in_own_time(write())
    assert groups == [["s1", "s2", "r1"], ["s3", "r2"], ["s4"]]


def test_operations_that_arrive_during_a_group_wait_for_the_window() -> None:
    began: list[float] = []

    async def run(operations: list[str]) -> list[str]:
        began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(20)
        return operations

    async def write() -> None:
        commit = GroupCommit(run, limit=LIMIT, window_seconds=10.0)
        record = commit.write("r1")
        await asyncio.sleep(1)
        await asyncio.gather(record, commit.write("s1", first=True))

    in_own_time(write())
    assert began[1] - began[0] == pytest.approx(30, abs=0.001)


def test_operation_of_a_cancelled_caller_is_written() -> None:
    groups: Groups = []

    async def run(operations: list[str]) -> list[str]:
        groups.append(operations)
        return operations

    async def write() -> None:
        commit = GroupCommit(run, limit=LIMIT)
        gone, stays = commit.write("gone"), commit.write("stays")
        gone.cancel()
        assert await stays == "stays"

    in_own_time(write())
    assert groups == [["gone", "stays"]]


def test_answered_callers_join_the_next_group() -> None:
    groups: Groups = []

    async def run(operations: list[str]) -> list[str]:
        groups.append(operations)
        await asyncio.sleep(1)
        return operations

    async def write() -> None:
        commit = GroupCommit(run, limit=2)

        async def caller(name: str) -> None:
            await commit.write(name)
            await commit.write(name)

        await asyncio.gather(*(caller(name) for name in "abc"))

    in_own_time(write())
    assert groups == [["a", "b"], ["c", "a"], ["b", "c"]]


@pytest.mark.parametrize("away", [(), (1,), (2,), (1, 3)])
def test_group_has_at_most_the_limit_of_operations(away: tuple[int, ...]) -> None:
    sizes: list[int] = []

    async def run(operations: list[int]) -> list[int]:
        sizes.append(len(operations))
        if len(sizes) in away:
            raise Away
        return operations

    async def write() -> float:
        commit = GroupCommit(run, limit=LIMIT, is_temporary=is_away)
        began = asyncio.get_running_loop().time()
        numbers = list(range(2 * LIMIT + 1))
        assert await asyncio.gather(*map(commit.write, numbers)) == numbers
        return asyncio.get_running_loop().time() - began

    assert in_own_time(write()) == pytest.approx(0.05 * len(away), abs=0.001)
    assert sizes == [LIMIT] * (2 + len(away)) + [1]


def test_first_operations_begin_the_group() -> None:
    groups: Groups = []

    async def run(operations: list[str]) -> list[str]:
        groups.append(operations)
        await asyncio.sleep(1)
        return operations

    async def write() -> None:
        commit = GroupCommit(run, limit=3)
        names = ["r1", "s1", "r2", "s2", "s3", "s4"]
        await asyncio.gather(*(commit.write(name, first=name.startswith("s")) for name in names))

    in_own_time(write())
    assert groups == [["s1", "s2", "s3"], ["s4", "r1", "r2"]]


def test_temporary_error_is_tried_again_once_a_second_at_most() -> None:
    asked: list[float] = []

    async def run(operations: list[str]) -> list[str]:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) < 9:
            raise Away
        return operations

    async def write() -> None:
        assert await GroupCommit(run, limit=LIMIT, is_temporary=is_away).write("x") == "x"

    in_own_time(write())
    waits = [after - before for before, after in pairwise(asked)]
    assert waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], abs=0.001)


def test_first_operation_overtakes_operations_that_are_tried_again() -> None:
    groups: Groups = []

    async def run(operations: list[str]) -> list[str | Exception]:
        groups.append(operations)
        return [Away() if len(groups) < 3 and name.startswith("r") else name for name in operations]

    async def write() -> None:
        commit = GroupCommit(run, limit=2, is_temporary=is_away)
        records = [commit.write(name) for name in ("r1", "r2", "r3")]
        await asyncio.sleep(0.01)
        assert await commit.write("s1", first=True) == "s1"
        assert await asyncio.gather(*records) == ["r1", "r2", "r3"]

    in_own_time(write())
    assert groups == [["r1", "r2"], ["s1", "r1"], ["r1", "r2"], ["r3"]]


def test_error_of_one_operation_reaches_its_caller_alone() -> None:
    async def run(operations: list[str]) -> list[str | Exception]:
        return [ValueError(name) if name == "bad" else name for name in operations]

    async def write() -> None:
        commit = GroupCommit(run, limit=LIMIT, is_temporary=is_away)
        bad, good = commit.write("bad"), commit.write("good")
        with pytest.raises(ValueError, match="bad"):
            await bad
        assert await good == "good"

    in_own_time(write())


def test_raised_error_reaches_all_callers_of_the_group_and_no_others() -> None:
    async def run(operations: list[str]) -> list[str]:
        if "a" in operations:
            raise ValueError
        return operations

    async def write() -> list[str | BaseException]:
        commit = GroupCommit(run, limit=2, is_temporary=is_away)
        return await asyncio.gather(*map(commit.write, "abc"), return_exceptions=True)

    refused, also_refused, written = in_own_time(write())
    assert isinstance(refused, ValueError)
    assert refused is also_refused
    assert written == "c"


def test_refusal_reaches_all_who_wait_and_not_the_group_under_way() -> None:
    async def run(operations: list[str]) -> list[str]:
        await asyncio.sleep(1)
        return operations

    async def write() -> None:
        commit = GroupCommit(run, limit=1)
        under_way = commit.write("a")
        await asyncio.sleep(0)
        waiting = [commit.write("b"), commit.write("s", first=True)]
        assert commit.waiting == 2
        commit.refuse_waiting(ValueError())
        assert commit.waiting == 0
        refused = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in refused] == [ValueError] * 2
        assert await under_way == "a"

    in_own_time(write())


@pytest.mark.parametrize("first", [False, True])
def test_drain_returns_when_all_is_written(first: bool) -> None:
    async def run(operations: list[str]) -> list[str]:
        await asyncio.sleep(1)
        return operations

    async def write() -> float:
        commit = GroupCommit(run, limit=1, window_seconds=100.0)
        began = asyncio.get_running_loop().time()
        writes = [commit.write(name, first=first) for name in "ab"]
        await commit.drain()
        assert [write.result() for write in writes] == ["a", "b"]
        return asyncio.get_running_loop().time() - began

    assert in_own_time(write()) == pytest.approx(2, abs=0.001)


def test_group_runs_outside_the_context_of_its_first_caller() -> None:
    trace: ContextVar[str] = ContextVar("trace", default="none")

    async def run(operations: list[str]) -> list[str]:
        return [trace.get()] * len(operations)

    async def write() -> None:
        trace.set("a caller's")
        assert await GroupCommit(run, limit=1).write("x") == "none"

    in_own_time(write())
