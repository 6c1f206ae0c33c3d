"""Parse `REDIS_URL` in all its forms, without redis-py: that would be a fifth of a supervisor's imports."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

_REDIS_PORT: Final = 6_379
_SENTINEL_PORT: Final = 26_379

_FORMS: Final = (
    "should be redis://, rediss:// or unix:// and an address, or redis+sentinel:// or rediss+sentinel:// with "
    "host:port,host:port/service/db; a password's special characters percent-encoded, and no ?options"
)


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The parts of `REDIS_URL`. A Unix socket has only a `path`. `service` is the name of a master among Sentinels.

    `certfile` and `keyfile` are not in the URL: they hold our certificate for a Redis that asks for one. Neither are
    the user and the password of the Sentinels.
    """

    hosts: tuple[tuple[str, int], ...]
    service: str = ""
    path: str = ""
    db: int = 0
    tls: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    certfile: Path | None = None
    keyfile: Path | None = None
    sentinel_username: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)

    @property
    def spare_password(self) -> str | None:
        """Return the password for Sentinels that ask for one and have none of their own: charts give them Redis's."""
        return None if self.sentinel_password else self.password

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read the URL.

        Raises:
            ValueError: the URL is not valid. The message quotes no part of it, because it may hold a password.
        """
        try:
            return cls._parse(url)
        except ValueError:
            raise ValueError(_FORMS) from None

    @classmethod
    def _parse(cls, url: str) -> Self:
        parts = urlsplit(url)
        scheme, _, kind = parts.scheme.partition("+")
        if parts.query or parts.fragment or kind not in {"", "sentinel"} or scheme not in {"redis", "rediss", "unix"}:
            raise ValueError(scheme)
        credentials, _, addresses = parts.netloc.rpartition("@")
        user, _, secret = credentials.partition(":")
        username, password = unquote(user) or None, unquote(secret) or None
        if scheme == "unix":
            if not parts.path or addresses or kind:
                raise ValueError(scheme)
            return cls((), path=unquote(parts.path), username=username, password=password)
        service, _, db = parts.path.strip("/").partition("/") if kind else ("", "", parts.path.strip("/"))
        port = _SENTINEL_PORT if kind else _REDIS_PORT
        hosts = tuple(_host(address, port) for address in addresses.split(","))
        if (kind and (not service or "@" in credentials)) or (len(hosts) > 1 and not kind):
            raise ValueError(kind)
        return cls(
            hosts, service=service, db=int(db or 0), tls=scheme == "rediss", username=username, password=password
        )

    def __str__(self) -> str:
        """Return the URL without user and password."""
        if self.path:
            return f"unix://{self.path}"
        kind = "+sentinel" if self.service else ""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"redis{'s' * self.tls}{kind}://{hosts}/{self.service}{'/' * bool(self.service)}{self.db}"


def _host(address: str, port: int) -> tuple[str, int]:
    """Host and port of `host`, `host:port`, `[::1]` or `[::1]:port`."""
    parts = urlsplit(f"//{address}")
    if not parts.hostname:
        raise ValueError(address)
    return parts.hostname, parts.port or port
