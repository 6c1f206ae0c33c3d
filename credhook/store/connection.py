"""Connect to Redis, for asynchronous and synchronous code.

After a failover behind one name, connections to the old master stay open: it goes on as a replica. So an error that may
come from a wrong server ends the generation of the process's connections: each connects again before its next use.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis import exceptions
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection as AbstractSyncConnection
from redis.connection import HiredisRespSerializer
from redis.retry import Retry as SyncRetry

from credhook.store.address import RedisAddress
from credhook.store.errors import STORE_ERRORS, SentinelRefused, asks_for_password, failed_sentinels, leads_elsewhere

#: Seconds until a silent Redis counts as gone: a sender waits for us no longer than this.
REDIS_TIMEOUT: Final = 5.0
#: Seconds until a silent Sentinel counts as gone. The next one is asked then, within the time for connecting.
SENTINEL_TIMEOUT: Final = 1.0

#: Seconds after which an idle connection is checked before its use. A box on the way may have forgotten it.
IDLE_SECONDS: Final = 2.0
#: Seconds that the answer to this check may take. Then the connection is opened again.
_PING_SECONDS: Final = 1.0

#: The arguments of a command.
Command = tuple[str | int | float | bytes, ...]

#: Options of a synchronous client that gives up at the first failure, because a person waits for the answer, or because
#: the failed command may have been executed.
BRIEFLY: Final[Mapping[str, Any]] = {"retry": SyncRetry(NoBackoff(), 0)}

_SERIALIZER: Final = HiredisRespSerializer()


class _Generation:
    """The number of times that the process's connections had to be opened again."""

    current = 0


def _end_generation(reply: object) -> None:
    """Let all connections be opened again if this error, or the last reply of a script, may be of a wrong server."""
    last = reply[-1] if type(reply) is list and reply else reply
    if isinstance(last, Exception) and leads_elsewhere(last):
        _Generation.current += 1


class _SyncConnection(AbstractSyncConnection):
    """A connection of the current generation."""

    _generation = 0

    def connect(self) -> None:
        """Connect, unless the connection is open and of the current generation."""
        if self.is_connected and self._generation != _Generation.current:
            self.disconnect()  # type: ignore[no-untyped-call]  # redis-py's gap
        self._generation = _Generation.current
        super().connect()  # type: ignore[no-untyped-call]  # redis-py's gap

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply."""
        try:
            reply = super().read_response(*args, **kwargs)
        except STORE_ERRORS as error:
            _end_generation(error)
            raise
        _end_generation(reply)
        return reply


class _Connection(AbstractConnection):
    """A connection of the current generation. It packs commands in C, and loses no cancellation during a send.

    redis-py sends through `asyncio.wait_for`. On Python 3.11 that drops a cancellation if the send has just finished:
    one in five, measured. Packing in Python takes a fifteenth of the time of an event, measured.
    """

    _generation = 0
    #: When the last reply came, in monotonic seconds.
    _used_at = 0.0

    async def connect(self) -> None:
        """Connect as `_SyncConnection` does, in `REDIS_TIMEOUT` as a whole: redis-py limits each step alone.

        An open connection that was idle is kept if it answers.

        Raises:
            TimeoutError: Sentinels, connecting and login have taken too long.
        """
        is_old = self._generation != _Generation.current
        is_idle = time.monotonic() - self._used_at > IDLE_SECONDS
        if self.is_connected and (is_old or (is_idle and not await self._answers())):
            await self.disconnect(nowait=True)
        self._generation = _Generation.current
        if self.is_connected:
            return
        try:
            async with asyncio.timeout(REDIS_TIMEOUT):
                await super().connect()  # type: ignore[no-untyped-call]  # redis-py's gap
        except TimeoutError:
            raise exceptions.TimeoutError("connecting took too long") from None

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply."""
        try:
            reply = await super().read_response(*args, **kwargs)
        except STORE_ERRORS as error:
            _end_generation(error)
            raise
        self._used_at = time.monotonic()
        _end_generation(reply)
        return reply

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(_PING_SECONDS):
                await self.send_command("PING", check_health=False)
                await self.read_response()
        except STORE_ERRORS:
            return False
        return True

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


def _with_ours(client: Any) -> Any:
    """Return the same client. Its future connections are ours."""
    pool = client.connection_pool
    kind: type[Any] = pool.connection_class
    ours = _Connection if isinstance(client, redis.asyncio.Redis) else _SyncConnection
    pool.connection_class = type(f"Our{kind.__name__}", (ours, kind), {})
    return client


class _SparePassword:
    """Gives Sentinels Redis's password if they ask for one and have none of their own."""

    sentinels: list[Any]
    spare_password: str | None = None

    def log_in(self, error: Exception) -> bool:
        """Have future connections to the Sentinels log in. Refused ones are closed.

        Return False if they ask for no password.

        Raises:
            SentinelRefused: they refuse our password, or want one.
        """
        if not asks_for_password(error):
            return False
        if self.spare_password is None:
            raise SentinelRefused(str(error)) from None
        for sentinel in self.sentinels:
            sentinel.connection_pool.connection_kwargs["password"] = self.spare_password
            sentinel.connection_pool.reset()
        self.spare_password = None
        return True


class _Sentinels(_SparePassword, redis.asyncio.sentinel.Sentinel):
    async def discover_master(self, service_name: str) -> Any:
        """Return the address of the master.

        Raises:
            MasterNotFoundError: the Sentinels that answer know no running master of that name.
            ConnectionError, TimeoutError: no Sentinel answers.
        """
        try:
            return await super().discover_master(service_name)
        except redis.asyncio.sentinel.MasterNotFoundError as error:
            failure = error
        if self.log_in(failure):
            return await self.discover_master(service_name)
        if failed_sentinels(failure) == len(self.sentinels):
            await self.sentinels[0].ping()  # It raises the reason, which redis-py's error leaves out.
        raise failure


