"""The packages of tests/examples, built, installed beside `credhook dev`, and at work with everything around them."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

import billing
import psycopg
import pytest
from postgres_server import MISSING, postgres_server, programs
from redis import Redis

from credhook.sandbox.local.environment import free_port
from support import plain
from support.checkout import ROOT
from support.console.browser import chromium, press, text
from support.in_thread import Asked, http_server
from support.platform.sandbox_api import USERS, authorize, data
from support.process.dev_process import COMPLETED, Dev, developing
from support.process.serving import Process
from support.receiver.signing import SECRET, sign
from support.waiting import until
from support.worker.harness import DATA, Harness

EXAMPLES = ROOT / "tests/examples"
DAY_MS = 86_400_000
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
    names = ["onboarding", "notify", "billing", "checkin", "members", *(["presentations"] if database else [])]
    install(names, site)
    settings = {"NOTIFY_URL": taker.url, "NOTIFY_SECRET": SECRET, "PRESENTATIONS_DATABASE_URL": database or ""}
    settings |= {"BILLING_DATABASE": str(site / "bills"), "CHECKIN_REDIS_URL": module_redis}
    settings |= {"DJANGO_SETTINGS_MODULE": "members.settings", "MEMBERS_DATABASE": str(folder.with_name("members"))}
    settings |= {"PYTHONPATH": str(site)}
    django = [sys.executable, "-m", "django", "migrate", "--run-syncdb", "--verbosity=0"]
    subprocess.run(django, env=os.environ | settings, check=True)
    with developing(folder, environ=settings) as dev:
        dev.ready(1)
        assert all(re.search(rf"{name}(\.handlers)?:handlers", dev.text) for name in names), dev.text
        yield dev


def install(names: list[str], site: Path) -> None:
    """Have their wheels built, and unpack them there."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(site)]
    builds = [subprocess.Popen(build, cwd=EXAMPLES / name, stdout=subprocess.DEVNULL) for name in names]
    assert [each.wait(200) for each in builds] == [0] * len(names)
    for wheel in site.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(site)


def test_completed_issuance_has_one_user(dev: Dev) -> None:
    (issuance,) = dev.happens(COMPLETED)
    dev.shows(rf"{issuance}  .*handlers=.*onboarding\.link_user")
    until(lambda: {each["state"] for each in dev.records().values()} == {"done"}, what="the end of all its handlers")
    dev.events("replay", "--handler", "onboarding.create_user", "--since", "1h")
    dev.shows("user_created  existed=True")
    with plain.Client(base_url=dev.environment["CREDHOOK_SANDBOX_URL"]) as api:
        authorize(api)
        assert [user["username"] for user in data(api.get(USERS))].count(issuance) == 1


def test_table_of_a_django_project_has_the_member(dev: Dev) -> None:
    (issuance,) = dev.happens(COMPLETED)
    dev.shows(rf"{issuance}  .*handlers=.*members\.admit")
    with closing(sqlite3.connect(dev.folder.with_name("members"))) as connection:
        rows = connection.execute("SELECT issuance FROM members_member").fetchall()
    assert rows.count((issuance,)) == 1


def test_busy_endpoint_is_told_again_under_the_same_id(dev: Dev, taker: Taker) -> None:
    (presentation,) = dev.happens(DATA)
    until(lambda: 2 in map(len, taker.messages(presentation).values()), what="the second message")
    ((webhook_id, (first, second)),) = taker.messages(presentation).items()
    assert webhook_id.endswith(":notify:tell_presentation")
    assert first == second
    assert second["data"] == {"id": presentation, "status": "verified"}
    assert "Ada" not in json.dumps(second)


def test_postgresql_has_the_state_of_a_presentation(dev: Dev, database: str | None) -> None:
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

        for statement in billing.SCHEMA:
            connection.execute(statement.encode())
        key, bill = (statement.replace("?", "%s").encode() for statement in (billing.KEY, billing.BILL))
        assert [connection.execute(key, ["m:billing.bill"]).rowcount for _ in "12"] == [1, 0]
        assert [connection.execute(bill, ["2026-05", 25]).rowcount for _ in "12"] == [1, 1]
        assert connection.execute("SELECT * FROM bills").fetchall() == [("2026-05", 50)]


