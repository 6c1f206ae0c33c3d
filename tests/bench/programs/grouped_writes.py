"""The limit of what writes before it answers: Starlette, and one command of Redis for all that came meanwhile.

It checks nothing and remembers nothing, but writes as many bytes as our receiver does, which are fsynced alike.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import hiredis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

#: Bytes that a delivery to our receiver adds to the append-only file; the bench's own test holds it to that.
SIZE = 576

RECORD = b"." * SIZE


class Writes(asyncio.Protocol):
    """A connection on which one command is under way at a time."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._under_way: list[asyncio.Future[None]] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    async def write(self) -> None:
        """Return once Redis has a record more."""
        written = asyncio.get_running_loop().create_future()
        self._waiting.append(written)
        if not self._under_way:
            self._send()
        await written

    def _send(self) -> None:
        self._under_way, self._waiting = self._waiting, []
        command = ("RPUSH", "written", *(RECORD for _ in self._under_way))
        self._transport.write(hiredis.pack_command(command))  # type: ignore[arg-type]  # Its stub means a tuple of one.

    def data_received(self, data: bytes) -> None:
        """The new length of the list: a short line, which comes in one piece."""
        if not (data.startswith(b":") and data.endswith(b"\r\n")):
            raise SystemExit(f"Redis says {data!r}")
        written, self._under_way = self._under_way, []
        for each in written:
            if not each.done():
                each.set_result(None)
        if self._waiting:
            self._send()


writes = Writes()


@asynccontextmanager
async def connected(_: Starlette) -> AsyncIterator[None]:
    redis = urlsplit(os.environ["REDIS_URL"])
    assert redis.hostname
    assert redis.port
    transport, _protocol = await asyncio.get_running_loop().create_connection(
        lambda: writes, redis.hostname, redis.port
    )
    yield
    transport.close()


async def receive(request: Request) -> Response:
    await request.body()
    await writes.write()
    return Response(status_code=202)


app = Starlette(routes=[Route("/webhooks", receive, methods=["POST"])], lifespan=connected)
