"""Connect to Redis, for asynchronous and synchronous code."""

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import HiredisRespSerializer
from redis.retry import Retry as SyncRetry

from credhook.store.address import RedisAddress
from credhook.store.errors import STORE_ERRORS

#: Seconds until a silent Redis counts as gone: a sender waits for us no longer than this.
REDIS_TIMEOUT: Final = 5.0

#: The arguments of a command.
Command = tuple[str | int | float | bytes, ...]

#: Options of a synchronous client that gives up at the first failure, because a person waits for the answer, or because
#: the failed command may have been executed.
BRIEFLY: Final[Mapping[str, Any]] = {"retry": SyncRetry(NoBackoff(), 0), "protocol": 2}

_SERIALIZER: Final = HiredisRespSerializer()


class _Connection(AbstractConnection):
    """A connection that packs commands in C and does not lose a cancellation during a send.

    redis-py sends through `asyncio.wait_for`. On Python 3.11 that drops a cancellation if the send has just finished:
    one in five, measured. Packing in Python takes a fifteenth of the time of an event, measured.
    """

    def pack_command(self, *args: Any) -> list[bytes]:
        """Return the bytes of a command.

        Raises:
            DataError: an argument is neither text, bytes, nor a number.
        """
        packed: list[bytes] = _SERIALIZER.pack(*args)
        return packed

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """Send a command.

        Raises:
            asyncio.CancelledError: the task was cancelled meanwhile. The command may have been sent.
        """
        task = asyncio.current_task()
        # A task that was cancelled earlier may clean up here. Only a cancellation during the send counts.
        before = task.cancelling() if task else 0
        try:
            await super().send_packed_command(command, check_health)
        finally:
            if task and task.cancelling() > before:
                await self.disconnect(nowait=True)  # The answer will not be read.
                raise asyncio.CancelledError


def _cancellable(client: redis.asyncio.Redis) -> redis.asyncio.Redis:
    """Return the same client. Its future connections lose no cancellation."""
    pool = client.connection_pool
    kind: type[AbstractConnection] = pool.connection_class
    pool.connection_class = type(f"Cancellable{kind.__name__}", (_Connection, kind), {})
    return client


class _SentinelConnectionPool(redis.asyncio.sentinel.SentinelConnectionPool):
    """A pool that also closes the connections to its Sentinels. redis-py's leaves them open."""

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            await self.sentinel_manager.aclose()


def open_redis(address: RedisAddress | str, **options: Any) -> redis.asyncio.Redis:
    """Return an asynchronous client of the address or `REDIS_URL`. It connects at its first command.

    The client does not repeat a failed command, because only the caller knows if that is safe.

    Raises:
        ValueError: the URL is not valid.
    """
    address, of_sentinels, options = _read(address, {"retry": Retry(NoBackoff(), 0), **options})
    if not address.service:
        return _cancellable(redis.asyncio.Redis(**options))
    sentinel = redis.asyncio.sentinel.Sentinel(address.hosts, sentinel_kwargs=of_sentinels, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
    for client in sentinel.sentinels:
        _cancellable(client)
    master = sentinel.master_for(address.service, connection_pool_class=_SentinelConnectionPool)
    return _cancellable(cast(redis.asyncio.Redis, master))


def open_redis_sync(address: RedisAddress | str, **options: Any) -> redis.Redis:
    """Return a synchronous client, for RQ and the command line. Raises as `open_redis` does."""
    address, of_sentinels, options = _read(address, options)
    if not address.service:
        return redis.Redis(**options)
    sentinel = redis.sentinel.Sentinel(address.hosts, sentinel_kwargs=of_sentinels, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
    return cast(redis.Redis, sentinel.master_for(address.service))  # type: ignore[no-untyped-call]  # redis-py's gap


class RedisConnection:
    """One connection of a client, whose commands share one time limit. Its owner notices when it has to be opened."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._pool = client.connection_pool
        self._connection: AbstractConnection | None = None

    @property
    def is_open(self) -> bool:
        """Return True unless the connection was never opened, has failed, or was closed by Redis."""
        return self._connection is not None and self._connection.is_connected

    async def open(self) -> None:
        """Connect.

        Raises:
            RedisError, OSError: Redis cannot be reached.
        """
        # After a restart or a failover another server may answer: other idle connections lead to the old one.
        with suppress(*STORE_ERRORS):
            await self._pool.disconnect(inuse_connections=False)
        if self._connection is None:
            self._connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        else:
            await self._connection.connect()  # type: ignore[no-untyped-call]
        # `send` has a time limit. With this, redis-py would create a task for each write.
        self._connection.socket_timeout = None

    async def send(self, *commands: Command) -> list[Any]:
        """Send commands and return their replies. After any error the connection is closed.

        Raises:
            RedisError, OSError: Redis failed, or refused a command.
        """
        connection = cast(AbstractConnection, self._connection)
        try:
            async with asyncio.timeout(REDIS_TIMEOUT):
                await connection.send_packed_command(connection.pack_commands(commands))
                return [await connection.read_response() for _ in commands]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise

    async def aclose(self) -> None:
        """Close the connection."""
        if self._connection:
            await self._connection.disconnect()


def _read(
    address: RedisAddress | str, options: Mapping[str, Any]
) -> tuple[RedisAddress, dict[str, Any], dict[str, Any]]:
    """Return the address, the options for Sentinels, and those for Redis; `options` go before ours."""
    address = RedisAddress.parse(address) if isinstance(address, str) else address
    timeouts = {name: options.get(name, REDIS_TIMEOUT) for name in ("socket_timeout", "socket_connect_timeout")}
    any_server: dict[str, Any] = {**timeouts, "ssl": address.tls}
    if address.tls:  # redis-py reads these files for each connection, so a renewed certificate needs no restart.
        own = {"ssl_certfile": address.certfile, "ssl_keyfile": address.keyfile}
        any_server |= {"ssl_cert_reqs": ssl.CERT_REQUIRED, **own}
    place: dict[str, Any] = {}
    if address.path:
        place = {"unix_socket_path": address.path}
    elif not address.service:
        place = dict(zip(("host", "port"), address.hosts[0], strict=True))
    user = {"db": address.db, "username": address.username, "password": address.password}
    return address, any_server, {**place, **user, **any_server, **options}
