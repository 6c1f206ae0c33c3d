"""The packages of tests/examples, built, installed beside `credhook dev`, and at work with everything around them."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

import billing
import plain
import psycopg
import pytest
from browser import chromium, press, text
from dev_process import COMPLETED, Dev, developing
from harness import DATA
from in_thread import http_server
from postgres_server import MISSING, postgres_server, programs
from redis import Redis
from sandbox_api import FORM, TOKEN, USERS
from serving import Process
from signing import SECRET, sign
from waiting import until

from credhook.sandbox.local.environment import free_port

EXAMPLES = Path(__file__).parents[1] / "examples"
REQUESTED, VERIFIED, FAILED = (f"openid4vc.verification.{word}" for word in ("requested", "verified", "failed"))


@dataclass
class Taker:
    """An endpoint on a socket, which is busy when it is first told of something, and verifies what it is sent."""

    url: str = ""
    told: dict[str, list[Any]] = field(default_factory=dict)

    def take(self, headers: Message, body: bytes) -> int:
        webhook_id, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
        if headers["webhook-signature"] != sign(webhook_id, timestamp, body):
            return 401
        before = self.told.get(webhook_id, [])
        self.told[webhook_id] = [*before, json.loads(body)]
        return 202 if before else 503

    def messages(self, resource_id: str) -> dict[str, list[Any]]:
        """What it was told of one resource, by webhook-id."""
        return {key: said for key, said in list(self.told.items()) if said[0]["data"]["id"] == resource_id}


@pytest.fixture(scope="module")
def taker() -> Iterator[Taker]:
    taker = Taker()
    with http_server(lambda asked: (taker.take(asked.headers, asked.body), {"retry-after": "0"}, b"")) as url:
        taker.url = url + "/"
        yield taker


@pytest.fixture(scope="module")
def database() -> Iterator[str | None]:
    """The URL of a PostgreSQL; None where there is none."""
    with ExitStack() as stack:
        found = programs()
        yield None if found is None else stack.enter_context(postgres_server(found))


@pytest.fixture(scope="module")
def dev(
    tmp_path_factory: pytest.TempPathFactory, taker: Taker, database: str | None, module_redis: str
) -> Iterator[Dev]:
    """The session around those of the packages that have what they need; no settings name them."""
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("dev")
    names = ["onboarding", "notify", "billing", "checkin", *(["presentations"] if database else [])]
    install(names, site)
    settings = {"NOTIFY_URL": taker.url, "NOTIFY_SECRET": SECRET, "PRESENTATIONS_DATABASE_URL": database or ""}
    settings |= {"BILLING_DATABASE": str(site / "bills"), "CHECKIN_REDIS_URL": module_redis}
    with developing(folder, environ={"PYTHONPATH": str(site)} | settings) as dev:
        dev.ready(1)
        assert all(f"{name}:handlers" in dev.text for name in names), dev.text
        yield dev


def install(names: list[str], site: Path) -> None:
    """Have their wheels built, and unpack them there."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(site)]
    builds = [subprocess.Popen(build, cwd=EXAMPLES / name, stdout=subprocess.DEVNULL) for name in names]
    assert [each.wait(200) for each in builds] == [0] * len(names)
    for wheel in site.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(site)


def users(dev: Dev, called: str) -> list[Any]:
    """The platform's users of that name."""
    with plain.Client(base_url=dev.environment["CREDHOOK_SANDBOX_URL"]) as api:
        token = api.post(TOKEN, data=FORM).raise_for_status().json()["access_token"]
        listed = api.get(USERS, headers={"authorization": f"Bearer {token}"}).raise_for_status().json()["data"]
    return [user for user in listed if user["username"] == called]


def test_an_issuance_that_completes_has_one_user_however_often_it_is_handled(dev: Dev) -> None:
    (issuance,) = dev.happens(COMPLETED)
    dev.shows(rf"{issuance}  .*handlers=.*onboarding\.link_user")
    until(lambda: {each["state"] for each in dev.records().values()} == {"done"}, what="the end of all its handlers")
    dev.events("replay", "--handler", "onboarding.create_user", "--since", "1h")
    dev.shows("user_created  existed=True")
    assert len(users(dev, issuance)) == 1


def test_an_endpoint_that_was_busy_is_told_again_under_the_same_id_and_never_of_claims(dev: Dev, taker: Taker) -> None:
    (presentation,) = dev.happens(DATA)
    until(lambda: 2 in map(len, taker.messages(presentation).values()), what="the second message")
    ((webhook_id, (first, second)),) = taker.messages(presentation).items()
    assert webhook_id.endswith(":notify:tell_presentation")
    assert first == second
    assert second["data"] == {"id": presentation, "status": "verified"}
    assert "Ada" not in json.dumps(second)


