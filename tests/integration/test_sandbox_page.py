"""The start page, as a browser and as a hostile page would use it."""

import re
from collections.abc import Iterator

import httpx
import pytest
from serving import Platform, platform

FORM = {"grant_type": "client_credentials", "client_id": "sandbox", "client_secret": "sandbox"}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platform(tmp_path_factory.mktemp("sandbox"), "--forge", "1") as running:
        yield running


def test_the_page_has_a_button_for_each_event_and_pressing_one_makes_it_happen(sandbox: Platform) -> None:
    with httpx.Client(base_url=sandbox.url) as browser:
        values = set(re.findall(r'<button name="eventType" value="([^"]+)"', browser.get("/").text))
        assert len(values) == 10
        for value in sorted(values):
            pressed = browser.post("/", data={"eventType": value}, headers={"origin": sandbox.url})
            assert (pressed.status_code, pressed.headers["location"]) == (303, "/")
        page = browser.get("/").text
        for status in ("offered", "partiallyIssued", "requested", "rejected"):
            assert f"<td>{status}</td>" in page


def test_a_resource_is_moved_by_its_own_buttons(sandbox: Platform) -> None:
    id_ = sandbox.make("openid4vc.issuance.offered")
    form = {"eventType": "openid4vc.issuance.expired", "resourceId": id_}
    assert httpx.post(f"{sandbox.url}/", data=form).status_code == 303
    again = httpx.post(f"{sandbox.url}/", data=form)
    assert again.status_code == 409
    assert "cannot follow" in again.text or "announced" in again.text


def test_the_page_runs_nothing_and_frames_nowhere(sandbox: Platform) -> None:
    answer = httpx.get(f"{sandbox.url}/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "<script" not in answer.text
    assert " style=" not in answer.text


def test_what_others_have_written_is_escaped(sandbox: Platform) -> None:
    with httpx.Client(base_url=sandbox.url) as client:
        granted = client.post("/realms/sandbox/protocol/openid-connect/token", data=FORM).json()
        client.headers["authorization"] = f"Bearer {granted['access_token']}"
        preset = {
            "credentialFormat": "mdoc",
            "templateName": "x",
            "code": "hostile",
            "templateDescription": "x",
            "type": "<script>alert(1)</script>",
            "templateAttributes": {},
            "validUntil": {"future": {"days": 0, "months": 0, "years": 0}},
        }
        client.post("/me-creds/api/presets/credentials", json=preset).raise_for_status()
        told = client.post("/", data={"eventType": "openid4vc.issuance.failed", "resourceId": "<img src=x>"})
        assert told.status_code == 404
        for page in (client.get("/").text, told.text):
            assert "&lt;script&gt;alert(1)" in page
            assert "<script" not in page
            assert "<img" not in page


def test_faults_that_are_on_are_named(sandbox: Platform) -> None:
    assert "Faults that are on: forge=1" in httpx.get(f"{sandbox.url}/").text


@pytest.mark.parametrize("form", [{}, {"eventType": "x"}, {"eventType": "openid4vc.issuance.failed", "count": "9"}])
def test_a_form_that_is_not_of_the_page_is_refused(sandbox: Platform, form: dict[str, str]) -> None:
    assert httpx.post(f"{sandbox.url}/", data=form).status_code == 400


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"origin": "null"}, {"host": "evil.example:8700"}]
)
@pytest.mark.parametrize("path", ["/", "/sandbox/events", "/sandbox/faults"])
def test_another_site_can_press_no_button(sandbox: Platform, path: str, headers: dict[str, str]) -> None:
    answer = httpx.post(f"{sandbox.url}{path}", json={"eventType": "openid4vc.issuance.failed"}, headers=headers)
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (403, "FORBIDDEN")


def test_a_name_of_its_own_is_let_in_when_it_was_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    with platform(tmp_path_factory.mktemp("named"), "--allowed-host", "sandbox") as running:
        allowed = httpx.get(f"{running.url}/", headers={"host": "sandbox:8700"})
        other = httpx.get(f"{running.url}/", headers={"host": "other:8700"})
    assert (allowed.status_code, other.status_code) == (200, 403)
