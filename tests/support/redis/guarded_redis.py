"""Our processes reach the tests' Redis as the users of deploy/redis-users.acl, confined to their queue as it says.

What Redis has refused fails the last test of each test process. With `TEST_REDIS=tls`, ours reach it over TLS with a
client certificate, which wants a Redis on PATH that is built with TLS: the wheel's is not. The tests themselves, `dev`,
`demo`, `doctor` on a host with every setting, and servers that a test starts for itself have an administrator.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import trustme
from redis import Redis, RedisError

from credhook.sandbox.local.environment import free_port
from support.checkout import ROOT

OVER_TLS: Final = os.environ.get("TEST_REDIS") == "tls"
_PASSWORD: Final = "of-nobody"
#: What runs as the operator.
_OPERATING: Final = {"events", "causes", "status", "console"}
_FILE: Final = (ROOT / "deploy" / "redis-users.acl").read_text()
#: Each user's name in that file → the words after its name.
USERS: Final[dict[str, str]] = dict(re.findall(r"^user credhook-(\w+) (.*)$", _FILE, re.MULTILINE))
#: A user's name → the patterns that confine it to a queue.
_CONFINED: Final[dict[str, str]] = dict(re.findall(r"^#   (\w+): (.*)$", _FILE, re.MULTILINE))


def confined(part: str, queue: str) -> str:
    """Return the words of a user that is confined to a queue, as the comments of the file say."""
    kept = " ".join(word for word in USERS[part].split() if word[0] not in "~&")
    return f"{kept} {_CONFINED[part].replace('QUEUE', queue)}"


@dataclass
class Guard:
    """How processes reach the Redis at `url`, once that is known."""

    folder: Path
    authority: trustme.CA
    url: str = ""
    port: int = field(default_factory=free_port)

    def options(self) -> tuple[str, ...]:
        """Write the certificates, and return the server's options."""
        if not OVER_TLS:
            return ()
        own = self.folder / "own.pem"
        self.authority.issue_cert("127.0.0.1", "credhook").private_key_and_cert_chain_pem.write_to_path(str(own))
        self.authority.cert_pem.write_to_path(str(self.folder / "authority.pem"))
        files = ("--tls-cert-file", own, "--tls-key-file", own, "--tls-ca-cert-file", self.folder / "authority.pem")
        return ("--tls-port", str(self.port), "--tls-auth-clients", "yes", *map(str, files))

    def environment(self, command: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment in which this command reaches Redis as its switch says."""
        guarded = dict(environment)
        if not self.url or environment.get("REDIS_URL") != self.url:
            return guarded
        user, port = "", urlsplit(self.url).port
        if part := _part(command, environment):
            user = f"{self._user(part, environment.get('CREDHOOK_QUEUE', 'credhook'))}:{_PASSWORD}@"
        if OVER_TLS:
            port = self.port
            guarded["CREDHOOK_REDIS_CERTFILE"] = str(self.folder / "own.pem")
            guarded["SSL_CERT_FILE"] = self._trusted(environment.get("SSL_CERT_FILE"))
        guarded["REDIS_URL"] = f"redis{'s' * OVER_TLS}://{user}127.0.0.1:{port}/0"
        return guarded

    def denied(self) -> list[str]:
        """Return what Redis has refused to these users."""
        with Redis.from_url(self.url) as redis:
            log = redis.acl_log()
        # redis-py tells its name to each Redis, and does without.
        return [str(one) for one in log if one["username"][:5] == "test-" and one["object"][:6] != "client"]

    def _user(self, part: str, queue: str) -> str:
        name = f"test-{part}-{queue}"
        rights = confined(part, queue) if part in _CONFINED else USERS[part]
        with suppress(RedisError), Redis.from_url(self.url) as redis:  # A test may have stopped or filled it.
            redis.execute_command(f"ACL SETUSER {name} reset {rights.replace(f'#{part.upper()}', f'>{_PASSWORD}')}")
        return name

    def _trusted(self, others: str | None) -> str:
        """Return a file of the authorities that a process trusts."""
        ours = self.folder / "authority.pem"
        if not others:
            return str(ours)
        both = self.folder / f"{abs(hash(others))}.pem"
        both.write_bytes(ours.read_bytes() + Path(others).read_bytes())
        return str(both)


def _part(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    text = " ".join(command)
    if " " in environment.get("CREDHOOK_QUEUE", ""):
        return None  # A wrong setting, which the process refuses.
    for part in _CONFINED:
        if f"credhook.{part}" in text or f"-m credhook {part}" in text:
            return part
    return "operator" if any(f"-m credhook {one}" in text for one in _OPERATING) else None


#: That of this test process, once it has a Redis.
GUARDS: Final[list[Guard]] = []


def guarded(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of this command; the same one if it uses another Redis."""
    return GUARDS[0].environment(command, environment) if GUARDS else dict(environment)
