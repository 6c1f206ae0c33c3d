"""Mistakes that type checkers must refuse, each marked `# refused`; see integration/project/test_typing.py."""

from collections.abc import AsyncIterator

from credhook import AsyncContext, FailedRun, FetchedEvent, Handlers, Issuance, Presentation, SyncContext
from credhook.testing import event as make

handlers = Handlers("accounts")
stored = Handlers[int]("stored")


@handlers.on("openid4vc.verification.data")  # refused
async def for_the_wrong_event(event: FetchedEvent[Issuance], context: AsyncContext) -> None: ...


@handlers.on("openid4vc.issuance.completed", "openid4vc.verification.data")  # refused
async def for_half_of_it(event: FetchedEvent[Issuance], context: AsyncContext) -> None: ...


@handlers.on("*")  # refused
async def for_a_part(event: FetchedEvent[Presentation], context: AsyncContext) -> None: ...


@handlers.on("openid4vc.issuance.complete")  # refused
async def of_a_misspelt_type(event: FetchedEvent[Issuance], context: AsyncContext) -> None: ...


@handlers.on("openid4vc.issuance.completed")  # refused
async def without_a_context(event: FetchedEvent[Issuance]) -> None: ...


@handlers.on("openid4vc.issuance.completed")  # refused
async def takes_its_details(event: Issuance, context: AsyncContext) -> None: ...


@handlers.on("openid4vc.issuance.completed")  # refused
async def of_the_threads_context(event: FetchedEvent[Issuance], context: SyncContext) -> None: ...


@handlers.on("openid4vc.issuance.completed")  # refused
def of_the_loops_context(event: FetchedEvent[Issuance], context: AsyncContext) -> None: ...


@handlers.on("openid4vc.issuance.completed")  # refused
def returns_something(event: FetchedEvent[Issuance], context: SyncContext) -> int:
    return 1


@handlers.on("openid4vc.issuance.completed")  # refused
def returns_some(event: FetchedEvent[Issuance], context: SyncContext) -> list[int]:
    return [1]


@handlers.on("openid4vc.issuance.completed", time_out=5)  # refused
async def of_a_misspelt_option(event: FetchedEvent[Issuance], context: AsyncContext) -> None: ...


@handlers.on("openid4vc.issuance.completed", timeout="5")  # refused
async def of_a_wrong_option(event: FetchedEvent[Issuance], context: AsyncContext) -> None: ...


@stored.on("openid4vc.issuance.completed")  # refused
async def of_another_state(event: FetchedEvent[Issuance], context: AsyncContext[str]) -> None: ...


@stored.on("openid4vc.issuance.completed")  # refused
async def of_a_narrower_state(event: FetchedEvent[Issuance], context: AsyncContext[bool]) -> None: ...


@stored.lifespan  # refused
async def yields_another_state() -> AsyncIterator[str]:
    yield ""


@stored.on_error  # refused
async def reports_with_another_state(failure: FailedRun, context: AsyncContext[str]) -> None: ...


@stored.on_give_up  # refused
def reports_without_a_context(failure: FailedRun) -> None: ...


@stored.startup  # refused
async def starts_with_another_state() -> str:
    return ""


@handlers.on("openid4vc.issuance.completed")
async def misreads_its_details(event: FetchedEvent[Issuance], context: AsyncContext) -> None:
    print(event.details.trusted)  # refused
    print(event.details.credentials[0].attributes)  # refused
    await context.api.users.creat()  # refused
    await context.progress.store(1)  # refused
    if event.details.is_("complete"):  # refused
        return


@handlers.on("openid4vc.issuance.completed", condition=lambda event: event.details.trusted)  # refused
async def of_a_condition_for_another_event(event: FetchedEvent[Issuance], context: AsyncContext) -> None: ...


@handlers.on("*", condition=lambda event: event.detail == 1)  # refused
async def of_a_misspelt_condition(event: FetchedEvent, context: AsyncContext) -> None: ...


def test_of_the_wrong_details() -> None:
    assert make("openid4vc.issuance.completed").details.trusted  # refused
    assert make("openid4vc.verification.data", colour="red")  # refused


@handlers.on("openid4vc.issuance.completed")
def awaits_in_a_thread(event: FetchedEvent[Issuance], context: SyncContext) -> None:
    print(context.api.users.list().cr_frame)  # refused
