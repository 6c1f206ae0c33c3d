"""A fleet that is well, for `credhook doctor` to look at: each test breaks one part of it, and mends it."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import commands
import trustme
from redis import Redis
from redis_keys import INDEX, RECEIVERS
from serving import Platform, Process, Receiver, receiver, running
from signing import SECRET
from tunnel import tunnel
from waiting import until

from credhook.sandbox.local.environment import local_redis

HANDLERS = """
from credhook import Handlers

handlers = Handlers("clinic")

@handlers.on("openid4vc.issuance.completed", "openid4vc.verification.data")
async def keep(event, context): ...
"""
PATH_SECRET = "clinic-path-secret-0123456789"
DELIVERIES = f"/webhooks/{PATH_SECRET}"


@dataclass
class Clinic:
    """What is there, what a host with all settings has in its environment, and what is ended with the test."""

    folder: Path
    redis: Redis
    receiver: Receiver
    sandbox: Platform
    authority: trustme.CA
    environment: dict[str, str]
    stack: ExitStack = field(default_factory=ExitStack)

    def doctor(self, *options: str, **otherwise: str) -> tuple[int, dict[str, dict[str, str]], str]:
        """Exit code, findings by name, and all that it has said."""
        environment = {**self.environment, **otherwise}
        done = commands.credhook("doctor", "--json", *options, environment=environment, folder=self.folder)
        findings = [json.loads(line) for line in done.stdout.splitlines()]
        return done.returncode, {one["name"]: one for one in findings}, done.stdout + done.stderr

    def config(self, name: str, value: str) -> dict[str, str]:
        """Configure Redis otherwise, for this test."""
        before: Any = self.redis.config_get(name)
        self.stack.callback(self.redis.config_set, name, before[name])
        self.redis.config_set(name, value)
        return {}

    def user(self, rights: str) -> dict[str, str]:
        """Be a user of Redis with these rights alone."""
        self.redis.execute_command(f"ACL SETUSER limited reset on >limited-password {rights}")  # type: ignore[no-untyped-call]
        self.stack.callback(self.redis.execute_command, "ACL DELUSER limited")
        return {"REDIS_URL": self.environment["REDIS_URL"].replace("redis://", "redis://limited:limited-password@")}

    def public(self, certificate: trustme.LeafCert, path: str = DELIVERIES, port: int = 0) -> dict[str, str]:
        """Have another public URL, with that certificate; without a port it leads to the receiver."""
        url = self.stack.enter_context(tunnel(certificate, port or self.receiver.port))
        return {"CREDHOOK_PUBLIC_URL": url + path}

    def announced(self, key: str, said: dict[str, Any]) -> dict[str, str]:
        """Let another process have announced itself there just now."""
        now = self.redis.time()[0] * 1_000
        self.redis.hset(key, "planted", f"{now} {now} {json.dumps(said)}")
        self.stack.callback(self.redis.hdel, key, "planted")
        return {}

    def registered(self, *types: str) -> dict[str, str]:
        """Be registered for these types instead."""
        options = [option for each in types for option in ("--type", each)] or ["--all"]
        self._apply(*options)
        self.stack.callback(self._apply)
        return {}

    def _apply(self, *options: str) -> None:
        done = commands.credhook("endpoints", "apply", *options, environment=self.environment, folder=self.folder)
        assert done.returncode == 0, done.stderr


@contextmanager
def clinic(folder: Path, sandbox: Platform, authority: trustme.CA, ca: Path) -> Iterator[Clinic]:
    """All parts, started; the endpoint is registered."""
    (folder / "clinic_handlers.py").write_text(HANDLERS)
    (folder / "idle.py").write_text("import credhook\nhandlers = credhook.Handlers('idle')\n")
    with ExitStack() as stack:
        url = stack.enter_context(local_redis(folder, options=("--maxmemory", "1gb")))
        redis = stack.enter_context(Redis.from_url(url))
        server = stack.enter_context(receiver(folder, url, CREDHOOK_PATH_SECRET=PATH_SECRET))
        public = stack.enter_context(tunnel(authority.issue_cert("127.0.0.1"), server.port))
        platform = {name: value for name, value in sandbox.environment.items() if "WEBHOOK" not in name}
        environment = {
            **platform,
            "REDIS_URL": url,
            "CREDHOOK_HANDLERS": "clinic_handlers",
            "CREDHOOK_WEBHOOK_SECRETS": SECRET,
            "CREDHOOK_PATH_SECRET": PATH_SECRET,
            "CREDHOOK_PUBLIC_URL": public + DELIVERIES,
            "SSL_CERT_FILE": str(ca),
            "PATH": os.environ["PATH"],
        }
        worker: Process = stack.enter_context(running(folder / "worker.log", "worker", environment=environment))
        one = Clinic(folder, redis, server, sandbox, authority, environment)
        one._apply()
        until(lambda: redis.hlen(RECEIVERS) and redis.hlen(INDEX.handlers), what=f"both; {worker.text}")
        yield one
        listed = commands.credhook("api", "endpoints", "list", environment=environment, folder=folder).stdout
        for endpoint in json.loads(listed):
            commands.credhook("endpoints", "delete", endpoint["id"], environment=environment, folder=folder)


Break = Callable[[Clinic], dict[str, str]]
