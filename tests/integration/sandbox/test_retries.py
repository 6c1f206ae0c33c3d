"""Deliveries of the sandbox that fail: what counts as a failure, what is sent again, and when it is given up."""

import threading
from functools import partial
from pathlib import Path

import httpx
import pytest
import trustme

from support import plain
from support.platform.sandbox_api import authorized
from support.platform.webhook_endpoint import Receiver, happen, receiving, register, settled
from support.process.serving import Platform, platform
from support.waiting import until

pytestmark = pytest.mark.usefixtures("swept")


@pytest.mark.parametrize("status", [302, 400, 404, 429, 500, 503])
def test_anything_but_2xx_is_retried_under_the_same_id(sandbox: Platform, receiver: Receiver, status: int) -> None:
    register(sandbox, receiver.url)
    receiver.statuses = [status, status]
    (made,) = happen(sandbox)
    attempts = settled(sandbox, made["webhookIds"][0])
    assert [(each["attempt"], each["status"], each["outcome"]) for each in attempts] == [
        (1, status, "retrying"),
        (2, status, "retrying"),
        (3, 202, "acknowledged"),
    ]
    assert [received.id for received in receiver.received] == made["webhookIds"] * 3
    assert len({received.body for received in receiver.received}) == 1


def test_unreachable_endpoints_are_retried_and_delay_no_other(
    sandbox: Platform, api: httpx.Client, receiver: Receiver, authority: trustme.CA
) -> None:
    with receiving(authority.issue_cert("127.0.0.1")) as gone:
        pass
    with receiving(trustme.CA().issue_cert("127.0.0.1")) as stranger:
        urls = gone.url, stranger.url, f"https://{64 * 'a'}.b/", "https://[::1]:1/", receiver.url
        ids = [register(sandbox, url) for url in urls]
        happen(sandbox)
        until(lambda: len(receiver.received) == 1)
        api.delete(f"/me-creds/api/endpoints/{ids[-1]}")
        assert api.get("/sandbox/deliveries").json()["meta"]["underWay"] == 4  # Those to the others.
        for url, error in ((gone.url, "ConnectError"), (stranger.url, "CERTIFICATE_VERIFY_FAILED")):
            until(partial(retried, sandbox, url, error), what=error)
        assert stranger.received == []


def retried(sandbox: Platform, url: str, error: str) -> bool:
    found = plain.get(f"{sandbox.url}/sandbox/deliveries").json()["data"]
    attempts = [attempt for attempt in found if attempt["url"] == url]
    return len(attempts) >= 2 and error in attempts[0]["error"] and attempts[0]["outcome"] == "retrying"


def test_a_lost_attempt_is_made_again(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url)
    sandbox.faults(drop=1, loseAnswers=1)
    (made,) = happen(sandbox)
    attempts = settled(sandbox, made["webhookIds"][0])
    shown = [(each["status"], each["answer"]) for each in attempts]
    assert shown == [(None, None), (None, "accepted"), (202, "accepted")]
    assert len(receiver.received) == 2


def test_a_removed_endpoint_gets_no_more(sandbox: Platform, api: httpx.Client, receiver: Receiver) -> None:
    id_ = register(sandbox, receiver.url)
    receiver.statuses = [500] * 8
    (made,) = happen(sandbox)
    until(lambda: receiver.received)
    assert api.delete(f"/me-creds/api/endpoints/{id_}").status_code == 204
    attempts = settled(sandbox, made["webhookIds"][0])
    assert "acknowledged" not in {each["outcome"] for each in attempts}


def test_a_restart_keeps_everything_and_goes_on_delivering(ca: Path, receiver: Receiver, tmp_path: Path) -> None:
    options = ["--ca", str(ca), "--state", str(tmp_path / "state.db")]
    receiver.statuses = [200] + [500] * 1_000
    # The last attempt is minutes away. One of three copies arrives before the restart.
    with platform(tmp_path, *options, "--time-scale", "0.01", "--duplicate", "3") as sandbox:
        register(sandbox, receiver.url)
        (made,) = happen(sandbox)
        until(lambda: len(receiver.received) >= 3)
        csrs = plain.get(f"{sandbox.url}/sandbox/csrs").json()["data"]
        assert sandbox.stop() == 0
    receiver.statuses.clear()
    with platform(tmp_path, *options) as sandbox:
        attempts = settled(sandbox, made["webhookIds"][0])
        assert attempts[-1]["outcome"] == "acknowledged"
        assert plain.get(f"{sandbox.url}/sandbox/csrs").json()["data"] == csrs
        with authorized(sandbox) as api:
            assert len(api.get("/me-creds/api/endpoints").json()) == 1
            details = api.get(f"/me-creds/api/credentials/{made['resourceId']}")
        assert details.json()["data"]["status"] == "completed"
    assert {received.id for received in receiver.received} == set(made["webhookIds"])


def test_a_receiver_that_hangs_does_not_keep_the_sandbox_from_ending(
    ca: Path, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.hang = threading.Event()
    with platform(tmp_path, "--ca", str(ca)) as sandbox:
        register(sandbox, receiver.url)
        happen(sandbox, count=20)
        until(lambda: receiver.received)
        sandbox.process.terminate()
        assert sandbox.process.wait(60) == 0
