"""A proxy in front of a real Redis that loses replies, or speaks of a newer Redis than there is.

Commands pass one at a time, so that each reply belongs to the command before it.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import hiredis
from anyio.from_thread import start_blocking_portal

from credhook.sandbox.local.environment import free_port
from credhook.store.store import sha_of

#: Digest of the script that searches.
_SEARCH = sha_of("select").encode()


class RedisProxy:
    """Attributes that a test sets while it runs. The script that searches only reads, and always passes.

    Attributes:
        lose: how many replies to scripts are lost, with their connection, after Redis has run them; never two
            in a row, and never a second try: the client tries a command twice.
        hold: scripts are not passed on while it is set: a Redis that has stalled.
        waitaof: what `WAITAOF` answers, for a Redis that does not know it; None passes it on.
        lost, held, waited: numbers of lost replies, held scripts, and times that `WAITAOF` was asked.
        version: what INFO says instead of the truth.
        commands: how many were passed on.
    """

    def __init__(self, redis_url: str) -> None:
        parts = urlsplit(redis_url)
        self._host, self._port = str(parts.hostname), int(parts.port or 6379)
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.lose = self.lost = self.held = self.waited = self.commands = 0
        self.hold = self._lost_before = False
        self._tried: set[tuple[bytes, ...]] = set()
        self.waitaof: tuple[int, int] | None = None
        self.version: bytes | None = None
        #: Nobody else holds those whose client has gone: they would be collected in the middle of a reply.
        self._conversations: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._client, "127.0.0.1", self.port)
        try:
            yield
        finally:
            server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.current_task()
        assert conversation
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)
        parser = hiredis.Reader()
        with closing(writer), suppress(ConnectionError):
            upstream, downstream = await asyncio.open_connection(self._host, self._port)
            with closing(downstream):
                while data := await reader.read(1 << 20):
                    parser.feed(data)
                    while (command := parser.gets()) is not False:
                        if (reply := await self._reply(command, upstream, downstream)) is None:
                            return
                        writer.write(reply)
                    await writer.drain()

    async def _reply(
        self, command: list[bytes], upstream: asyncio.StreamReader, downstream: asyncio.StreamWriter
    ) -> bytes | None:
        name = command[0].upper()
        self.commands += 1
        if name == b"WAITAOF" and self.waitaof is not None:
            self.waited += 1
            return b"*2\r\n:%d\r\n:%d\r\n" % self.waitaof
        script = name in {b"EVAL", b"EVALSHA"} and command[1] != _SEARCH
        self.held += script and self.hold
        while script and self.hold:  # noqa: ASYNC110  A test sets it from another thread.
            await asyncio.sleep(0.01)
        downstream.write(b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in command))
        raw, value = await _one_reply(upstream)
        if script and not isinstance(value, hiredis.ReplyError):
            second_try = (tried := tuple(command)) in self._tried
            self._tried.discard(tried)
            lose_it = self._lost_before = self.lose > 0 and not self._lost_before and not second_try
            if lose_it:
                self._tried.add(tried)
                self.lose -= 1
                self.lost += 1
                return None
        if name == b"INFO" and self.version is not None:
            text = re.sub(rb"redis_version:\S+", b"redis_version:" + self.version, value)
            return b"$%d\r\n%b\r\n" % (len(text), text)
        return raw


async def _one_reply(upstream: asyncio.StreamReader) -> tuple[bytes, Any]:
    parser, raw = hiredis.Reader(), b""
    while (value := parser.gets()) is False:
        data = await upstream.read(1 << 20)
        if not data:
            raise ConnectionResetError
        raw += data
        parser.feed(data)
    return raw, value


@contextmanager
def redis_proxy(redis_url: str) -> Iterator[RedisProxy]:
    """Run one in a thread of its own, whose end cancels all conversations."""
    proxy = RedisProxy(redis_url)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(proxy.listening()):
        yield proxy
