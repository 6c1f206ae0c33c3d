"""How Redis is reached: `REDIS_URL` in all its forms, for asynchronous and synchronous code."""

from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

#: Seconds until a silent Redis counts as gone: a sender waits for us no longer than this.
REDIS_TIMEOUT: Final = 5.0


def open_redis(url: str, **options: Any) -> redis.asyncio.Redis:
    """An asynchronous client for `REDIS_URL`; opens no connection yet.

    A failed command is not sent again by itself: what may be repeated is decided where the command is known.
    """
    timeouts = {"socket_timeout": REDIS_TIMEOUT, "socket_connect_timeout": REDIS_TIMEOUT}
    options = {**timeouts, "retry": Retry(NoBackoff(), 0), **options}
    if not url.startswith("redis+sentinel"):
        return redis.asyncio.Redis.from_url(url, **options)
    hosts, service, options = _sentinel(url, options)
    sentinel = redis.asyncio.sentinel.Sentinel(hosts, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
    return cast(redis.asyncio.Redis, sentinel.master_for(service, **options))


def open_redis_sync(url: str, **options: Any) -> redis.Redis:
    """The same for RQ and for the command line, which are synchronous."""
    if not url.startswith("redis+sentinel"):
        return redis.Redis.from_url(url, **options)
    hosts, service, options = _sentinel(url, options)
    sentinel = redis.sentinel.Sentinel(hosts, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
    return cast(redis.Redis, sentinel.master_for(service, **options))  # type: ignore[no-untyped-call]  # as above


def _sentinel(url: str, options: dict[str, Any]) -> tuple[list[tuple[str, int]], str, dict[str, Any]]:
    """Take apart `redis+sentinel://[user:password@]host:port,host:port/service[/db]`; `rediss+…` asks for TLS."""
    parts = urlsplit(url)
    credentials, _, addresses = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("REDIS_URL: a Sentinel URL names its service, redis+sentinel://host:port/service")
    hosts = []
    for address in addresses.split(","):
        host, _, port = address.rpartition(":")
        hosts.append((host, int(port)) if host else (port, 26_379))
    return (
        hosts,
        service,
        options
        | {
            "db": int(db or 0),
            "username": unquote(user) or None,
            "password": unquote(password) or None,
            "ssl": parts.scheme.startswith("rediss"),
        },
    )
