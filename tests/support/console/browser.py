"""A real Chromium without a window, for tests of pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

#: The page under test is on this machine; the browser is to look for nothing elsewhere.
QUIET = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-proxy-server",
)

#: Chromium's own sandbox does not start for root, and containers give it little shared memory.
CONTAINED = ("--no-sandbox", "--disable-dev-shm-usage")


@contextmanager
def chromium(folder: Path) -> Iterator[Chrome]:
    """A browser that keeps all that it writes in `folder`.

    Where the machine has none, the test is skipped, or fails if CREDHOOK_BROWSER=1.
    """
    options = ChromeOptions()
    options.binary_location = _found("chromium")
    for argument in (*QUIET, *CONTAINED, "--window-size=1280,1600", f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(argument)
    service = Service(
        _found("chromedriver"), log_output=str(folder / "chromedriver.log"), env=os.environ | {"HOME": str(folder)}
    )
    browser = Chrome(options, service)
    try:
        yield browser
    finally:
        browser.quit()


def text(browser: Chrome, selector: str = "main") -> str:
    """What it shows there; nothing while one page takes the place of another."""
    try:
        return browser.find_element(By.CSS_SELECTOR, selector).text
    except WebDriverException:
        return ""


def press(browser: Chrome, selector: str) -> None:
    browser.find_element(By.CSS_SELECTOR, selector).click()


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is not None:
        return path
    missing = f"{program} is not on this machine; `make browser` installs it"
    if os.environ.get("CREDHOOK_BROWSER") == "1":
        pytest.fail(missing)
    pytest.skip(missing)
