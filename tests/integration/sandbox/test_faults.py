"""Faults of the API, switched on while the sandbox runs."""

import time
from typing import Any

import httpx
import pytest

from support import plain
from support.platform.sandbox_api import authorize, data, listed, refused
from support.process.serving import Platform, platform
from support.waiting import until

LIST = "/me-creds/api/credentials"

pytestmark = pytest.mark.usefixtures("swept")


def presentation(api: httpx.Client, id_: str) -> Any:
    return data(api.get(f"/me-creds/api/presentations/{id_}"))


def test_faults_are_shown_switched_and_cleared(tmp_path: Any) -> None:
    with platform(tmp_path, "--duplicate", "2", "--read-once", "--envelopes", "swapped") as sandbox:
        url = f"{sandbox.url}/sandbox/faults"
        shown = plain.get(url).json()["data"]
        assert (shown["duplicate"], shown["readOnce"], shown["envelopes"]) == (2, True, "swapped")
        changed = plain.post(url, json={"slowMs": 1.0}).json()["data"]
        assert changed == shown | {"slowMs": 1}
        cleared = plain.delete(url).json()["data"]
        assert (cleared["duplicate"], cleared["readOnce"], cleared["slowMs"]) == (1, False, 0)
        for wrong in ({"slow": 1}, {"drop": -1}, {"drop": 0.5}, {"slowMs": 1_000_001}, {"retryAfter": 3_601}):
            assert plain.post(url, json=wrong).status_code == 400


@pytest.mark.parametrize(
    ("faults", "statuses", "error"),
    [
        # The second request still has the token that was revoked.
        ({"unauthorized": 1}, [401, 401], (401, "UNAUTHORIZED", "Unauthorized")),
        ({"serverErrors": 3}, [500, 500, 500, 200], (500, "INTERNAL_SERVER_ERROR", "Internal Server Error")),
        ({"rateLimit": 1, "retryAfter": 3}, [429, 200], (429, "TOO_MANY_REQUESTS", "Too Many Requests")),
    ],
)
def test_requests_are_refused_as_often_as_was_asked_for(
    sandbox: Platform, api: httpx.Client, faults: dict[str, int], statuses: list[int], error: tuple[int, str, str]
) -> None:
    sandbox.faults(**faults)
    answers = [api.get(LIST) for _ in statuses]
    assert [answer.status_code for answer in answers] == statuses
    refused(answers[0], *error)
    if "retryAfter" in faults:
        assert answers[0].headers["retry-after"] == "3"
    authorize(api)
    assert api.get(LIST).status_code == 200


def test_only_the_platform_is_slow_and_not_the_sandboxs_own_routes(sandbox: Platform, api: httpx.Client) -> None:
    sandbox.faults(slowMs=200)
    began = time.monotonic()
    assert api.get(LIST).status_code == 200
    assert time.monotonic() - began >= 0.2
    sandbox.faults(slowMs=600_000, serverErrors=1)  # Longer than this client waits.
    assert api.get("/sandbox/deliveries").status_code == 200


def test_details_are_missing_or_old_at_first(sandbox: Platform, api: httpx.Client) -> None:
    sandbox.faults(detailsLagMs=600_000)
    path = f"/me-creds/api/presentations/{sandbox.make('openid4vc.verification.data')}"
    assert api.get(path).status_code == 404
    sandbox.faults(detailsLagMs=1)
    until(lambda: api.get(path).status_code == 200, what="its time")
    sandbox.clear()
    id_, issuance = sandbox.make("openid4vc.verification.requested"), sandbox.make("openid4vc.issuance.offered")
    sandbox.faults(detailsStaleMs=600_000)
    sandbox.make("openid4vc.issuance.completed", resourceId=issuance)
    assert data(api.get(f"{LIST}/{issuance}"))["status"] == "offered"
    sandbox.make("openid4vc.verification.verified", resourceId=id_)
    assert presentation(api, id_)["status"] == "requested"
    assert api.get(f"/me-creds/api/presentations/{sandbox.make('openid4vc.verification.data')}").status_code == 404
    sandbox.faults(detailsStaleMs=1)
    until(lambda: presentation(api, id_)["status"] == "verified", what="its time")


def test_attributes_are_read_once(sandbox: Platform, api: httpx.Client) -> None:
    sandbox.faults(readOnce=True)
    id_ = sandbox.make("openid4vc.verification.data")
    assert presentation(api, id_)["credentials"][0]["attributes"]
    again = presentation(api, id_)
    assert (again["status"], again["credentials"][0]["attributes"]) == ("verified", {})
    assert again in listed(api, "presentations")
    id_ = sandbox.make("openid4vc.verification.requested")
    sandbox.faults(readOnce=True, detailsStaleMs=60_000)
    sandbox.make("openid4vc.verification.data", resourceId=id_)
    assert presentation(api, id_)["credentials"] == []
    sandbox.faults(detailsStaleMs=0)
    assert [one["attributes"] for one in presentation(api, id_)["credentials"]] == [{}]
