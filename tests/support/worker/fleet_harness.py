"""A harness for fleets: workers beside a stub of the platform that counts and times each request.

The sandbox follows the specification, at some hundred requests a second. The stub answers as the test says, thousands
of times a second.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import httptools
import pytest
from anyio.from_thread import start_blocking_portal

from credhook.receiver.inbox import MAX_GROUP
from credhook.store.bulk import batched
from support.platform.platform_settings import leading_to
from support.process.growing_files import whole_lines
from support.process.serving import Process
from support.store.accepting import record
from support.store.stores import run_accept, store_on
from support.waiting import until
from support.worker.harness import Workers

SHORT, LONG = "short", "long"
SIZES = [SHORT, pytest.param(LONG, marks=[pytest.mark.soak, pytest.mark.timeout(1_800)])]

#: Notes of two processes never mix: each is one write to the end of the file. Their times are those of this machine,
#: as are Redis's.
PLUGIN = """
import asyncio, os, pathlib, random, sys, time
from credhook import GiveUp, Handlers, Retry

here = pathlib.Path(__file__).parent
handlers = Handlers("test")
_notes = os.open(here / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(*words):
    os.write(_notes, (" ".join(map(str, (time.time(), *words))) + "\\n").encode())
"""


class Call(NamedTuple):
    """One request for details.

    Attributes:
        at: when it came, in seconds since the epoch.
        resource: of what.
        number: which one for this resource, counted from 1.
        total: which one of all.
    """

    at: float
    resource: str
    number: int
    total: int


class Answer(NamedTuple):
    status: int = 200
    body: object = None
    retry_after: str = ""


def issuance(resource: str, status: str = "completed", **more: object) -> Answer:
    return Answer(body={"data": {"id": resource, "status": status, "credentials": [], **more}})


def presentation(resource: str, attributes: dict[str, object] | None) -> Answer:
    credentials = [{"isValid": True, "type": "Person", "attributes": attributes}]
    return Answer(body={"data": {"id": resource, "status": "verified", "credentials": credentials}})


def granted(token: str) -> Answer:
    return Answer(body={"access_token": token, "token_type": "Bearer", "expires_in": 3_600})


def well(call: Call) -> Answer:
    """As good a platform as can be: presentations are those whose ids begin with `pre`."""
    return presentation(call.resource, {"given": "Ada"}) if call.resource.startswith("pre") else issuance(call.resource)


class Stub:
    """The platform's API in a thread.

    Attributes:
        answer, takes: what a request for details is answered, after so many seconds.
        calls, under_way: all requests for details, as they came, and how many are not answered yet.
        answered: status → how many were answered so.
        token, grant: what the token endpoint grants, and what it answers instead.
        client_secrets: those that it accepts; None for all.
    """

    def __init__(self) -> None:
        self.answer: Callable[[Call], Answer] = well
        self.takes = 0.0
        self.calls: list[Call] = []
        self.answered: Counter[int] = Counter()
        self.token = "token"
        self.grant: Answer | None = None
        self.url = ""
        self.client_secrets: set[str] | None = None
        self.connections: set[asyncio.Transport] = set()
        self.under_way = 0
        self._of_resource: Counter[str] = Counter()

    @contextmanager
    def running(self) -> Iterator["Stub"]:
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(self._listening()):
            yield self

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self, loop), "127.0.0.1", 0, backlog=1_024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()
            for connection in list(self.connections):
                connection.abort()

    def ask(self, resource: str) -> Answer:
        self._of_resource[resource] += 1
        call = Call(time.time(), resource, self._of_resource[resource], len(self.calls) + 1)
        self.calls.append(call)
        self.under_way += 1
        answer = self.answer(call)
        self.answered[answer.status] += 1
        return answer


class _Connection(asyncio.Protocol):
    def __init__(self, stub: Stub, loop: asyncio.AbstractEventLoop) -> None:
        self._stub = stub
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._url = self._body = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._stub.connections.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stub.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path, body = self._url.decode(), self._body.decode()
        self._url = self._body = b""
        if path == "/token":
            known = self._stub.client_secrets
            refusal = None if known is None or parse_qs(body)["client_secret"][0] in known else Answer(401)
            self._send(refusal or self._stub.grant or granted(self._stub.token))
        else:
            self._loop.call_later(self._stub.takes, self._answer, self._stub.ask(path.rpartition("/")[2]))

    def _answer(self, answer: Answer) -> None:
        self._stub.under_way -= 1
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        if self._transport.is_closing():
            return  # The client was killed.
        document = answer.body or {"errors": [{"status": str(answer.status)}]}
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        retry = f"retry-after: {answer.retry_after}\r\n" if answer.retry_after else ""
        head = f"HTTP/1.1 {answer.status} So\r\ncontent-type: application/json\r\n{retry}"
        self._transport.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)


class Note(NamedTuple):
    at: float
    words: tuple[str, ...]


class FleetHarness(Workers):
    """Workers beside a stub of the platform."""

    header = PLUGIN

    def __init__(self, folder: Path, redis_url: str, stub: Stub) -> None:
        super().__init__(folder, redis_url, leading_to(stub.url))
        self.stub = stub

    def notes(self) -> list[Note]:
        return [Note(float(at), tuple(words)) for at, *words in map(str.split, whole_lines(self.folder / "notes"))]

    def accept(self, *events: tuple[str, str, str]) -> None:
        """Write down events (webhook-id, type, resource) as the receiver does; again if need be, since it dedupes."""
        for group in batched(events, MAX_GROUP):
            assert b"unreadable" not in run_accept(store_on(self.redis, retention=86_400), *group)

    def started(self, *processes: Process, each: int = 1) -> None:
        """Return once so many workers of each have started."""
        for process in processes:
            until(lambda process=process: process.text.count('"worker_started"') >= each, what="the workers")  # type: ignore[misc]

    def records(self, webhook_ids: Iterable[str]) -> dict[str, dict[str, str]]:
        ids = list(webhook_ids)
        pipeline = self.redis.pipeline(transaction=False)
        for webhook_id in ids:
            pipeline.hgetall("credhook:credhook:event:" + webhook_id)
        found = ({k.decode(): v.decode() for k, v in fields.items()} for fields in pipeline.execute())
        return dict(zip(ids, found, strict=True))

    def record(self, webhook_id: str) -> dict[str, str]:
        return record(self.redis, webhook_id)

    def settles(self, within: float = 60.0) -> None:
        """Return once no event is open."""
        until(lambda: not self.redis.exists("credhook:credhook:open"), what="the end of all events", within=within)

    def logs(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in sorted(self.folder.glob("*.log")))
