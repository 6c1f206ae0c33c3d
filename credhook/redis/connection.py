"""How Redis is reached: `REDIS_URL` in all its forms, for asynchronous and synchronous code."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, cast
from urllib.parse import unquote, urlsplit

import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from credhook.redis.cancellation import heeding_cancellation

#: Seconds until a silent Redis counts as gone: a sender waits for us no longer than this.
REDIS_TIMEOUT: Final = 5.0

_REDIS_PORT: Final = 6_379
_SENTINEL_PORT: Final = 26_379

_FORMS: Final = (
    "should be redis://, rediss:// or unix:// and an address, or redis+sentinel:// or rediss+sentinel:// with "
    "host:port,host:port/service/db; a password's special characters percent-encoded, and no ?options"
)


class _SentinelConnectionPool(redis.asyncio.sentinel.SentinelConnectionPool):
    """Leaves none of its Sentinels connected when it is closed, as redis-py's does."""

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            await self.sentinel_manager.aclose()


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """`REDIS_URL`, taken apart.

    Attributes:
        hosts: host and port of Redis, or of each Sentinel; empty for a Unix socket.
        service: the master's name among Sentinels, or "".
        path: the Unix socket, or "".
        db: number of the database.
        tls: whether the connection is encrypted.
        username: as Redis knows it, or None.
        password: likewise.
    """

    hosts: tuple[tuple[str, int], ...]
    service: str = ""
    path: str = ""
    db: int = 0
    tls: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read the URL.

        Raises:
            ValueError: it is of no form that we know. The message never holds a part of it, since that may be a secret.
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
        if kind and not service:
            raise ValueError(kind)
        port = _SENTINEL_PORT if kind else _REDIS_PORT
        hosts = tuple(_host(address, port) for address in addresses.split(","))
        if len(hosts) > 1 and not kind:
            raise ValueError(kind)
        return cls(
            hosts, service=service, db=int(db or 0), tls=scheme == "rediss", username=username, password=password
        )

    def __str__(self) -> str:
        """The URL without user and password."""
        if self.path:
            return f"unix://{self.path}"
        kind = "+sentinel" if self.service else ""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"redis{'s' * self.tls}{kind}://{hosts}/{self.service}{'/' * bool(self.service)}{self.db}"

    def open(self, **options: Any) -> redis.asyncio.Redis:
        """An asynchronous client; it connects when it is first used.

        A failed command is not sent again by itself: what may be repeated is decided where the command is known. A
        task that is cancelled while it awaits the client is told so, each time.
        """
        options = {**self._options(), "retry": Retry(NoBackoff(), 0), **options}
        if self.service:
            sentinel = redis.asyncio.sentinel.Sentinel(  # type: ignore[no-untyped-call]  # redis-py's gap
                self.hosts, sentinel_kwargs=self._transport(options), **options
            )
            for each in sentinel.sentinels:
                heeding_cancellation(each)
            master = sentinel.master_for(self.service, connection_pool_class=_SentinelConnectionPool)
            return heeding_cancellation(cast(redis.asyncio.Redis, master))
        return heeding_cancellation(redis.asyncio.Redis(**self._address(), **options))

    def open_sync(self, **options: Any) -> redis.Redis:
        """The same for RQ and for the command line, which are synchronous."""
        options = {**self._options(), **options}
        if self.service:
            sentinel = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]  # redis-py's gap
                self.hosts, sentinel_kwargs=self._transport(options), **options
            )
            return cast(redis.Redis, sentinel.master_for(self.service))  # type: ignore[no-untyped-call]  # likewise
        return redis.Redis(**self._address(), **options)

    def _address(self) -> dict[str, Any]:
        if self.path:
            return {"unix_socket_path": self.path}
        host, port = self.hosts[0]
        return {"host": host, "port": port}

    def _options(self) -> dict[str, Any]:
        return {"db": self.db, "username": self.username, "password": self.password, **self._transport({})}

    def _transport(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """How any server is reached, Sentinel or Redis; `options` may say how long to wait for it."""
        timeouts: dict[str, Any] = {
            name: options.get(name, REDIS_TIMEOUT) for name in ("socket_timeout", "socket_connect_timeout")
        }
        if self.path:
            return timeouts
        return {**timeouts, "ssl": self.tls, **({"ssl_cert_reqs": ssl.CERT_REQUIRED} if self.tls else {})}


def _host(address: str, port: int) -> tuple[str, int]:
    """Host and port of `host`, `host:port`, `[::1]` or `[::1]:port`."""
    parts = urlsplit(f"//{address}")
    if not parts.hostname:
        raise ValueError(address)
    return parts.hostname, parts.port or port


def open_redis(url: str, **options: Any) -> redis.asyncio.Redis:
    """`RedisAddress.open` of a URL."""
    return RedisAddress.parse(url).open(**options)


def open_redis_sync(url: str, **options: Any) -> redis.Redis:
    """`RedisAddress.open_sync` of a URL."""
    return RedisAddress.parse(url).open_sync(**options)
