"""Operations that go out together: settlements wait for each other, and all wait for a Redis that is away."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ResponseError

from credhook.worker.queue.group_commit import MOST_WRITTEN, GroupCommit, Operation, operation
from support.virtual_time import in_own_time


def test_settlements_wait_for_each_other_until_something_else_is_written() -> None:
    groups: list[list[Operation]] = []

    async def run(operations: Sequence[Operation]) -> list[Any]:
        groups.append(list(operations))
        await asyncio.sleep(20)
        return [len(groups)] * len(operations)

    async def write() -> None:
        commit = GroupCommit(run, window=10.0)
        gone, *settlements = [asyncio.create_task(commit.write((name,), first=True)) for name in ("s0", "s1", "s2")]
        await asyncio.sleep(9)
        assert groups == []
        record = asyncio.create_task(commit.write(("r1",)))
        await asyncio.sleep(0.5)
        meanwhile = [asyncio.create_task(commit.write((name,), first=name == "s3")) for name in ("r2", "s3")]
        gone.cancel()
        assert await asyncio.gather(*settlements, record, *meanwhile) == [1, 1, 1, 2, 2]

    in_own_time(write())
    assert groups == [[("s0",), ("s1",), ("s2",), ("r1",)], [("s3",), ("r2",)]]


@pytest.mark.parametrize("away", [(), (1,), (2,), (1, 3)])
def test_operations_beyond_the_size_of_a_group_go_out_with_the_next_also_if_redis_was_away(away: Sequence[int]) -> None:
    sizes: list[int] = []

    async def run(operations: Sequence[Operation]) -> list[Any]:
        sizes.append(len(operations))
        if len(sizes) in away:
            raise RedisConnectionError
        return [name for (name,) in operations]

    async def write() -> list[Any]:
        commit, began = GroupCommit(run), asyncio.get_running_loop().time()
        replies = await asyncio.gather(*(commit.write((number,)) for number in range(2 * MOST_WRITTEN + 1)))
        return [*replies, asyncio.get_running_loop().time() - began]

    assert in_own_time(write()) == [*range(2 * MOST_WRITTEN + 1), pytest.approx(0.05 * len(away), abs=0.001)]
    assert sizes == [MOST_WRITTEN] * (2 + len(away)) + [1]


def test_a_redis_that_stays_away_is_asked_once_a_second_and_settlements_go_first() -> None:
    asked: list[float] = []
    groups: list[list[Operation]] = []

    async def run(operations: Sequence[Operation]) -> list[Any]:
        asked.append(asyncio.get_running_loop().time())
        groups.append(list(operations))
        if len(groups) < 9:
            raise OutOfMemoryError("OOM command not allowed")
        return [ResponseError("WRONGTYPE no"), *range(1, len(operations))]

    async def write() -> list[Any]:
        commit = GroupCommit(run)
        writes = [commit.write((name,), first=name != "record") for name in ("record", "refused", "settle")]
        return await asyncio.gather(*writes, return_exceptions=True)

    recorded, refused, settled = in_own_time(write())
    waits = [after - before for before, after in pairwise(asked)]
    assert waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], abs=0.001)
    assert groups[-1] == [("refused",), ("settle",), ("record",)]
    assert isinstance(refused, ResponseError)
    assert (settled, recorded) == (1, 2)


def test_an_operation_is_its_name_and_so_many_arguments_as_redis_reads_them() -> None:
    told: Any = operation("record", "msg_1", True, 7, {}, {"who": "ä"}, "a \udc80 b")
    assert told == ("record", 6, "msg_1", 1, 7, b"", b'{"who": "\xc3\xa4"}', b"a ? b")
