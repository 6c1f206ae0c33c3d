"""The sandbox's start page in a real browser: what is pressed there is delivered, fetched and handled."""

import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from accepting import record
from browser import chromium
from harness import Harness
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.wait import WebDriverWait
from serving import Platform, platform, running
from waiting import until

from credhook.events import EVENT_TYPES
from credhook.sandbox.local.environment import free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def sandbox(ca: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One whose page shows nothing but what is done here."""
    with platform(tmp_path_factory.mktemp("platform"), "--ca", str(ca)) as process:
        yield process


@pytest.fixture
def inbox(harness: Harness, authority: trustme.CA) -> Iterator[str]:
    """A receiver that speaks https; the URL of its webhooks."""
    certificate = harness.folder / "receiver.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    url = f"https://127.0.0.1:{(port := free_port())}"
    settings = {
        "REDIS_URL": harness.redis_url,
        "PORT": str(port),
        "CREDHOOK_TLS_CERTFILE": str(certificate),
        "CREDHOOK_WEBHOOK_SECRETS": harness.sandbox.environment["CREDHOOK_WEBHOOK_SECRETS"],
    }

    with running(harness.folder / "receiver.log", "receiver", environment=settings) as process:

        def ready() -> bool:
            assert process.process.poll() is None, process.text
            try:
                return httpx.get(f"{url}/readyz", verify=trust, timeout=60).is_success
            except httpx.TransportError:
                return False

        until(ready, what="the receiver's /readyz")
        yield f"{url}/webhooks"


def test_all_ten_buttons_of_the_page_end_in_handled_events(harness: Harness, inbox: str, browser: Chrome) -> None:
    subprocess.run(
        [sys.executable, "-m", "credhook", "endpoints", "apply"],
        env={**harness.environment, "PYTHONPATH": str(harness.folder), "CREDHOOK_PUBLIC_URL": inbox},
        cwd=ROOT, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    browser.get(harness.sandbox.url)
    buttons = browser.find_elements(By.CSS_SELECTOR, "fieldset button[name=eventType]")
    assert [button.get_attribute("value") for button in buttons] == list(EVENT_TYPES)
    for event_type in EVENT_TYPES:
        press(browser, f"fieldset button[value='{event_type}']")

    with harness.worker():
        until(lambda: states(harness) == ["done"] * 10, what="ten events done", within=60)
    assert {fields["type"] for fields in records(harness)} == set(EVENT_TYPES)
    assert len(harness.notes()) == 10
    until(lambda: outcomes(browser) == ["acknowledged"] * 10, what="ten acknowledged deliveries on the page")


def press(browser: Chrome, selector: str) -> None:
    """Press the button, and have the page that it leads to."""
    button = browser.find_element(By.CSS_SELECTOR, selector)
    button.click()
    # The driver fails in more than one way while one page replaces the other.
    wait = WebDriverWait(browser, 20, poll_frequency=0.02, ignored_exceptions=[WebDriverException])
    wait.until(staleness_of(button))
    wait.until(lambda _: browser.execute_script("return document.readyState") == "complete")
    assert not browser.find_elements(By.CSS_SELECTOR, "[role=alert]")


def rows(browser: Chrome, title: str) -> list[str]:
    """The text of each row of the table below that heading."""
    found = browser.find_elements(By.XPATH, f"//h2[.='{title}']/following-sibling::table[1]//tr[td]")
    return [row.text for row in found]


def outcomes(browser: Chrome) -> list[str]:
    """What the page says of each delivery, once it is loaded anew."""
    browser.refresh()
    return [row.split()[-1] for row in rows(browser, "Latest deliveries")]


def records(harness: Harness) -> list[dict[str, str]]:
    prefix = b"credhook:credhook:event:"
    keys: list[bytes] = list(harness.redis.scan_iter(prefix + b"*"))
    return [record(harness.redis, key.removeprefix(prefix).decode()) for key in keys]


def states(harness: Harness) -> list[str]:
    return [fields["state"] for fields in records(harness)]
