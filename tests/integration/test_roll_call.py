"""Who no longer says that it is alive: its events are put back, once, by one who may judge. Redis is real."""

from collections.abc import AsyncIterator

import pytest
from accepting import record
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ConnectionError  # noqa: A004  Redis's own.
from structlog.testing import capture_logs

from credhook.events import Event
from credhook.receiver.inbox import Inbox
from credhook.store import Keys
from credhook.store.job import job_id
from credhook.worker.commands.history.records import records
from credhook.worker.queue.claim import Worker
from credhook.worker.queue.claims import Claims
from credhook.worker.queue.reclaim import RollCall

COMPLETED = "openid4vc.issuance.completed"
INDEX = Keys("credhook")
LEASE = 15.0


class Member:
    """A worker process as far as others hear of it, on a clock of the test's own."""

    def __init__(self, redis: Redis, token: str) -> None:
        self.now = 1_000.0
        self.redis = redis
        self.roll_call = RollCall(
            redis, queue="credhook", token=token, lease=LEASE, retention=3_600, clock=lambda: self.now
        )

    def calls(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += self.roll_call.interval
            self.roll_call.call()


def falls_silent(redis: Redis, token: str, seconds: float = 7.0) -> None:
    """Let it have called for the last time so long ago."""
    redis.zincrby(INDEX.workers, -1_000 * seconds, token)


@pytest.fixture
async def inbox(async_redis: AsyncRedis) -> AsyncIterator[Inbox]:
    inbox = Inbox(async_redis, queue="credhook", retention=3_600)
    yield inbox
    await inbox.aclose()


async def hold(async_redis: AsyncRedis, token: str, number: int) -> list[str]:
    claims = Claims(async_redis, queue="credhook", lease=LEASE, retention=3_600, worker=Worker(token, token))
    return [claim.event_id for claim in (await claims.take(number, urgent=0)).claims]


async def test_what_a_silent_worker_held_goes_first_and_speaks_against_nobody(
    async_redis: AsyncRedis, redis_client: Redis, inbox: Inbox
) -> None:
    for one in ("m1", "m2", "later"):
        await inbox.accept(one, Event(COMPLETED, f"iss_{one}"))
    gone, here = Member(redis_client, "gone"), Member(redis_client, "here")
    gone.calls()
    assert await hold(async_redis, "gone", 2) == ["m1", "m2"]
    here.calls(5)
    falls_silent(redis_client, "gone")
    with capture_logs() as logs:
        here.calls()
    assert [entry["event"] for entry in logs] == ["worker_missed", "death_noted"]
    assert (logs[1]["events"], logs[1]["put_back"]) == (2, 2)
    assert redis_client.lindex(INDEX.jobs, -1) == job_id("later").encode()
    assert sorted(await hold(async_redis, "here", 2)) == ["m1", "m2"]
    assert [one["attempts"] for one in records(redis_client, INDEX, ("m1", "m2"))] == [2, 2]
    for one in ("m1", "m2"):
        assert not {"deaths", "killed"} & record(redis_client, one).keys()


async def test_each_death_is_told_to_one_process_only(redis_client: Redis) -> None:
    gone, *others = (Member(redis_client, token) for token in ("gone", "one", "two"))
    gone.calls()
    for one in others:
        one.calls(5)
    falls_silent(redis_client, "gone")
    with capture_logs() as logs:
        for one in others:
            one.calls(2)
    assert [entry["event"] for entry in logs].count("worker_missed") == 1


async def test_who_was_away_itself_judges_nobody_until_all_have_had_their_turn(redis_client: Redis) -> None:
    """As after an outage of Redis, when nobody has been heard."""
    first, second = Member(redis_client, "first"), Member(redis_client, "second")
    for one in (first, second):
        one.calls(5)
        falls_silent(redis_client, one.roll_call._token, 60)
        one.now += 60
    with capture_logs() as logs:
        first.calls(2)
        second.calls(1)
        first.calls(5)
        second.calls(5)
    assert logs == []


async def test_a_new_process_does_not_judge_at_once(redis_client: Redis) -> None:
    Member(redis_client, "gone").calls()
    falls_silent(redis_client, "gone")
    new = Member(redis_client, "new")
    with capture_logs() as logs:
        new.calls(3)
        assert logs == []
        new.calls()
    assert [entry["event"] for entry in logs] == ["worker_missed", "death_noted"]


async def test_who_leaves_is_not_missed(redis_client: Redis) -> None:
    gone, here = Member(redis_client, "gone"), Member(redis_client, "here")
    gone.calls()
    gone.roll_call.leave()
    here.calls(5)
    assert redis_client.zrange(INDEX.workers, 0, -1) == [b"here"]
    assert 0 < redis_client.ttl(INDEX.workers) <= 86_400


async def test_a_key_that_is_somebody_elses_ends_nothing(redis_client: Redis) -> None:
    redis_client.set(INDEX.workers, "a text")
    here = Member(redis_client, "here")
    here.calls(5)
    assert redis_client.get(INDEX.workers) == b"a text"


async def test_a_call_that_redis_did_not_answer_is_a_break(redis_client: Redis) -> None:
    gone, here = Member(redis_client, "gone"), Member(redis_client, "here")
    gone.calls()
    here.calls(5)
    falls_silent(redis_client, "gone")
    answers = here.roll_call._script

    def no_answer(**_: object) -> None:
        raise ConnectionError

    here.roll_call._script = no_answer  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(ConnectionError):
            here.calls()
    here.roll_call._script = answers
    with capture_logs() as logs:
        here.calls(3)
        assert logs == []
        here.calls()
    assert [entry["event"] for entry in logs] == ["worker_missed", "death_noted"]


@pytest.mark.parametrize(("lease", "silence"), [(1.0, 1.0), (6.0, 6.0), (15.0, 6.0), (300.0, 120.0)])
def test_a_process_may_be_silent_for_part_of_its_lease(redis_client: Redis, lease: float, silence: float) -> None:
    call = RollCall(redis_client, queue="credhook", token="t", lease=lease, retention=3_600)
    assert call.interval == silence / 3
