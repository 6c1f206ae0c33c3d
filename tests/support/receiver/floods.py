"""Floods against a listener, and what they cost it.

Each flood is a number of connections and what each of them sends. One thread sends them all.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from anyio.from_thread import start_blocking_portal

from support.receiver.refusals import BODY, request, signed

#: Begins as a delivery does, so that the application waits for the body before it can tell that no key signed it.
POST: Final = (
    b"POST /webhooks HTTP/1.1\r\nhost: inbox\r\nwebhook-id: flood\r\n"
    b"webhook-timestamp: 1700000000\r\nwebhook-signature: v1,AAAA\r\n"
)
CHUNKED: Final = POST + b"transfer-encoding: chunked\r\n\r\n"

#: Bytes that a flooding connection offers at once.
_BLOCK: Final = 65_536

#: Seconds until a connection that was closed is replaced.
_RECONNECT: Final = 0.5


@dataclass(frozen=True)
class Flood:
    """What one kind of hostile sender does.

    Attributes:
        first, then: what each connection sends, and repeats after that, without end; nothing waits in silence.
        pause: seconds between two repetitions; 0 sends as fast as it is taken.
        most: bytes after which a connection falls silent.
    """

    name: str
    first: bytes
    then: bytes = b""
    pause: float = 0.0
    most: int = 1 << 62


def _lines(line: bytes) -> bytes:
    return line * (_BLOCK // len(line))


#: What is cut off at once.
FAST: Final = (
    Flood("endless trailers", CHUNKED + b"0\r\n", _lines(b"x-trailer: aaaaaaaa\r\n")),
    Flood("endless headers", POST, _lines(b"x-pad: " + b"a" * 500 + b"\r\n")),
    Flood("endless short headers", POST, _lines(b"a:\r\n")),
    Flood("short headers, and then nothing", POST, _lines(b"a:\r\n"), most=260_000),
    Flood("an endless header", POST + b"x-pad: ", b"a" * _BLOCK),
    Flood("an endless URL", b"POST /webhooks?", b"a" * _BLOCK),
    Flood("an endless chunk extension", CHUNKED + b"1;x=", b"a" * _BLOCK),
    Flood("an endless chunked body", CHUNKED, _lines(b"5\r\naaaaa\r\n")),
    Flood("chunks of one byte with extensions", CHUNKED, _lines(b"1;aaaaaaaa\r\na\r\n")),
    Flood("requests without end", b"", _lines(b"GET / HTTP/1.1\r\n\r\n")),
    Flood("empty lines without end", b"", b"\r\n" * (_BLOCK // 2)),
)
#: What is cut off after its time. Just below every bound, and then nothing, costs most for longest.
SLOW: Final = (
    Flood("heads just below the bound", POST + (b"x-pad: " + b"a" * 150 + b"\r\n") * 95),
    Flood("bodies just below the bound", POST + b"content-length: 65536\r\n\r\n" + b"a" * 65_500),
    Flood("a byte of head a second", POST + b"x-pad: ", b"a", pause=1.0),
    Flood("a byte of body a second", POST + b"content-length: 60000\r\n\r\n", b"a", pause=1.0),
    Flood("nothing at all", b""),
)


async def _send_again_and_again(port: int, flood: Flood, cut: Counter[str]) -> None:
    """Send the flood on a connection, which is replaced when it is closed on us."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await asyncio.gather(_until_the_end(reader, cut, flood.name), _offer(writer, flood))
            finally:
                writer.transport.abort()
        await asyncio.sleep(_RECONNECT)


async def _until_the_end(reader: asyncio.StreamReader, cut: Counter[str], name: str) -> None:
    """Read answers, and do not look at them. Raise OSError once the connection is closed on us."""
    with suppress(OSError):
        while await reader.read(_BLOCK):
            pass
    cut[name] += 1
    raise ConnectionError


async def _offer(writer: asyncio.StreamWriter, flood: Flood) -> None:
    writer.write(flood.first)
    await asyncio.sleep(0.1)  # So that it is judged before the rest comes.
    sent = 0
    while flood.then and sent < flood.most:
        writer.write(flood.then)
        await writer.drain()
        sent += len(flood.then)
        await asyncio.sleep(flood.pause)


@contextmanager
def attack(port: int, floods: Sequence[Flood]) -> Iterator[Counter[str]]:
    """Flood from a thread, one connection for each of `floods`. Yield the number of closed connections by flood."""
    cut: Counter[str] = Counter()
    with start_blocking_portal() as portal:
        flooding = [portal.start_task_soon(_send_again_and_again, port, flood, cut) for flood in floods]
        try:
            yield cut
        finally:
            for one in flooding:
                one.cancel()


def resident(pid: int) -> float:
    """MiB of memory that a process has resident."""
    return _status(pid, "VmRSS")


def peak(pid: int) -> float:
    """The most MiB that it ever had, or has had since `forget_peak`."""
    return _status(pid, "VmHWM")


def forget_peak(pid: int) -> None:
    """Let `peak` begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) / 1_024


def deliver(port: int, webhook_id: str, content: bytes = BODY) -> int:
    """One honest delivery on a connection of its own; its status, 0 for none."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
            raw.sendall(request(*signed(webhook_id, content=content), content=content))
            answer = raw.recv(4_096)
    except OSError:
        return 0
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0
