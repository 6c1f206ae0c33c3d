"""The console in a real browser: with JavaScript and without it, for keyboard, phone and screen reader.

Pictures of its pages, and those of the README, go to CREDHOOK_PICTURES.
"""

import json
import os
import pty
import re
from base64 import b64decode
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from redis import Redis
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from credhook.store import State
from support.checkout import ROOT
from support.console.browser import chromium, press, text
from support.console.console import Console
from support.console.processes import announce_receiver, announce_worker
from support.process.dev_process import developing
from support.redis.redis_server import MortalRedis
from support.store.stored_events import HANDLED, plant, plant_many, plant_traffic
from support.store.stores import INDEX
from support.waiting import until

DESK = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
PAGES = ("/", "/causes", "/events", "/events?state=dead", "/events?handler=a.bad", "/event?id=story",
         "/replay?state=dead", "/erase?state=dead",
         "/endpoints", "/jobs", "/nowhere")  # fmt: skip

#: A terminal of 112 columns with a text.
TERMINAL = """<meta charset="utf-8"><pre style="margin: 0; padding: 16px 20px; width: 112ch; white-space: pre-wrap;
font: 14px/1.45 monospace; color: #e6edf3; background: #0d1117">{}</pre>"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("CREDHOOK_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def eventful(redis_client: Redis) -> None:
    plant_many(redis_client, 300, State.DEAD)
    for name in ("worker-7f9c.1.4712", "worker-2b1d.1.4712"):
        announce_worker(redis_client, name, breaker="open", breaker_seconds=740.0)
    announce_worker(redis_client, "worker-55aa.1.4712", silent=80_000)
    announce_receiver(redis_client)
    failed = {"who": "a.bad", "what": "ValueError", "at": "plugin.py:7 fail", "cause": "0123abcd", "ms": 12.0}
    told = json.dumps({"began": 1_700_000_000_000, "state": "dead", "error": "a.bad: ValueError", "failures": [failed]})
    plant(redis_client, "story", State.DONE, ended=HANDLED)
    plant_traffic(redis_client)
    redis_client.hset("credhook:credhook:event:story", "c:a.bad", "0123abcd")
    redis_client.rpush("credhook:credhook:history:story", *(f"17000000{minute:02}100 {told}" for minute in range(30)))
    mapping: dict[Any, Any] = {
        "who": "a.bad",
        "what": "ValueError",
        "at": "plugin.py:7 fail",
        "first": 1_700_000_000_000,
    }
    redis_client.hset(INDEX.cause + "0123abcd", mapping=mapping)


def colours(scheme: str) -> dict[str, Any]:
    """Return what lets the browser prefer a dark or a light page."""
    return {"features": [{"name": "prefers-color-scheme", "value": scheme}]}


def logged_in(browser: Chrome, running: Console) -> Chrome:
    """Open the link with the password. The browser remembers the password for this console."""
    browser.get(running.link())
    assert browser.find_element(By.CSS_SELECTOR, ".who").text == "ada"
    return browser


def shown(browser: Chrome, running: Console) -> Iterator[str]:
    """Show every page, one after the other."""
    logged_in(browser, running)
    for path in PAGES:
        browser.get(f"{running.url}{path}")
        yield path


@pytest.mark.parametrize("scripts", [True, False])
def test_a_cause_is_replayed_from_its_count_to_its_end(
    browser: Chrome, running: Console, redis_client: Redis, scripts: bool
) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
    try:
        logged_in(browser, running).get(f"{running.url}/events?state=dead")
        press(browser, "a[href^='/replay']")
        assert "Replay 300 events?" in until(lambda: text(browser, "h1"), what="the count")
        press(browser, ".confirm button")
        until(lambda: "Replayed 300." in text(browser), what="the end of the job")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert redis_client.zcard(INDEX.open) == 300


def test_nothing_that_the_pages_hold_breaks_their_own_rules(running: Console, browser: Chrome) -> None:
    assert len(list(shown(browser, running))) == len(PAGES)
    log = [entry["message"] for entry in browser.get_log("browser")]  # type: ignore[no-untyped-call]
    assert [message for message in log if "favicon" not in message and "/nowhere" not in message] == []


def test_a_phone_scrolls_no_page_sideways(running: Console, browser: Chrome) -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    width = "return document.documentElement.scrollWidth"
    try:
        widths = {path: browser.execute_script(width) for path in shown(browser, running)}
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert widths == dict.fromkeys(PAGES, 390)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
@pytest.mark.parametrize("width", ["desk", pytest.param("phone", marks=pytest.mark.soak)])
def test_every_page_has_its_picture(running: Console, browser: Chrome, pictures: Path, width: str, scheme: str) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", colours(scheme))
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE if width == "phone" else DESK)
    try:
        for path in shown(browser, running):
            name = re.sub(r"\W+", "-", path).strip("-") or "now"
            picture = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})["data"]
            (pictures / f"{name}-{width}-{scheme}.png").write_bytes(b64decode(picture))
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", colours("light"))
    assert len(list(pictures.glob(f"*-{width}-{scheme}.png"))) == len(PAGES)


def test_readme_has_a_picture_of_the_console(browser: Chrome, pictures: Path, tmp_path: Path) -> None:
    with MortalRedis(tmp_path) as server, Console(tmp_path, server.url) as running, Redis.from_url(server.url) as redis:
        redis.config_set("maxmemory", "2gb")
        plant_many(redis, 12, State.DEAD)
        plant_traffic(redis, "accounts.open_account")
        for name, silent in (("worker-7f9c.1.4712", 0), ("worker-2b1d.1.4712", 0), ("worker-55aa.1.4712", 80_000)):
            announce_worker(redis, name, silent=silent, in_flight=0)
        announce_receiver(redis)
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", DESK)
        browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        try:
            assert logged_in(browser, running).save_screenshot(str(pictures / "console.png"))
        finally:
            browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": False})
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        assert "2 things want attention" in text(browser)


def test_readme_has_a_picture_of_dev(browser: Chrome, pictures: Path, tmp_path: Path) -> None:
    """The keys d and x are pressed around the handler that README.md shows."""
    folder = tmp_path / "project"
    folder.mkdir()
    (handler,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    (folder / "accounts.py").write_text(handler)
    ours, theirs = pty.openpty()
    with developing(folder, "accounts", terminal=theirs) as dev:
        dev.ready(1)
        for key, outcome in ((b"d", "done"), (b"x", "dead")):
            os.write(ours, key)
            dev.shows(rf"  {outcome}  ")
        shown = dev.text
        os.write(ours, b"q")
        assert dev.process.wait(60) == 0
    browser.get("data:text/html," + quote(TERMINAL.format(escape(f"$ credhook dev accounts\n{shown}"))))
    assert browser.find_element(By.TAG_NAME, "pre").screenshot(str(pictures / "dev.png"))


def test_event_with_a_long_history_fits_two_screens_of_a_phone(running: Console, browser: Chrome) -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    try:
        logged_in(browser, running).get(f"{running.url}/event?id=story")
        assert "25 earlier" in text(browser)
        assert browser.execute_script("return document.documentElement.scrollHeight") <= 2 * PHONE["height"]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_names_of_handlers_are_not_cut_off(running: Console, browser: Chrome) -> None:
    logged_in(browser, running)
    names = "[...document.querySelectorAll('.scroll')].every(table => table.scrollWidth <= table.clientWidth)"
    assert browser.execute_script(f"return {names}")


def test_a_live_page_goes_on_once_redis_is_back(browser: Chrome, tmp_path: Path) -> None:
    with MortalRedis(tmp_path) as server, Console(tmp_path, server.url) as running:
        logged_in(browser, running).get(f"{running.url}/causes")
        server.kill()
        until(lambda: text(browser, "h1") == "Service unavailable", what="the problem")
        server.start()
        until(lambda: text(browser, "h1") == "Causes", what="the page")


def test_page_refreshes_after_the_link_with_the_password(
    browser: Chrome, running: Console, redis_client: Redis
) -> None:
    browser.get("about:blank")
    logged_in(browser, running)
    plant(redis_client, "unhandled", State.UNHANDLED)
    until(lambda: "unhandled" in text(browser, ".tiles"), what="the new figure")


def test_page_whose_refresh_is_refused_is_loaded_again(browser: Chrome, running: Console) -> None:
    logged_in(browser, running)
    # Without credentials the console refuses the request, as when its password has changed.
    browser.execute_script("window.old = true; const send = fetch; fetch = url => send(url, {credentials: 'omit'})")
    until(lambda: browser.execute_script("return !window.old"), what="the new page")


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core. Debian's npm installs it there."""
    folder = os.environ.get("CREDHOOK_AXE", "/usr/local/lib/node_modules")
    path = Path(folder) / "axe-core" / "axe.min.js"
    if not path.exists():
        pytest.skip("axe-core is not on this machine: `npm install --global axe-core`, or CREDHOOK_AXE=node_modules")
    return path.read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(running: Console, browser: Chrome, axe: str, scheme: str) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", colours(scheme))
    violations = []
    for path in shown(browser, running):
        browser.execute_script(axe)
        found = browser.execute_async_script("axe.run().then(arguments[0])")
        assert len(found["passes"]) > 10
        violations += [(path, one["id"], one["impact"], one["nodes"][0]["html"]) for one in found["violations"]]
    assert violations == []
