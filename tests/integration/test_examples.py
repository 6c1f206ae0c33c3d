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

import plain
import psycopg
import pytest
from dev_process import COMPLETED, Dev, developing
from harness import DATA
from in_thread import http_server
from postgres_server import MISSING, postgres_server, programs
from sandbox_api import FORM, TOKEN, USERS
from signing import SECRET, sign
from waiting import until

EXAMPLES = Path(__file__).parents[1] / "examples"
REQUESTED, VERIFIED = "openid4vc.verification.requested", "openid4vc.verification.verified"


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
def dev(tmp_path_factory: pytest.TempPathFactory, taker: Taker, database: str | None) -> Iterator[Dev]:
    """The session around those of the packages that have what they need; no settings name them."""
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("dev")
    names = ["onboarding", "notify", *(["presentations"] if database else [])]
    install(names, site)
    settings = {"NOTIFY_URL": taker.url, "NOTIFY_SECRET": SECRET, "PRESENTATIONS_DATABASE_URL": database or ""}
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