class _SyncSentinels(_SparePassword, redis.sentinel.Sentinel):
    def discover_master(self, service_name: str) -> Any:
        """Do what `_Sentinels.discover_master` does."""
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]  # redis-py's gap
        except redis.sentinel.MasterNotFoundError as error:
            failure = error
        if self.log_in(failure):
            return self.discover_master(service_name)
        if failed_sentinels(failure) == len(self.sentinels):
            self.sentinels[0].ping()
        raise failure


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
        return cast(redis.asyncio.Redis, _with_ours(redis.asyncio.Redis(**options)))
    no_retry = {"retry": Retry(NoBackoff(), 0)}
    sentinels = _Sentinels(address.hosts, sentinel_kwargs=of_sentinels | no_retry, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
    sentinels.spare_password = address.spare_password
    for sentinel in sentinels.sentinels:
        _with_ours(sentinel)
    master = sentinels.master_for(address.service, connection_pool_class=_SentinelConnectionPool)
    return cast(redis.asyncio.Redis, _with_ours(master))


def open_redis_sync(address: RedisAddress | str, **options: Any) -> redis.Redis:
    """Return a synchronous client, for RQ and the command line. Raises as `open_redis` does."""
    address, of_sentinels, options = _read(address, options)
    if not address.service:
        return cast(redis.Redis, _with_ours(redis.Redis(**options)))
    sentinels = _SyncSentinels(address.hosts, sentinel_kwargs=of_sentinels | {"retry": BRIEFLY["retry"]}, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
    sentinels.spare_password = address.spare_password
    return cast(redis.Redis, _with_ours(sentinels.master_for(address.service)))  # type: ignore[no-untyped-call]  # redis-py's gap


class RedisConnection:
    """One connection of a client, whose commands share one time limit. Its owner notices when it has to be opened."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._connection: AbstractConnection | None = None
        #: When the last reply came, in monotonic seconds.
        self._used_at = 0.0

    @property
    def is_open(self) -> bool:
        """Return True unless the connection was never opened, was idle, has failed, or was closed by Redis."""
        is_idle = time.monotonic() - self._used_at > IDLE_SECONDS
        return self._connection is not None and self._connection.is_connected and not is_idle

    async def open(self) -> None:
        """Connect, or check that a connection that was idle still answers.

        Raises:
            RedisError, OSError: Redis cannot be reached.
        """
        if self._connection is None:
            self._connection = await self._client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        else:
            await self._connection.connect()  # type: ignore[no-untyped-call]
        # `send` has a time limit. With this, redis-py would create a task for each write.
        self._connection.socket_timeout = None
        self._used_at = time.monotonic()

    async def send(self, *commands: Command) -> list[Any]:
        """Send commands and return their replies. After any error the connection is closed.

        Raises:
            RedisError, OSError: Redis failed, or refused a command.
        """
        connection = cast(AbstractConnection, self._connection)
        return await self._exchange(commands, lambda _: connection.read_response())

    async def query(self, *commands: Command) -> list[Any]:
        """Send commands and return their replies as the client reads them, with Redis's refusals in their places.

        Raises:
            RedisError, OSError: the connection has failed. It is closed.
        """

        async def read(command: Command) -> Any:
            try:
                return await self._client.parse_response(cast(Any, self._connection), str(command[0]))
            except exceptions.ResponseError as refusal:
                return refusal

        return await self._exchange(commands, read)

    async def _exchange(self, commands: Sequence[Command], read: Callable[[Command], Awaitable[Any]]) -> list[Any]:
        connection = cast(AbstractConnection, self._connection)
        try:
            async with asyncio.timeout(REDIS_TIMEOUT):
                if await connection.can_read():  # A reply too many would be taken for the reply to these commands.
                    raise exceptions.ConnectionError("there is an unread reply")  # noqa: TRY301
                await connection.send_packed_command(connection.pack_commands(commands))
                replies = [await read(command) for command in commands]
        except BaseException as error:
            _end_generation(error)
            await connection.disconnect(nowait=True)
            raise
        self._used_at = time.monotonic()
        return replies

    async def aclose(self) -> None:
        """Close the connection."""
        if self._connection:
            await self._connection.disconnect()


def _read(
    address: RedisAddress | str, options: Mapping[str, Any]
) -> tuple[RedisAddress, dict[str, Any], dict[str, Any]]:
    """Return the address, the options for Sentinels, and those for Redis; `options` go before ours."""
    address = RedisAddress.parse(address) if isinstance(address, str) else address
    names = ("socket_timeout", "socket_connect_timeout")
    timeouts = {name: options.get(name, REDIS_TIMEOUT) for name in names}
    # Proxies may lack HELLO, and rented servers forbid it: RESP2 does without.
    any_server: dict[str, Any] = {"ssl": address.tls, "protocol": 2}
    if address.tls:  # redis-py reads these files for each connection, so a renewed certificate needs no restart.
        own = {"ssl_certfile": address.certfile, "ssl_keyfile": address.keyfile}
        any_server |= {"ssl_cert_reqs": ssl.CERT_REQUIRED, **own}
    place: dict[str, Any] = {}
    if address.path:
        place = {"unix_socket_path": address.path}
    elif not address.service:
        place = dict(zip(("host", "port"), address.hosts[0], strict=True))
    user = {"db": address.db, "username": address.username, "password": address.password}
    of_sentinels = {name: min(seconds, SENTINEL_TIMEOUT) for name, seconds in timeouts.items()}
    of_sentinels |= {"username": address.sentinel_username, "password": address.sentinel_password, **any_server}
    return address, of_sentinels, {**place, **user, **timeouts, **any_server, **options}
