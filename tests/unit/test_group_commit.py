"""What goes out together: settlements wait for whoever takes, and what takes waits for no Redis that is away."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from waiting import until_async

from credhook.worker.queue.group_commit import GroupCommit, Operation, operation

LONG = 3_600.0


async def test_settlements_wait_for_each_other_until_something_else_is_wanted() -> None:
    groups: list[list[Operation]] = []

    async def run(operations: Sequence[Operation]) -> list[Any]:
        groups.append(list(operations))
        return [len(groups)] * len(operations)

    commit = GroupCommit(run, gather=LONG)
    settlements = [asyncio.create_task(commit.write((name,), urgent=True)) for name in ("s1", "s2")]
    for _ in range(10):
        await asyncio.sleep(0)
    assert groups == []
    assert await commit.write(("take",), patient=False) == 1
    assert await asyncio.gather(*settlements) == [1, 1]
    assert groups == [[("s1",), ("s2",), ("take",)]]


async def test_a_group_has_one_large_operation_and_the_next_leaves_with_what_came_meanwhile() -> None:
    groups: list[list[Operation]] = []
    written = asyncio.Event()

    async def run(operations: Sequence[Operation]) -> list[Any]:
        groups.append(list(operations))
        await written.wait()
        return [len(groups)] * len(operations)

    commit = GroupCommit(run, gather=LONG)
    takes = [asyncio.create_task(commit.write((name,), large=True)) for name in ("take 1", "take 2")]
    record = asyncio.create_task(commit.write(("record",)))
    await until_async(lambda: groups)
    settlement = asyncio.create_task(commit.write(("settle",), urgent=True))
    await asyncio.sleep(0)
    written.set()
    assert await asyncio.gather(*takes, record, settlement) == [1, 2, 2, 2]
    assert groups == [[("take 1",)], [("settle",), ("take 2",), ("record",)]]


async def test_settlements_alone_wait_no_longer_than_they_are_to() -> None:
    async def run(operations: Sequence[Operation]) -> list[Any]:
        return [1] * len(operations)

    assert await GroupCommit(run, gather=0.001).write(("settle",), urgent=True) == 1


async def test_what_is_not_patient_hears_of_a_redis_that_is_away_and_settlements_go_on_trying() -> None:
    groups: list[list[Operation]] = []

    async def run(operations: Sequence[Operation]) -> list[Any]:
        groups.append(list(operations))
        if len(groups) == 1:
            raise RedisConnectionError("away")
        return [1] * len(operations)

    async def sleep(_: float) -> None:
        await asyncio.sleep(0)

    commit = GroupCommit(run, sleep=sleep)
    settlement = asyncio.create_task(commit.write(("settle",), urgent=True))
    with pytest.raises(RedisConnectionError):
        await commit.write(("take",), patient=False)
    assert await settlement == 1
    assert groups[-1] == [("settle",)]


def test_an_operation_is_its_name_and_so_many_arguments_as_redis_reads_them() -> None:
    told: Any = operation("record", "msg_1", True, 7, {}, {"who": "ä"}, "a \udc80 b")
    assert told == ("record", 6, "msg_1", 1, 7, "", b'{"who": "\xc3\xa4"}', b"a ? b")
