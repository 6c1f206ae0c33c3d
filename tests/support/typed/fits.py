"""What type checkers have to accept beside the packages of tests/examples; see integration/project/test_typing.py."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import assert_type

from credhook import (
    AsyncContext,
    Backoff,
    Context,
    FailedRun,
    FetchedEvent,
    GiveUp,
    Handlers,
    Issuance,
    Presentation,
    Retry,
    SyncContext,
)
from credhook.testing import event as make
from credhook.testing import run, run_event

handlers = Handlers("accounts")


@handlers.on("openid4vc.issuance.completed", "openid4vc.issuance.failed")
async def for_issuances(event: FetchedEvent[Issuance], context: AsyncContext) -> None:
    assert_type(event.details, Issuance)
    assert_type(context.state, None)
    if event.details.is_("revoked"):
        raise GiveUp("revoked")
    if event.details.status == "suspended":  # A word that nobody has seen yet.
        raise GiveUp
    if event.details.is_("offered", "PENDING"):
        raise Retry(after=60, reason="not completed yet")


@handlers.on("openid4vc.verification.data", timeout=5, retries=3, give_up_on=(KeyError,), concurrency=4)
async def for_presentations(event: FetchedEvent[Presentation], context: AsyncContext) -> None:
    assert_type(event.details, Presentation)
    context.log.info("account_opened", person=event.details.credentials[0].attributes["givenName"])


@handlers.on("openid4vc.verification.data", after=for_presentations, backoff=Backoff(first=1, longest=60))
def in_a_thread(event: FetchedEvent[Presentation], context: SyncContext) -> None:
    for user in context.api.users.list():
        context.log.info("user", id=user.id)


@handlers.on("openid4vc.issuance.completed", "openid4vc.verification.data", condition=lambda event: event.attempt < 3)
async def for_either(event: FetchedEvent[Issuance | Presentation], context: AsyncContext) -> None:
    assert_type(event.details, Issuance | Presentation)


@handlers.on("openid4vc.issuance.failed", name="steps", rate="10/m")
async def saves(event: FetchedEvent[Issuance], context: AsyncContext) -> None:
    await context.progress.save({"step": (context.progress.value or {"step": 0})["step"] + 1})


@handlers.on("openid4vc.issuance.failed")
def saves_in_a_thread(event: FetchedEvent[Issuance], context: SyncContext) -> None:
    context.progress.save([1, 2])


@handlers.on("openid4vc.verification.data", condition=lambda event: event.details.trusted)
async def for_trusted(event: FetchedEvent[Presentation], context: AsyncContext) -> None: ...


@handlers.on("*", condition=lambda event: event.details.is_("completed", "verified"))
async def for_all(event: FetchedEvent, context: Context) -> None:
    print(event.details.status, context.stale)


connected = Handlers[list[str]]("connected")


@connected.lifespan
async def connections() -> AsyncIterator[list[str]]:
    yield ["a connection"]


@asynccontextmanager
async def managed() -> AsyncIterator[list[str]]:
    yield ["a connection"]


Handlers[list[str]]("managed").lifespan(managed)


@handlers.on_error
async def reports(failure: FailedRun, context: AsyncContext) -> None:
    assert_type(failure.event.details, Issuance | Presentation | None)
    assert_type(failure.error, Exception)


@handlers.on_give_up
def tells(failure: FailedRun, context: SyncContext) -> None:
    context.log.info("given_up", handler=failure.handler, again=failure.will_retry)


connected.on_give_up(tells)


def test_details() -> None:
    assert_type(make("openid4vc.issuance.completed", status="suspended").details, Issuance)
    assert_type(make("openid4vc.verification.data", "scripts", is_valid=False).details, Presentation)
    for event_type in ("openid4vc.issuance.completed", "openid4vc.verification.data"):
        assert_type(make(event_type).details, Issuance | Presentation)
    assert run(for_issuances, make("openid4vc.issuance.completed")).outcome == "done"
    assert run_event(make("openid4vc.issuance.completed"), handlers, attempts=1).state == "waiting"
