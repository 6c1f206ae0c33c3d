"""How Redis is reached, for asynchronous and synchronous code."""

import ssl
from collections.abc import Mapping
from typing import Any, Final, cast

import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from credhook.store.address import RedisAddress
from credhook.store.cancellation import heeding_cancellation

#: Seconds until a silent Redis counts as gone: a sender waits for us no longer than this.
REDIS_TIMEOUT: Final = 5.0


class _SentinelConnectionPool(redis.asyncio.sentinel.SentinelConnectionPool):
    """Leaves none of its Sentinels connected when it is closed, as redis-py's does."""

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            await self.sentinel_manager.aclose()


def open_redis(address: RedisAddress | str, **options: Any) -> redis.asyncio.Redis:
    """An asynchronous client of that address or `REDIS_URL`; it connects when it is first used.

    A failed command is not sent again by itself: what may be repeated is decided where the command is known. A
    task that is cancelled while it awaits the client is told so, each time.

    Raises:
        ValueError: it is a URL of no form that we know.
    """
    address = _parsed(address)
    options = {**_options(address), "retry": Retry(NoBackoff(), 0), **options}
    if address.service:
        sentinel = redis.asyncio.sentinel.Sentinel(  # type: ignore[no-untyped-call]  # redis-py's gap
            address.hosts, sentinel_kwargs=_transport(address, options), **options
        )
        for each in sentinel.sentinels:
            heeding_cancellation(each)
        master = sentinel.master_for(address.service, connection_pool_class=_SentinelConnectionPool)
        return heeding_cancellation(cast(redis.asyncio.Redis, master))
    return heeding_cancellation(redis.asyncio.Redis(**_place(address), **options))


def open_redis_sync(address: RedisAddress | str, **options: Any) -> redis.Redis:
    """The same for RQ and for the command line, which are synchronous."""
    address = _parsed(address)
    options = {**_options(address), **options}
    if address.service:
        sentinel = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]  # redis-py's gap
            address.hosts, sentinel_kwargs=_transport(address, options), **options
        )
        return cast(redis.Redis, sentinel.master_for(address.service))  # type: ignore[no-untyped-call]  # likewise
    return redis.Redis(**_place(address), **options)


def clock(client: redis.Redis) -> int:
    """Return Redis's time in ms since the epoch: the clocks of hosts may differ."""
    seconds, microseconds = client.time()
    return int(seconds * 1_000 + microseconds // 1_000)


def _parsed(address: RedisAddress | str) -> RedisAddress:
    return RedisAddress.parse(address) if isinstance(address, str) else address


def _place(address: RedisAddress) -> dict[str, Any]:
    if address.path:
        return {"unix_socket_path": address.path}
    host, port = address.hosts[0]
    return {"host": host, "port": port}


def _options(address: RedisAddress) -> dict[str, Any]:
    return {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        **_transport(address, {}),
    }


def _transport(address: RedisAddress, options: Mapping[str, Any]) -> dict[str, Any]:
    """How any server is reached, Sentinel or Redis; `options` may say how long to wait for it."""
    timeouts: dict[str, Any] = {
        name: options.get(name, REDIS_TIMEOUT) for name in ("socket_timeout", "socket_connect_timeout")
    }
    if address.path:
        return timeouts
    return {**timeouts, "ssl": address.tls, **({"ssl_cert_reqs": ssl.CERT_REQUIRED} if address.tls else {})}
