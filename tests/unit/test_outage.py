"""A fleet and its platform in virtual time: an outage, and a pause that the platform asks for."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

from circuit_memory import LATENCY, CircuitMemory, CircuitStoreInMemory
from redis.asyncio import Redis
from stores import store_on
from structlog.testing import capture_logs
from virtual_time import in_own_time
from waiting import until_async

from credhook.worker.platform.circuit import MARGIN_SECONDS, PAUSES, THRESHOLD, PlatformPaused
from credhook.worker.platform.circuit_breaker import PROBE_RETRY_SECONDS, CircuitBreaker

MEMBERS, AT_ONCE = 4, 10
#: Seconds within which two moments are one.
ROUNDING = 1e-6
#: Seconds that a look takes which comes as soon as it may: some questions, and the rest between two of them.
SOON = PROBE_RETRY_SECONDS * 1.5 + 10 * LATENCY


class Platform:
    """Answers each call after a while, and knows when it came.

    Attributes:
        answer: status and Retry-After of the call of that number, counted from 1.
        takes: seconds.
        calls: when each came.
        under_way: how many have not been answered; `most` of them at once.
    """

    def __init__(self) -> None:
        self.answer: Callable[[int], tuple[int, float | None]] = lambda _: (200, None)
        self.takes = 0.05
        self.calls: list[float] = []
        self.under_way = self.most = 0

    async def call(self) -> tuple[int, float | None]:
        self.calls.append(now())
        answer = self.answer(len(self.calls))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(self.takes)
        self.under_way -= 1
        return answer


def now() -> float:
    return asyncio.get_running_loop().time()


async def fetch_for_ever(breaker: CircuitBreaker, platform: Platform) -> None:
    while True:
        if not await breaker.admit(1):
            await asyncio.sleep(max(0.005, breaker.retry_in()))
            continue
        try:
            permit = await breaker.fetches.acquire("presentations.get")
        except PlatformPaused:
            continue
        permit.answered(*await platform.call())


@asynccontextmanager
async def fleet(platform: Platform) -> AsyncIterator[None]:
    """Members that fetch as much as they are let, for the length of the block."""
    memory, dice = CircuitMemory(now), random.Random(7)
    async with AsyncExitStack() as stack:
        tasks = []
        for _ in range(MEMBERS):
            redis = await stack.enter_async_context(Redis())  # Never connected.
            breaker = CircuitBreaker(
                store_on(redis), api_url="http://platform.example", timeout=5.0, clock=now, chance=dice.random
            )
            breaker._store = CircuitStoreInMemory(memory)  # type: ignore[assignment]
            tasks.append(asyncio.create_task(breaker.watch()))
            tasks += [asyncio.create_task(fetch_for_ever(breaker, platform)) for _ in range(AT_ONCE)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def test_an_outage_is_probed_one_call_at_a_time_less_and_less_often_and_ends_without_a_herd() -> None:
    platform, lasts = Platform(), 60.0

    async def outage() -> tuple[list[float], list[float]]:
        """When probes came, and when calls came after it."""
        async with fleet(platform):
            await asyncio.sleep(1.0)
            platform.answer, began = lambda _: (500, None), now()
            await asyncio.sleep(0.4)
            assert platform.under_way == 0
            assert sum(call >= began for call in platform.calls) <= MEMBERS * (AT_ONCE + THRESHOLD)
            spent, platform.most = len(platform.calls), 0
            await asyncio.sleep(lasts)
            await until_async(lambda: not platform.under_way, what="the end of a probe")
            assert platform.most == 1
            probes, before = platform.calls[spent:], len(platform.calls)
            platform.answer, platform.takes = lambda _: (200, None), 0.3  # Longer than a rest between two looks.
            await until_async(lambda: len(platform.calls) >= before + 200, what="calls after the outage")
            return probes, platform.calls[before:]

    with capture_logs() as logs:
        probes, after = in_own_time(outage())
    gaps = [later - earlier - 0.05 for earlier, later in pairwise(probes)]
    for number, gap in enumerate(gaps, start=2):
        assert PAUSES.wait(number, 0.0) - ROUNDING <= gap <= PAUSES.wait(number, 1.0) + SOON
    assert len(probes) >= 4
    rounds = [sum(start <= call - after[0] < start + 0.3 for call in after) for start in (0.0, 0.3, 0.6, 0.9)]
    # All at once would be forty.
    assert rounds[0] == 1
    assert all(many <= 2 * (MEMBERS + few) for few, many in pairwise(rounds))
    events = [entry["event"] for entry in logs]
    assert events.count("platform_paused") == len(probes) + 1
    assert events.count("platform_probed") == len(probes) + 1
    assert events.count("platform_resumed") == 1


def test_a_pause_that_is_asked_for_is_kept_to_the_moment_by_all_and_cost_nobody_more_calls() -> None:
    platform, asked = Platform(), list[float]()

    def answer(number: int) -> tuple[int, float | None]:
        if number < 200 or asked:
            return 200, None
        asked.append(now() + platform.takes)
        return 429, 20.0

    async def paused() -> list[float]:
        platform.answer = answer
        async with fleet(platform):
            await asyncio.sleep(25.0)
        return [call - asked[0] for call in platform.calls if call > asked[0]]

    told = 3 * LATENCY  # Written, published, heard.
    later = [call for call in in_own_time(paused()) if call > told]
    assert 20.0 + MARGIN_SECONDS - ROUNDING <= later[0] <= 20.0 + MARGIN_SECONDS + SOON
    assert later[1] - later[0] >= platform.takes - ROUNDING  # It waited for the first one's answer.


def test_one_answer_in_four_that_is_a_failure_pauses_nobody() -> None:
    platform = Platform()

    async def working() -> None:
        platform.answer = lambda number: (200 if number % 4 else 500, None)
        async with fleet(platform):
            await asyncio.sleep(10.0)

    with capture_logs() as logs:
        in_own_time(working())
    assert len(platform.calls) > 1_000
    assert logs == []
