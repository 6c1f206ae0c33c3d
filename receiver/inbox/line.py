"""One connection to Redis, kept for the script that every delivery waits for, on which the answer calls back.

redis-py connects, encrypts and authenticates. From then on its pool, streams and time-outs stand aside: a question
takes them 58 microseconds of processor time and several turns of the event loop, measured, where here it takes 33,
most of it the system's for sending, and none.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Self

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (  # Redis's own names.
    ConnectionError,  # noqa: A004
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004
)

from credhook.store.connection import REDIS_TIMEOUT

#: Called with the replies, or with what went wrong.
Done = Callable[[list[Any] | Exception], None]

_NOT_ASKED: Final[Done] = lambda _: None  # noqa: E731


def packed(*command: str | int | bytes) -> bytes:
    """A command as Redis reads it."""
    as_bytes: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]  # Its stub means a tuple of one.
    return as_bytes


class Line(asyncio.Protocol):
    """A connection on which one question is asked at a time."""

    def __init__(self, connection: AbstractConnection, patience: float) -> None:
        """Take over a connection that is established; give it up when it is silent for `patience` seconds."""
        self._connection = connection
        #: redis-py does not hand it out.
        self._transport: asyncio.Transport = connection._writer.transport  # type: ignore[union-attr,assignment]  # noqa: SLF001
        self._transport.set_protocol(self)
        self._reader = hiredis.Reader()
        self._loop = asyncio.get_running_loop()
        self._replies: list[Any] = []
        self._wanted = 0
        self._done = _NOT_ASKED
        self._patience = patience
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, redis: Redis, *, patience: float = REDIS_TIMEOUT) -> Self:
        """Connect to where `redis` does, and as it does.

        Raises:
            RedisError, OSError: it cannot.
        """
        connection: AbstractConnection = redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        await connection.connect()  # type: ignore[no-untyped-call]
        return cls(connection, patience)

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return not self._transport.is_closing()

    def ask(self, command: bytes, done: Done, *, replies: int = 1) -> None:
        """Send a packed command, or several; `done` is called with so many replies, or once with what went wrong.

        ConnectionError: the line is gone, and what was asked may have been done. NoScriptError, ResponseError: Redis
        refuses. TimeoutError: it is silent; the line is given up.
        """
        if self._transport.is_closing():
            self._loop.call_soon(done, ConnectionError("closed"))
            return
        self._replies, self._wanted, self._done = [], replies, done
        self._timer = self._loop.call_later(self._patience, self._give_up)
        self._transport.write(command)

    async def answer(self, command: bytes, *, replies: int = 1) -> list[Any]:
        """The same for whoever can wait.

        Raises:
            ConnectionError, NoScriptError, ResponseError, TimeoutError: see `ask`.
        """
        answered: asyncio.Future[list[Any]] = self._loop.create_future()
        self.ask(command, partial(_resolve, answered), replies=replies)
        return await answered

    def close(self) -> None:
        """Let go of it, whatever is under way."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Collect replies; once they are complete, call back."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if not isinstance(reply, hiredis.PushNotification):
                self._replies.append(reply)
        if self._wanted and len(self._replies) >= self._wanted:
            refused = next((reply for reply in self._replies if isinstance(reply, hiredis.ReplyError)), None)
            self._end(self._refusal(refused) if refused else self._replies)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whoever waits."""
        self._connection._close()  # type: ignore[no-untyped-call]  # noqa: SLF001  Or it would warn that it was left open.
        self._end(ConnectionError(type(error).__name__ if error else "closed"))

    def _give_up(self) -> None:
        self._transport.abort()
        self._end(TimeoutError("no answer"))

    def _refusal(self, reply: hiredis.ReplyError) -> RedisError:
        text = str(reply)
        if text.startswith("NOSCRIPT"):
            return NoScriptError(text)
        if text.startswith("READONLY"):  # It is no master any more; another connection may lead to the new one.
            self._transport.abort()
            return ConnectionError(text)
        return ResponseError(text)

    def _end(self, result: list[Any] | Exception) -> None:
        done, self._done, self._wanted = self._done, _NOT_ASKED, 0
        if self._timer:
            self._timer.cancel()
        done(result)


def _resolve(answered: "asyncio.Future[list[Any]]", result: list[Any] | Exception) -> None:
    if answered.done():
        return
    if isinstance(result, Exception):
        answered.set_exception(result)
    else:
        answered.set_result(result)
