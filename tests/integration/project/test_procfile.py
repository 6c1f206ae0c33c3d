"""The lines of the Procfile, run as Heroku and others run them: in a shell, with PORT, and SIGTERM before SIGKILL."""

import re
import socket
from pathlib import Path

import pytest
from redis import Redis

from credhook.listener import server
from credhook.receiver import command
from credhook.sandbox.local.environment import LOGS_ONLY, free_port
from credhook.worker.process import concurrent
from support.checkout import ROOT
from support.platform.sandbox_api import registered
from support.process.serving import Executed, Platform, Process
from support.receiver.one_shot_senders import OneShotSenders
from support.receiver.signing import SECRET
from support.waiting import until

LINES = dict(re.findall(r"^(\w+): (.+)$", (ROOT / "Procfile").read_text(), re.MULTILINE))
#: Seconds from SIGTERM to SIGKILL on the least patient platforms.
PATIENCE = 10


def started(folder: Path, name: str, **environment: str) -> Process:
    return Executed(folder / f"{name}.log", "sh", "-c", LINES[name], environment=environment)


def test_the_longest_stop_is_shorter_than_a_platforms_patience() -> None:
    """The signal reaches our commands, because the shell has become them."""
    assert all("exec credhook" in line for line in LINES.values())
    (grace,) = re.findall(r"CREDHOOK_GRACE:-(\d+)", LINES["worker"])
    assert int(grace) + concurrent.SETTLE_SECONDS < PATIENCE
    assert server.LAST_REQUEST_SECONDS + command.GRACE_SECONDS < PATIENCE


def test_web_listens_everywhere_and_stops_under_load_without_a_loss(
    tmp_path: Path, redis_url: str, redis_client: Redis
) -> None:
    port = free_port()
    with started(tmp_path, "web", PORT=str(port), REDIS_URL=redis_url, CREDHOOK_WEBHOOK_SECRETS=SECRET) as process:
        until(lambda: '"redis_safe"' in process.text, what="the receiver")
        socket.create_connection(("127.0.0.2", port), timeout=60).close()  # Not HOST's default.
        with OneShotSenders(port) as load:
            until(lambda: load.has_sent(500), what="deliveries", within=300)
            assert process.stop() == 0
    accepted = load.outcomes.pop("HTTP/1.1 202")
    assert redis_client.zcard("credhook:credhook:open") == accepted
    assert set(load.outcomes) <= {"ConnectionRefusedError", "ConnectionResetError"}


@pytest.mark.usefixtures("swept")
def test_release_registers_the_public_url_and_nothing_in_a_review_app(tmp_path: Path, sandbox: Platform) -> None:
    url = {"CREDHOOK_PUBLIC_URL": "https://inbox.example/webhooks"}
    environment = sandbox.environment | {"CREDHOOK_HANDLERS": LOGS_ONLY}
    for settings, said in (({}, "no endpoint is registered\n"), (url, "create  a new endpoint, credhook-1-credhook")):
        with started(tmp_path, "release", **environment, **settings) as process:
            assert process.process.wait(60) == 0
            assert said in process.text
        assert [one["url"] for one in registered(sandbox)] == [*settings.values()]
