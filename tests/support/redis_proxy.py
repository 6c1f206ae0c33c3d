"""A proxy in front of a real Redis that loses replies, or speaks of a newer Redis than there is.

Commands pass one at a time, so that each reply belongs to the command before it.
"""

import asyncio
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import hiredis

from credhook.sandbox.local.environment import free_port
from credhook.store import lua

#: Digest of the script that searches.
_SEARCH = hashlib.sha1(lua.load("select").encode()).hexdigest().encode()


class RedisProxy:
    """Attributes that a test sets while it runs. The script that searches only reads, and always passes.

    Attributes:
        lose: how many replies to scripts are lost, with their connection, after Redis has run them; never two
            in a row, and never a second try: the client tries a command twice.
        lost: how many were.
        hold: scripts are not passed on while it is set: a Redis that has stalled.
        held: how many have waited for that.
        waitaof: what `WAITAOF` answers, for a Redis that does not know it; None passes it on.
        waited: how often it was asked.
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
        self._conversations: set[asyncio.Task[None] | None] = set()

    async def serve(self, ready: Callable[[], object]) -> None:
        server = await asyncio.start_server(self._client, "127.0.0.1", self.port)
        ready()
        async with server:
            await server.serve_forever()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.current_task()
        self._conversations.add(conversation)
        try:
            upstream, downstream = await asyncio.open_connection(self._host, self._port)
            try:
                await self._converse(reader, writer, upstream, downstream)
            finally:
                downstream.close()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._conversations.discard(conversation)

    async def _converse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: asyncio.StreamReader,
        downstream: asyncio.StreamWriter,
    ) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(1 << 20):
            parser.feed(data)
            while (command := parser.gets()) is not False:
                reply = await self._reply(command, upstream, downstream)
                if reply is None:
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


async def _end_the_others() -> None:
    """Have conversations end, each with its connections."""
    for one in (others := asyncio.all_tasks() - {asyncio.current_task()}):
        one.cancel()
    if others:
        await asyncio.wait(others)
    await asyncio.sleep(0)  # A turn in which transports are closed.


@contextmanager
def redis_proxy(redis_url: str) -> Iterator[RedisProxy]:
    """Run one in a thread of its own."""
    proxy, ready = RedisProxy(redis_url), threading.Event()
    loop = asyncio.new_event_loop()
    task = loop.create_task(proxy.serve(ready.set))

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.run_until_complete(_end_the_others())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(60)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(60)
