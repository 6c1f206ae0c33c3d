"""What type checkers have to accept of a handler author; see tests/integration/test_typing.py."""

from dataclasses import dataclass
from typing import assert_type

from credhook import (
    AsyncContext,
    Backoff,
    Context,
    FetchedEvent,
    GiveUp,
    Handlers,
    Issuance,
    Presentation,
    SyncContext,
    UserRequest,
)


@dataclass
class Database:
    url: str

    def insert(self, key: str, name: object) -> None: ...


handlers = Handlers("accounts")


@handlers.on("openid4vc.issuance.completed", "openid4vc.issuance.failed")
async def for_issuances(event: FetchedEvent[Issuance], context: AsyncContext) -> None:
    assert_type(event.details, Issuance)
    assert_type(context.state, None)
    if event.details.is_("revoked"):
        raise GiveUp("revoked")


@handlers.on("openid4vc.verification.data", timeout=5, retries=3, give_up_on=(KeyError,), concurrency=4)
async def for_presentations(event: FetchedEvent[Presentation], context: AsyncContext) -> None:
    assert_type(event.details, Presentation)
    person = event.details.credentials[0].attributes
    await context.api.users.create(UserRequest(username=event.resource_id, first_name=person["givenName"]))
    context.log.info("account_opened", key=context.idempotency_key)


@handlers.on("openid4vc.verification.data", after=for_presentations, backoff=Backoff(first=1, longest=60))
def in_a_thread(event: FetchedEvent[Presentation], context: SyncContext) -> None:
    for user in context.api.users.list():
        context.log.info("user", id=user.id)


@handlers.on("openid4vc.issuance.completed", "openid4vc.verification.data", condition=lambda event: event.attempt < 3)
async def for_either(event: FetchedEvent[Issuance | Presentation], context: AsyncContext) -> None:
    assert_type(event.details, Issuance | Presentation)


@handlers.on("*")
async def for_all(event: FetchedEvent, context: Context) -> None:
    print(event.details.status, context.stale)


stored = Handlers[Database]("stored")


@stored.startup
async def connect() -> Database:
    return Database("postgresql://localhost")


@stored.shutdown
async def close(database: Database) -> None: ...


@stored.on("openid4vc.verification.data")
async def store(event: FetchedEvent[Presentation], context: AsyncContext[Database]) -> None:
    assert_type(context.state, Database)
    context.state.insert(context.idempotency_key, event.details.credentials[0].attributes.get("givenName"))


@stored.on("openid4vc.issuance.expired")
def forget(event: FetchedEvent[Issuance], context: SyncContext[Database]) -> None:
    context.state.insert(context.idempotency_key, None)
