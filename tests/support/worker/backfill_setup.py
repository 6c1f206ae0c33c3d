"""A platform, a receiver and a store, between which deliveries are lost; and `credhook events backfill`."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import trustme
from redis import Redis

from credhook.store import BACKFILLED
from support.platform.webhook_endpoint import happen, register, settled
from support.process.commands import invoke
from support.process.serving import Receiver, platform
from support.store.stores import EVENT
from support.worker.events_command import process
from support.worker.harness import Harness

#: The command for all that has ever happened.
ALL_TIMES = ("backfill", "--since", "6d", "--until", "0s")
#: Writes down which types of which resources a handler has run for.
NOTING = """
@handlers.on("*")
async def seen(event, context):
    note(event.type, event.resource_id)
"""


class Scene(Harness):
    """What a test of lost deliveries needs: it makes things happen, and loses what is to announce them."""

    def happen(self, event_type: str, *, lost: bool, count: int = 1, **more: Any) -> list[str]:
        """Let it happen; the resources. Deliveries are lost until the platform gives them up."""
        if not lost:
            settled(self.sandbox, within=600)
        self.sandbox.faults(drop=1_000_000 if lost else 0)
        return [each["resourceId"] for each in happen(self.sandbox, event_type, count=count, **more)]

    def backfill(self, *options: str, **settings: str) -> "subprocess.Popen[str]":
        """The command as a process."""
        environment = {**os.environ, **self.environment, **settings}
        return process(self.redis_url, *ALL_TIMES, *options, env=environment, cwd=self.folder)

    def backfilled(self, *options: str, **settings: str) -> dict[str, Any]:
        """What it prints, once it has ended well."""
        environment = {**os.environ, **self.environment, **settings, "PYTHONPATH": str(self.folder)}
        done = invoke("events", *ALL_TIMES, "--json", *options, environment=environment, folder=self.folder)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@contextmanager
def scene(folder: Path, redis_url: str, authority: trustme.CA) -> Iterator[Scene]:
    """Both processes, the receiver on HTTPS and registered with the platform for everything.

    The sender gives up after three seconds, which are 100,000 of its own.
    """
    certificate, ca = folder / "certificate.pem", folder / "ca.pem"
    certificate.write_bytes(authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.bytes())
    authority.cert_pem.write_to_path(str(ca))
    with ExitStack() as stack:
        sandbox = stack.enter_context(platform(folder, "--ca", str(ca), "--time-scale", "3e-5"))
        secret = sandbox.environment["CREDHOOK_WEBHOOK_SECRETS"]
        settings = {"CREDHOOK_TLS_CERTFILE": str(certificate), "CREDHOOK_WEBHOOK_SECRETS": secret}
        listening = Receiver(folder, redis_url, **settings)
        stack.callback(listening.kill)
        register(sandbox, listening.url)
        made = Scene(folder, redis_url, sandbox)
        made.plugin(NOTING)
        stack.callback(made.redis.close)
        yield made


def backfilled_ids(redis: Redis) -> list[str]:
    """Return the webhook-ids of the events that a backfill has accepted."""
    keys = redis.scan_iter(match=f"{EVENT}{BACKFILLED}*", count=1_000)
    return sorted(key.decode().removeprefix(EVENT) for key in keys)
