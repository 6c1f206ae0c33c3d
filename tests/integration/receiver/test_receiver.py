"""The receiver as a process, on a real socket, with a real Redis."""

import select
import socket
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from redis import Redis
from rq import Queue

from credhook.sandbox.local.environment import free_port, start_server
from support import plain
from support.process.serving import receiver
from support.receiver.signing import OTHER_SECRET, SECRET, body, headers
from support.store.stores import job_id
from support.waiting import until
from support.worker.fleet_harness import FleetHarness, Stub
from support.worker.harness import PLAIN

PATH_SECRET = "an-unguessable-path-0123456789"


def post(url: str, webhook_id: str = "msg_1", content: bytes | None = None, secret: str = SECRET) -> httpx.Response:
    content = body() if content is None else content
    return plain.post(url, content=content, headers=headers(webhook_id, content, secret=secret))


def status_of(response: httpx.Response) -> str:
    assert response.status_code == 202, response.text
    return response.headers["credhook-outcome"]


def test_delivery_becomes_one_record_and_one_job(tmp_path: Path, redis_url: str, redis_client: Redis) -> None:
    keys = f"{SECRET} {OTHER_SECRET}"
    with receiver(tmp_path, redis_url, CREDHOOK_WEBHOOK_SECRETS=keys) as inbox:
        assert status_of(post(inbox.url)) == "accepted"
        record = redis_client.hgetall("credhook:credhook:event:msg_1")
        assert record.pop(b"received").isdigit()
        assert record == {b"type": b"openid4vc.issuance.completed", b"resource": b"iss_1", b"state": b"accepted"}
        assert Queue("credhook", connection=redis_client).job_ids == [job_id("msg_1")]
        redis_client.delete("rq:job:" + job_id("msg_1"), "rq:queue:credhook")
        assert status_of(post(inbox.url, secret=OTHER_SECRET)) == "duplicate"
        assert status_of(post(inbox.url, content=body(resource_id="iss_2"))) == "conflict"
        assert list(redis_client.hgetall("credhook:credhook:conflict:msg_1")) == [b"openid4vc.issuance.completed iss_2"]
        assert redis_client.hget("credhook:credhook:event:msg_1", "resource") == b"iss_1"
        until(lambda: '"events_duplicate"' in inbox.text)
        until(lambda: '"event_conflict"' in inbox.text)
        for outcome in ("quarantined", "duplicate"):
            assert status_of(post(inbox.url, "msg_2", body("openid4vc.issuance.revoked"))) == outcome
        assert redis_client.hget("credhook:credhook:event:msg_2", "state") == b"quarantined"
        assert redis_client.zrange("credhook:credhook:quarantined", 0, -1) == [b"msg_2"]
        until(lambda: '"event_quarantined"' in inbox.text)
        assert not redis_client.exists("rq:queue:credhook")


def test_a_sender_that_does_not_sign_is_served_at_the_secret_path_only(
    tmp_path: Path, redis_client: Redis, redis_url: str
) -> None:
    unsigned = {"CREDHOOK_WEBHOOK_SECRETS": "", "CREDHOOK_INSECURE": "1"}
    with receiver(tmp_path, redis_url, options=(), CREDHOOK_PATH_SECRET=PATH_SECRET, **unsigned) as process:
        for path in ("", "/", "/wrong", f"/{PATH_SECRET}x", f"/{PATH_SECRET[:-1]}", f"/{PATH_SECRET}/x"):
            refused = plain.post(process.url + path, content=body(), headers={"webhook-id": "a.b/c"})
            assert refused.status_code == 404, path
        accepted = plain.post(f"{process.url}/{PATH_SECRET}", content=body(), headers={"webhook-id": "a.b/c"})
        assert status_of(accepted) == "accepted"
        assert redis_client.exists("credhook:credhook:event:a.b/c")
        assert PATH_SECRET not in process.text
        assert '"insecure"' not in process.text  # There is a secret.


@pytest.mark.parametrize("asked", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["new", "after an answer"])
def test_idle_connection_is_kept_as_long_as_the_setting_says(asked: bytes, tmp_path: Path, redis_url: str) -> None:
    def ask(connection: socket.socket) -> None:
        connection.sendall(asked)
        answer = b""
        while asked and not answer.endswith(b"alive\n"):
            answer += connection.recv(65_536)

    (tmp_path / "other").mkdir()
    usual, other = receiver(tmp_path, redis_url), receiver(tmp_path / "other", redis_url, CREDHOOK_IDLE_SECONDS="1")
    with usual, other, socket.create_connection(("127.0.0.1", usual.port)) as first:
        ask(first)
        time.sleep(1.0)  # By the same setting, the first connection would end first.
        with socket.create_connection(("127.0.0.1", other.port)) as second:
            ask(second)
            closed, *_ = select.select([first, second], [], [], 60)
            assert closed == [second]


def test_receivers_and_workers_wait_for_redis(tmp_path: Path, stub: Stub) -> None:
    port = free_port()
    rig = FleetHarness(tmp_path, f"redis://127.0.0.1:{port}/0", stub)
    rig.plugin(PLAIN)
    bare = {"CREDHOOK_WEBHOOK_SECRETS": "", "CREDHOOK_INSECURE": "1"}
    with closing(rig.redis), receiver(tmp_path, rig.redis_url, options=(), **bare) as process, rig.worker() as worker:
        refused = post(process.url)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert refused.json()["errors"][0]["code"] == "SERVICE_UNAVAILABLE"
        ready = process.url.replace("/webhooks", "/readyz")
        assert plain.get(ready).status_code == 503
        until(lambda: '"redis_unsafe"' in process.text)
        assert '"insecure"' in process.text
        until(lambda: '"redis_unusable"' in worker.text)

        server = start_server(tmp_path, port)
        try:
            until(lambda: plain.get(ready).status_code == 200)
            assert status_of(post(process.url)) == "accepted"
            rig.reaches("msg_1", "done")
        finally:
            server.terminate()
            server.wait()