def test_outcome_reaches_the_waiting_page_alone(dev: Dev, module_redis: str, tmp_path: Path) -> None:
    """Two processes of the web application serve the pages."""
    link, ports, begun = "openid4vp://?client_id=us&request_uri='\"<b>'", (free_port(), free_port()), list[str]()
    refused: list[str] = []
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    settings = {"CHECKIN_REDIS_URL": module_redis, "PYTHONPATH": str(EXAMPLES / "checkin")}
    settings |= {name: value for name, value in dev.environment.items() if name.startswith("CREDHOOK_")}
    settings["CHECKIN_REQUEST_PATH"] = "/requests"
    settings["OTEL_SDK_DISABLED"] = "true"  # FastAPI imports OpenTelemetry, which `start` hides otherwise.

    def answer(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        """Answer as a platform that is asked to request a presentation, or as a proxy with no process behind it."""
        if asked.method == "GET":
            refused.append(asked.path)
            return 502, {}, b""
        assert (asked.path, asked.headers["authorization"][:7]) == ("/requests", "Bearer ")
        begun.extend(dev.happens(REQUESTED))
        return 200, {}, json.dumps({"data": {"id": begun[-1], "authorizationRequestUri": link}}).encode()

    def start(number: int) -> Process:
        command = ("-m", "uvicorn", "checkin_web:app", "--port", str(ports[number]))
        process = Process(tmp_path / f"web{number}.log", *command, environment=settings)
        until(lambda: process.answers(urls[number]), what="the page")
        return process

    redis: Any = Redis.from_url(module_redis, decode_responses=True)
    with http_server(answer) as settings["CREDHOOK_API_URL"], chromium(tmp_path) as browser, redis:
        with start(0), start(1) as second:
            stranger = {"cookie": plain.post(f"{urls[0]}/begin").headers["set-cookie"].partition(";")[0]}
            browser.get(urls[0])
            press(browser, "button")
            until(lambda: text(browser, "a"), what="the link")
            browser.get(urls[1])
            assert browser.find_element("tag name", "a").get_dom_attribute("href") == link
            dev.happens(DATA, resourceId=begun[1])
            until(lambda: text(browser, "p") == "accepted", what="the outcome, which another process has begun")

            press(browser, "button")
            until(lambda: text(browser, "a"), what="the second link")
            second.kill()
            dev.happens(FAILED, resourceId=begun[2])
            until(lambda: redis.exists(f"checkin:outcome:{begun[2]}"), what="an outcome that nobody hears")
            with http_server(answer, port=ports[1]):
                until(lambda: "/stream" in refused, what="the page that is refused")
            with start(1):
                until(lambda: text(browser, "p") == "refused", what="the outcome, for the page that connects again")

            assert "Open your wallet" in plain.get(urls[0], headers=stranger).text
            assert "Open your wallet" not in plain.get(urls[0]).text
            assert plain.get(f"{urls[0]}/stream").text.endswith("data: look\n\n")  # There is nothing to wait for.
        held = {key: redis.ttl(key) for key in redis.scan_iter()}
    assert {key.split(":")[1] for key in held} == {"session", "outcome"}
    assert all(0 < seconds <= 600 for seconds in held.values())


def test_old_request_is_reminded_and_a_new_one_waits_for_three_days(harness: Harness, tmp_path: Path) -> None:
    reminded: list[tuple[str, str]] = []

    def answer(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        reminded.append((asked.path, asked.headers["authorization"]))
        return 202, {}, b""

    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "REMINDERS_TOKEN").write_text("s3cret\n")
    new, old = (harness.happens(webhook_id, REQUESTED) for webhook_id in ("new", "old"))
    harness.redis.hincrby("credhook:credhook:event:old", "received", -3 * DAY_MS)
    with http_server(answer) as url:
        settings = {"CREDHOOK_HANDLERS": "reminders", "PYTHONPATH": str(EXAMPLES / "reminders"), "REMINDERS_URL": url}
        with harness.worker(**settings, CREDENTIALS_DIRECTORY=str(secrets)):
            harness.reaches("old", "done")
            waiting = harness.reaches("new", "waiting")
            harness.happens("later", DATA, resourceId=new)
            harness.reaches("later", "unhandled")  # A later event of the resource does not wait with it.
    assert reminded == [(f"/requests/{old}/reminders", "Bearer s3cret")]
    assert int(waiting["due"]) - int(waiting["received"]) == pytest.approx(3 * DAY_MS, abs=DAY_MS / 24)
