"""The handlers against a sandbox in this process, without network and Redis."""

from onboarding import create_user, link_user

from credhook.testing import FakeApi, assert_idempotent, event, run
from credhook.testing.plugin import Run

COMPLETED = "openid4vc.issuance.completed"


def test_a_completed_issuance_has_a_user(credhook_run: Run, credhook_api: FakeApi) -> None:
    completed = event(COMPLETED)
    assert credhook_run(create_user, completed).outcome == "done"
    assert credhook_run(link_user, completed).outcome == "done"
    (user,) = credhook_api.effects()["users"]
    assert (user["externalIdentifier"], user["linked"]) == (completed.resource_id, True)


def test_details_that_lag_behind_are_looked_at_again() -> None:
    result = run(create_user, event(COMPLETED, status="offered"))
    assert (result.outcome, result.retry_in, result.calls) == ("waiting", 30, ())


def test_a_busy_platform_is_asked_again(credhook_run: Run, credhook_api: FakeApi) -> None:
    credhook_api.fail(429, retry_after=60)
    result = credhook_run(create_user, event(COMPLETED), attempts="until settled")
    assert (result.outcome, result.attempts) == ("done", 2)


def test_a_request_that_the_platform_refuses_is_given_up(credhook_run: Run, credhook_api: FakeApi) -> None:
    credhook_api.fail(409)
    result = credhook_run(create_user, event(COMPLETED))
    assert (result.outcome, result.cause) == ("dead", "InvalidRequest 409")


def test_it_may_run_again() -> None:
    assert_idempotent(create_user, event(COMPLETED))