def test_the_database_has_the_state_that_a_presentation_came_to(dev: Dev, database: str | None) -> None:
    if database is None:
        pytest.skip(MISSING)
    (presentation,) = dev.happens(REQUESTED)
    done = rf"{presentation}  .*handlers=.*presentations\.store"
    dev.shows(done)
    with psycopg.connect(database, autocommit=True) as connection:
        query = "SELECT status, trusted FROM presentations WHERE id = %s"
        assert connection.execute(query, [presentation]).fetchall() == [("requested", False)]
        dev.happens(VERIFIED, resourceId=presentation)
        dev.shows(done, 2)
        assert connection.execute(query, [presentation]).fetchall() == [("verified", True)]
        query = "SELECT type FROM presentation_events WHERE presentation = %s ORDER BY received_at"
        assert connection.execute(query, [presentation]).fetchall() == [(REQUESTED,), (VERIFIED,)]


def test_the_statements_that_bill_once_are_postgresqls_too(database: str | None) -> None:
    if database is None:
        pytest.skip(MISSING)
    with psycopg.connect(database) as connection:
        for statement in billing.SCHEMA:
            connection.execute(statement.encode())
        keys = [connection.execute(billing.KEY.replace("?", "%s").encode(), ["m:bill"]).rowcount for _ in "12"]
        for _ in "12":
            connection.execute(billing.BILL.replace("?", "%s").encode(), ["2026-05", 25])
        assert (keys, connection.execute("SELECT * FROM bills").fetchall()) == ([1, 0], [("2026-05", 50)])


class Site:
    """Two processes of the web application, and the operation of a platform that requests presentations."""

    link = "openid4vp://?client_id=us&request_uri='\"<b>'"

    def __init__(self, folder: Path, redis_url: str, dev: Dev) -> None:
        self.folder = folder
        self.dev = dev
        self.redis: Any = Redis.from_url(redis_url, decode_responses=True)
        self.settings = {"CHECKIN_REDIS_URL": redis_url, "PYTHONPATH": str(EXAMPLES / "checkin")}
        self.ports = (free_port(), free_port())
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.presentations: list[str] = []

    def request(self) -> bytes:
        self.presentations += self.dev.happens(REQUESTED)
        data = {"id": self.presentations[-1], "authorizationRequestUri": self.link}
        return json.dumps({"data": data}).encode()

    def start(self, number: int) -> Process:
        command = ("-m", "uvicorn", "checkin_web:app", "--port", str(self.ports[number]))
        process = Process(self.folder / f"web{number}.log", *command, environment=self.settings)
        until(lambda: process.answers(self.urls[number]), what="the page")
        return process


@pytest.fixture
def site(tmp_path: Path, module_redis: str, dev: Dev) -> Iterator[Site]:
    site = Site(tmp_path, module_redis, dev)
    with http_server(lambda _: (200, {}, site.request())) as url, site.redis:
        site.settings["CHECKIN_REQUEST_URL"] = url
        yield site


def test_the_outcome_reaches_the_waiting_page_and_no_other(dev: Dev, site: Site, tmp_path: Path) -> None:
    with site.start(0), site.start(1) as second, chromium(tmp_path, scripts=True) as browser:
        stranger = {"cookie": plain.post(f"{site.urls[0]}/begin").headers["set-cookie"].partition(";")[0]}
        browser.get(site.urls[0])
        press(browser, "button")
        until(lambda: text(browser, "a"), what="the link")
        browser.get(site.urls[1])
        assert browser.find_element("tag name", "a").get_dom_attribute("href") == site.link
        dev.happens(DATA, resourceId=site.presentations[1])
        until(lambda: text(browser, "p") == "accepted", what="the outcome, which another process has begun")

        press(browser, "button")
        until(lambda: text(browser, "a"), what="the second link")
        second.kill()
        dev.happens(FAILED, resourceId=site.presentations[2])
        until(
            lambda: site.redis.exists(f"checkin:outcome:{site.presentations[2]}"), what="an outcome that nobody hears"
        )
        with site.start(1):
            until(lambda: text(browser, "p") == "refused", what="the outcome, for the page that connects again")

        assert "Open your wallet" in plain.get(site.urls[0], headers=stranger).text
        assert plain.get(f"{site.urls[0]}/stream").text.endswith("data: look\n\n")  # There is nothing to wait for.
        assert "Open your wallet" not in plain.get(site.urls[0]).text
    keys = site.redis.keys()
    assert {key.split(":")[1] for key in keys} == {"session", "outcome"}
    assert [key for key in keys if site.redis.ttl(key) not in range(1, 601)] == []
