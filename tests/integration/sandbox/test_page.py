"""The start page, as a browser without JavaScript uses it."""

import re

import pytest

from support import plain
from support.platform.sandbox_api import CREDS, USERS, authorized, data
from support.process.serving import Platform
from support.waiting import until


def test_start_page_has_a_working_button_for_each_event(sandbox: Platform) -> None:
    with plain.Client(base_url=sandbox.url) as browser:
        values = re.findall(r'<button name="eventType" value="([^"]+)"', browser.get("/").text)
        for value in dict.fromkeys(values[:10]):
            pressed = browser.post("/", data={"eventType": value})
            assert (pressed.status_code, pressed.headers["location"]) == (303, "/")
        page = browser.get("/").text
    for status in ("offered", "completed", "failed", "partiallyIssued", "requested", "verified", "rejected", "expired"):
        assert f"<td>{status}</td>" in page


def test_a_resource_is_moved_by_its_own_buttons(sandbox: Platform) -> None:
    id_ = sandbox.make("openid4vc.issuance.offered")
    (row,) = re.findall(rf"<tr><td>{id_}.*?</tr>", plain.get(sandbox.url).text, re.DOTALL)
    values = set(re.findall(r'value="openid4vc.issuance.(\w+)"', row))
    assert values == {"completed", "failed", "expired", "partiallyIssued"}
    form = {"eventType": "openid4vc.issuance.expired", "resourceId": id_}
    assert plain.post(f"{sandbox.url}/", data=form).status_code == 303
    again = plain.post(f"{sandbox.url}/", data=form)
    assert again.status_code == 400
    assert f"This cannot happen to {id_}: openid4vc.issuance.expired has been announced" in again.text
    assert plain.post(f"{sandbox.url}/", data={"eventType": "x"}).status_code == 400


@pytest.mark.parametrize(("headers", "status"), [
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://["}, 403),
    ({"Sec-Fetch-Site": "same-origin", "Origin": "OWN"}, 303),
    ({"Sec-Fetch-Site": "none"}, 303),
])  # fmt: skip
def test_a_page_of_another_site_makes_nothing_happen(sandbox: Platform, headers: dict[str, str], status: int) -> None:
    given = {name: value.replace("OWN", sandbox.url) for name, value in headers.items()}
    with plain.Client(base_url=sandbox.url, headers=given) as browser:
        assert browser.post("/", data={"eventType": "openid4vc.issuance.offered"}).status_code == status
        assert browser.get("/").status_code == 200


@pytest.mark.usefixtures("swept")
def test_start_page_escapes_texts_from_outside(sandbox: Platform) -> None:
    sandbox.faults(drop=2, forge=1)
    with authorized(sandbox) as client:
        url = "https://127.0.0.1:9/<script>alert(1)</script>"
        client.post(f"{CREDS}/endpoints", json={"url": url}).raise_for_status()
        old, new = (sandbox.make("openid4vc.issuance.failed") for _ in range(2))
        onboarded = len(data(client.get(USERS)))

        def page() -> str:
            text = client.get("/").text
            return text if "forged: wrongKey" in text and "dropped on the way" in text else ""

        shown = until(page, what="the delivery and its forgery")
    assert "are on: drop=2 forge=1 </p>" in shown
    assert "<p>2 under way</p>" in shown
    assert f"<p>{onboarded} users onboarded" in shown
    assert shown.index(f"<tr><td>{new}") < shown.index(f"<tr><td>{old}")
    assert "<td>sandbox:permit</td>" in shown
    assert "<td>CN=Sandbox Issuer P-256</td>" in shown
    assert "&lt;script&gt;alert(1)" in shown
    assert "<script" not in shown
