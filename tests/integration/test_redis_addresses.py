"""Every form of `REDIS_URL`, with a real server behind each: the receiver stores, and stores again when cut off."""

import asyncio
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import trustme
from redis import Redis
from serving import receiver
from signing import body, headers
from waiting import until

from sandbox.local_redis import find_server, free_port, local_redis

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
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_connection("127.0.0.1", behind)
        await asyncio.gather(pass_on(reader, downstream), pass_on(upstream, writer))

    async def serve() -> None:
        async with await asyncio.start_server(client, "localhost", port, ssl=context):
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    assert ready.wait(10)
    try:
        yield f"rediss://localhost:{port}", {"SSL_CERT_FILE": str(trusted)}
    finally:
        over.set()
        thread.join(10)


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


@pytest.mark.parametrize("reach", [over_tcp, over_a_unix_socket, over_tls, through_sentinel])
def test_a_delivery_is_stored_and_stored_again_when_the_connection_was_cut(
    reach: Callable[[Path, str], AbstractContextManager[Reached]], tmp_path: Path
) -> None:
    options = ("--unixsocket", str(tmp_path / "redis.sock"))
    with (
        local_redis(tmp_path, options=options) as url,
        reach(tmp_path, url) as (address, environment),
        receiver(tmp_path, address, options=(), **environment) as process,
        Redis.from_url(url.removesuffix("/0"), db=3 if reach is over_tcp else 0) as redis,
    ):

        def post(webhook_id: str) -> int:
            return httpx.post(process.url, content=body(), headers=headers(webhook_id, body())).status_code

        until(lambda: post("m1") == 202, what="a delivery that is stored")
        redis.client_kill_filter(_type="normal", skipme=True)
        assert post("m2") == 202
        assert set(redis.scan_iter("credhook:event:*")) == {b"credhook:event:m1", b"credhook:event:m2"}
