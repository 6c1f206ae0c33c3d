"""pytest's fixtures, as whoever has credhook installed finds them."""

from typing import Any

from credhook import UserRequest
from credhook.testing import FakeApi, event
from credhook.worker.handlers.registry import Context, FetchedEvent, SyncContext


async def activate(event: FetchedEvent, context: Context) -> None:
    await context.api.users.create(UserRequest(username=event.resource_id))


def activate_in_a_thread(event: FetchedEvent, context: SyncContext) -> None:
    context.api.users.create(UserRequest(username=event.resource_id))


def test_they_share_one_platform(credhook_api: FakeApi, credhook_run: Any) -> None:
    made = event("openid4vc.issuance.completed")
    assert credhook_run(activate, made).outcome == "done"
    assert len(credhook_run(activate_in_a_thread, made, attempts=1).calls) == 1
    assert [call.status for call in credhook_api.calls] == [201, 201]
    assert len(credhook_api.effects()["users"]) == 1
    assert credhook_run(activate, made, api=FakeApi()).outcome == "done"
    assert len(credhook_api.calls) == 2


async def test_a_handler_can_be_called_by_the_test(credhook_api: FakeApi, credhook_context: Any) -> None:
    made = event("openid4vc.verification.data", webhook_id="m1")
    given = credhook_context(activate, made, stale=True)
    await activate(made, given)
    given.log.info("written to nowhere")
    assert (given.idempotency_key, given.stale) == ("m1:test.activate", True)
    assert await credhook_api.presentations.get(made.resource_id) == made.details


def test_a_plain_one_can_be_as_well(credhook_api: FakeApi, credhook_context: Any) -> None:
    made = event("openid4vc.verification.data")
    activate_in_a_thread(made, credhook_context(activate_in_a_thread, made))
    assert [user.username for user in credhook_api.sync.users.list()] == [made.resource_id]
