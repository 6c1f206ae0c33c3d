"""The platform in this process, as handlers under test meet it, and pytest's fixtures for it."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import AsyncMock

import pytest

from credhook import AsyncContext, EndpointRequest, NotFound, TrustedEntityRequest, Unavailable, UserRequest
from credhook.testing import ApiCall, FakeApi, arun, event
from credhook.worker.handlers.arguments import Context, FetchedEvent, SyncContext
from support.platform import presets

ADA = UserRequest(email="ada@example.com", external_identifier="crm/7")
USERS = "/consumer-onboarding/api/users"


async def test_fake_platform_remembers_its_calls() -> None:
    api = FakeApi()
    created = await api.users.create(ADA)
    assert not created.existed
    assert (await api.users.create(ADA)).existed
    assert [user.email for user in await api.users.list()] == ["ada@example.com"]
    with pytest.raises(NotFound):
        await api.users.external_identifier("grace hopper")
    body = {"email": "ada@example.com", "externalIdentifier": "crm/7"}
    assert api.calls == (
        ("POST", USERS, body, 201),
        ("POST", USERS, body, 201),
        ("GET", USERS, None, 200),
        ("GET", f"{USERS}/grace hopper/external-identifier", None, 404),
    )


def test_plain_functions_have_it_without_a_loop_and_on_several_threads() -> None:
    api = FakeApi()
    api.sync.users.create(ADA)
    with ThreadPoolExecutor(2) as threads:
        found = [each.result() for each in [threads.submit(api.sync.users.list) for _ in range(4)]]
    assert [len(users) for users in found] == [1] * 4
    assert len(asyncio.run(api.users.list())) == 1


def test_an_operation_that_the_sandbox_lacks_is_answered_as_told() -> None:
    api, path = FakeApi(), "/me-creds/api/offers"
    with pytest.raises(NotFound):
        api.sync.request("POST", path, {"templateId": "t"})
    for one in ("iss_0", "iss_1"):  # The last one counts.
        api.answer(path, {"data": {"id": one}})
    api.fail()  # Before what is answered there.
    with pytest.raises(Unavailable):
        api.sync.request("POST", path)
    for _ in range(2):
        assert api.sync.request("POST", path, {"templateId": "t"}) == {"data": {"id": "iss_1"}}
    assert api.calls[2:] == (ApiCall("POST", path, {"templateId": "t"}, 200),) * 2


async def test_a_handler_gets_the_api_as_the_test_has_patched_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lists(_: Any, context: AsyncContext) -> None:
        assert await context.api.users.list() == ()

    api, patched = FakeApi(), AsyncMock(return_value=())
    monkeypatch.setattr(api.users, "list", patched)
    assert (await arun(lists, event("openid4vc.issuance.completed"), api=api)).outcome == "done"
    patched.assert_awaited_once()


def test_fake_platform_refuses_impossible_answers() -> None:
    with pytest.raises(ValueError, match="begin with /"):
        FakeApi().answer("me-creds/api/offers", {})
    for status in (200, "503"):
        with pytest.raises(ValueError, match="status="):
            FakeApi().fail(status)  # type: ignore[arg-type]


def test_calls_fail_as_they_are_told_to_and_then_no_more() -> None:
    api = FakeApi()
    api.fail(429, retry_after=7)
    api.fail(times=2)
    api.fail(retry_after=0)
    api.time_out()
    failed = []
    for _ in range(5):
        with pytest.raises(Unavailable) as error:
            api.sync.users.list()
        failed.append((error.value.status, error.value.retry_after, error.value.cause))
    assert failed == [(429, 7.0, ""), *[(503, None, "")] * 2, (503, 0.0, ""), (None, None, "timeout")]
    assert api.sync.users.list() == ()
    assert [call.status for call in api.calls] == [429, 503, 503, 503, None, 200]


@pytest.mark.parametrize("event_type", ["openid4vc.issuance.completed", "openid4vc.verification.data"])
def test_an_events_resource_can_be_read(event_type: str) -> None:
    api, made = FakeApi(), event(event_type, status="revoked")
    api.know(made)
    nouns = api.sync.issuances if ".issuance." in event_type else api.sync.presentations
    assert nouns.get(made.resource_id) == made.details
    with pytest.raises(NotFound):
        nouns.get("another")


async def activate(event: FetchedEvent, context: Context) -> None:
    await context.api.users.create(UserRequest(username=event.resource_id))


def activate_in_a_thread(event: FetchedEvent, context: SyncContext) -> None:
    context.api.users.create(UserRequest(username=event.resource_id))


async def test_a_handler_can_be_called_by_the_test(credhook_api: FakeApi, credhook_context: Any) -> None:
    made = event("openid4vc.verification.data", webhook_id="m1")
    given = credhook_context(activate, made, stale=True, state=7)
    await activate(made, given)
    given.log.info("written to nowhere")
    assert (given.idempotency_key, given.stale, given.state) == ("m1:test.activate", True, 7)
    assert await credhook_api.presentations.get(made.resource_id) == made.details


def test_a_plain_one_can_be_as_well(credhook_api: FakeApi, credhook_context: Any) -> None:
    made = event("openid4vc.verification.data")
    activate_in_a_thread(made, credhook_context(activate_in_a_thread, made))
    assert [user.username for user in credhook_api.sync.users.list()] == [made.resource_id]


def test_fake_platform_compares_effects_without_ids_and_times() -> None:
    def made(names: str) -> Any:
        api = FakeApi()
        api.sync.users.create(ADA)
        for name in names:
            api.sync.trusted_entities.create(TrustedEntityRequest(name=name))
        api.sync.endpoints.create(EndpointRequest(url="https://example.com/hooks"))
        api.sync.request("POST", "/me-creds/api/presets/credentials", presets.SD_JWT)
        api.sync.request("POST", "/sandbox/templates/sandbox:permit/archive")
        csr = api.sync.request("GET", "/sandbox/csrs")["data"][0]["id"]
        signed = api.sync.request("POST", f"/sandbox/csrs/{csr}/sign")["data"]
        api.sync.request("POST", f"/me-creds/api/certificates/csrs/{csr}/import", signed)
        for kind in ("issuance.completed", "verification.data"):
            api.sync.request("POST", "/sandbox/events", {"eventType": f"openid4vc.{kind}"})
        effects = api.effects()
        return effects, [noun for noun, records in effects.items() if records == nothing[noun]]

    nothing = FakeApi().effects()
    effects, untouched = made("ab")
    assert (effects, untouched) == made("ba") != made("aba")
    assert [entity["name"] for entity in effects["trusted_entities"]] == ["a", "b"]
    assert not untouched
    nouns = {"certificates", "endpoints", "issuances", "presentations", "presets", "trusted_entities", "users"}
    assert nothing.keys() == nouns
    gc.collect()  # An open database would be told of here.
