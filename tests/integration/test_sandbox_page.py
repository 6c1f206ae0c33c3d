"""The start page, as a browser and as a hostile page would use it."""

import re
from collections.abc import Iterator
from pathlib import Path

import plain
import pytest
from browser import chromium
from sandbox_api import CREDS, authorized
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from serving import Platform, platform
from waiting import until

from credhook.sandbox.local.environment import free_port


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platform(tmp_path_factory.mktemp("sandbox"), "--forge", "1") as running:
        yield running


def test_the_page_has_a_button_for_each_event_and_pressing_one_makes_it_happen(sandbox: Platform) -> None:
    with plain.Client(base_url=sandbox.url) as browser:
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
    page = _page(sandbox)
    assert set(re.findall(rf'aria-label="(\w+) {id_}"', page)) == {"completed", "failed", "expired", "partiallyIssued"}
    assert "None yet. <code>credhook endpoints apply</code>" in page
    form = {"eventType": "openid4vc.issuance.expired", "resourceId": id_}
    assert plain.post(f"{sandbox.url}/", data=form).status_code == 303
    again = plain.post(f"{sandbox.url}/", data=form)
    assert again.status_code == 409
    assert f"This cannot happen to {id_}: openid4vc.issuance.expired has been announced" in again.text


def test_the_page_runs_nothing_and_frames_nowhere(sandbox: Platform) -> None:
    answer = plain.get(f"{sandbox.url}/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "<script" not in answer.text
    assert " style=" not in answer.text


def test_what_others_have_written_is_escaped(sandbox: Platform) -> None:
    with authorized(sandbox) as client:
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


def test_a_press_shows_its_delivery_before_anything_has_come_of_it(tmp_path: Path) -> None:
    with platform(tmp_path, "--delay-ms", "600000") as sandbox:
        _listen(sandbox)
        with plain.Client(base_url=sandbox.url, follow_redirects=True) as browser:
            page = browser.post("/", data={"eventType": "openid4vc.issuance.offered"}).text
            assert page.count('<span class="busy">under way</span>') == 1
            assert "1 under way." in page
            assert "waits to be retried" not in page
            browser.post("/sandbox/events", json={"eventType": "openid4vc.issuance.offered", "count": 20})
            assert "21 under way. The newest 20 are shown." in browser.get("/").text


def test_a_delivery_that_waits_for_its_retry_is_under_way_too(tmp_path: Path) -> None:
    with platform(tmp_path, "--drop", "1", "--time-scale", "1") as sandbox:
        _listen(sandbox)
        sandbox.make()
        page = until(lambda: _page_with(sandbox, "waits to be retried"), what="the failure")
    assert page.index("under way</span>") < page.index('<span class="warn">retrying</span>')
    assert re.search(r'<span class="bad">failing since <time datetime="[^"]+Z" [^>]+>[\d:]{8} UTC</time>', page)


def test_what_has_failed_for_good_stands_out(tmp_path: Path) -> None:
    with platform(tmp_path, "--drop", "1", "--forge", "1", "--time-scale", "0") as sandbox:
        _listen(sandbox)
        sandbox.make()
        page = until(lambda: _page_with(sandbox, "givenUp", "forged:"), what="the failure and the forgery")
    assert '<span class="bad">givenUp</span>' in page
    assert '<span class="bad">forged: ' in page
    assert '<span class="bad">switched off at <time ' in page
    assert "under way" not in page


def test_faults_that_are_on_are_named_and_switched_off(tmp_path: Path) -> None:
    with platform(tmp_path, "--forge", "1", "--drop", "2", "--read-once") as sandbox:
        assert "Faults that are on: drop=2, forge=1, readOnce=True" in _page(sandbox)
        assert plain.post(f"{sandbox.url}/", data={"clear": "drop"}).status_code == 303
        assert "Faults that are on: forge=1, readOnce=True" in _page(sandbox)
        assert plain.post(f"{sandbox.url}/", data={"clear": "all"}).status_code == 303
        assert "Faults that are on" not in _page(sandbox)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"eventType": "x"},
        {"eventType": "openid4vc.issuance.failed", "count": "9"},
        {"clear": "x"},
        {"clear": "forge", "eventType": "openid4vc.issuance.failed"},
    ],
)
def test_a_form_that_is_not_of_the_page_is_refused(sandbox: Platform, form: dict[str, str]) -> None:
    assert plain.post(f"{sandbox.url}/", data=form).status_code == 400


@pytest.mark.parametrize("path", ["/", "/sandbox/events", "/sandbox/faults"])
def test_another_site_can_press_no_button(sandbox: Platform, path: str) -> None:
    answer = plain.post(f"{sandbox.url}{path}", headers={"origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (403, "FORBIDDEN")


def test_a_name_of_its_own_is_let_in_when_it_was_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    with platform(tmp_path_factory.mktemp("named"), "--allowed-host", "sandbox") as running:
        allowed = plain.get(f"{running.url}/", headers={"host": "sandbox:8700"})
        other = plain.get(f"{running.url}/", headers={"host": "other:8700"})
    assert (allowed.status_code, other.status_code) == (200, 403)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def eventful(tmp_path: Path) -> Iterator[Platform]:
    """A sandbox with something of each kind on its page."""
    with platform(tmp_path, "--drop", "1", "--forge", "1", "--time-scale", "1") as sandbox:
        _listen(sandbox)
        sandbox.make("openid4vc.issuance.offered")
        until(lambda: _page_with(sandbox, "waits to be retried", "forged:"), what="the failure and the forgery")
        yield sandbox


def test_a_phone_scrolls_tables_sideways_and_not_the_page(eventful: Platform, browser: Chrome) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.get(eventful.url)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    heights = {time.size["height"] for time in browser.find_elements(By.TAG_NAME, "time")}
    assert len(heights) == 1, "some time is broken into lines"
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def _listen(sandbox: Platform) -> None:
    """Register an endpoint that nobody answers at."""
    with authorized(sandbox) as api:
        api.post(f"{CREDS}/endpoints", json={"url": f"https://127.0.0.1:{free_port()}/"}).raise_for_status()


def _page(sandbox: Platform) -> str:
    return plain.get(f"{sandbox.url}/").text


def _page_with(sandbox: Platform, *texts: str) -> str:
    """The page, once it has all these texts; until then nothing."""
    page = _page(sandbox)
    return page if all(text in page for text in texts) else ""
