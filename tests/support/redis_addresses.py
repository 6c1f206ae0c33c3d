"""Every form of `REDIS_URL`, with a real server behind each."""

import asyncio
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import trustme

from credhook.sandbox.local.environment import find_server, free_port

#: An address, and the environment that it takes.
Reached = tuple[str, dict[str, str]]


@contextmanager
def over_tcp(folder: Path, url: str) -> Iterator[Reached]:
    yield url.removesuffix("/0") + "/3", {}


@contextmanager
def over_a_unix_socket(folder: Path, url: str) -> Iterator[Reached]:
    del url
    yield f"unix://{folder}/redis.sock", {}


@contextmanager
def over_tls(folder: Path, url: str) -> Iterator[Reached]:
    """TLS as a front of ours: the wheel's Redis is built without."""
    authority, trusted = trustme.CA(), folder / "authority.pem"
    authority.cert_pem.write_to_path(str(trusted))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    behind, port = urlsplit(url).port, free_port()
    ready, over = threading.Event(), threading.Event()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):  # Closed also when the loop ends, which cancels it.
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_connection("127.0.0.1", behind)
        await asyncio.gather(pass_on(reader, downstream), pass_on(upstream, writer))

    async def serve() -> None:
        async with await asyncio.start_server(client, "localhost", port, ssl=context):
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    assert ready.wait(60)
    try:
        yield f"rediss://localhost:{port}", {"SSL_CERT_FILE": str(trusted)}
    finally:
        over.set()
        thread.join(60)


@contextmanager
def through_sentinel(folder: Path, url: str) -> Iterator[Reached]:
    port, configuration = free_port(), folder / "sentinel.conf"
    configuration.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {urlsplit(url).port} 1\n")
    sentinel = subprocess.Popen(
        [find_server(), str(configuration), "--sentinel"], stdout=subprocess.DEVNULL, cwd=folder, start_new_session=True
    )
    try:
        yield f"redis+sentinel://127.0.0.1:{port}/main", {}
    finally:
        sentinel.kill()
        sentinel.wait()
