"""Workers announce their handlers, and say so when those of others go on differing. Redis is real, and its clock is."""

import json
from typing import Any

import pytest
from planting import INDEX
from redis import Redis
from structlog.testing import capture_logs

from credhook.worker.handlers.registry import Handlers, Registry
from credhook.worker.process.announcement import DEPLOY, Announcements
from credhook.worker.queue.reconcile import Reconciler

COMPLETED, FAILED = "openid4vc.issuance.completed", "openid4vc.issuance.failed"


def announcing(redis: Redis, token: str, **wanted: str) -> Announcements:
    handlers: Any = Handlers("test")
    for name, event_type in wanted.items():

        async def handle(event: Any, context: Any) -> None: ...

        handle.__name__ = name
        handlers.on(event_type)(handle)
    registry = Registry([handlers])
    return Announcements(redis, queue="credhook", token=token, registry=registry, host=f"host-{token}", interval=5.0)


def ages(redis: Redis, token: str, *, since: float = 0.0, renewed: float = 0.0) -> None:
    """Let it have announced so many seconds earlier."""
    value: Any = redis.hget(INDEX.handlers, token)
    began, at, said = value.decode().split(" ", 2)
    moved = f"{int(began) - int(since * 1_000)} {int(at) - int(renewed * 1_000)} {said}"
    redis.hset(INDEX.handlers, token, moved)


def said(*announcements: Announcements, times: int = 1) -> list[Any]:
    with capture_logs() as logs:
        for _ in range(times):
            for one in announcements:
                one.announce()
    return logs


def test_what_is_announced_is_names_types_version_and_host_and_lasts_a_minute(redis_client: Redis) -> None:
    announcing(redis_client, "w1", one=COMPLETED).announce()
    value: Any = redis_client.hget(INDEX.handlers, "w1")
    announced = json.loads(value.decode().split(" ", 2)[2])
    assert announced.keys() == {"handlers", "version", "host", "lasts", "slots", "in_flight", "platform", "alike"}
    assert (announced["handlers"], announced["host"]) == ({"test.one": [COMPLETED]}, "host-w1")
    assert 0 < redis_client.pttl(INDEX.handlers) <= 60_000


def test_a_difference_is_said_once_by_each_after_the_time_that_a_deploy_takes(redis_client: Redis) -> None:
    old = announcing(redis_client, "old", one=COMPLETED, gone=FAILED)
    new = announcing(redis_client, "new", one=COMPLETED, come=FAILED)
    assert said(old, new, times=2) == []
    ages(redis_client, "old", since=DEPLOY)
    assert said(old, new) == []  # The new one has only just come.
    ages(redis_client, "new", since=DEPLOY)
    by_new, by_old = said(new, old, times=3)
    assert (by_old["event"], by_old["only_here"], by_old["only_elsewhere"]) == (
        "handlers_differ", ("test.gone",), ("test.come",),
    )  # fmt: skip
    assert (by_new["only_here"], by_new["only_elsewhere"]) == (("test.come",), ("test.gone",))
    assert by_new["hosts"] == ["host-old"]
    assert "CREDHOOK_HANDLERS" in by_new["hint"]


def test_workers_with_the_same_handlers_say_nothing(redis_client: Redis) -> None:
    both = [announcing(redis_client, token, one=COMPLETED) for token in ("w1", "w2")]
    said(*both)
    for token in ("w1", "w2"):
        ages(redis_client, token, since=2 * DEPLOY)
    assert said(*both) == []


@pytest.mark.parametrize("how", ["it has left", "it is silent"])
def test_who_is_gone_differs_from_nobody(redis_client: Redis, how: str) -> None:
    gone, here = announcing(redis_client, "gone", one=COMPLETED), announcing(redis_client, "here")
    said(gone, here)
    for token in ("gone", "here"):
        ages(redis_client, token, since=2 * DEPLOY)
    if how == "it has left":
        gone.leave()
    else:
        ages(redis_client, "gone", renewed=61)
    assert said(here) == []
    assert redis_client.hkeys(INDEX.handlers) == [b"here"]


@pytest.mark.parametrize("value", ["", "soon", "1 2", "1 99999999999999999999 {}", b"\xff 1 {}"])
def test_what_somebody_else_has_written_is_forgotten(redis_client: Redis, value: str | bytes) -> None:
    redis_client.hset(INDEX.handlers, "other", value)
    assert said(announcing(redis_client, "here")) == []
    assert redis_client.hkeys(INDEX.handlers) == [b"here"]


def test_an_announcement_that_says_nothing_is_passed_over(redis_client: Redis) -> None:
    here = announcing(redis_client, "here", one=COMPLETED)
    here.announce()
    seconds, _ = redis_client.time()
    redis_client.hset(INDEX.handlers, "other", f"1 {seconds * 1_000} {{}}")
    ages(redis_client, "here", since=DEPLOY)
    assert said(here) == []


def test_a_key_of_another_type_holds_nothing_up_and_is_named(redis_client: Redis) -> None:
    redis_client.set(INDEX.handlers, "a text")
    assert said(announcing(redis_client, "here")) == []
    with capture_logs() as logs:
        Reconciler(redis_client, queue="credhook", name="n", interval=1, retention=3_600).run()
    assert logs[0]["event"] == "keys_unusable"
    assert INDEX.handlers in logs[0]["keys"]
