"""deploy/haproxy.cfg in front of a real receiver: time-outs and limits are the proxy's, so they are tested there."""

import asyncio
import os
import shutil
import ssl
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import httpx
import pytest
import trustme
from name_server import name_server
from serving import receiver, running
from signing import SECRET, body, headers
from waiting import until

from credhook.sandbox.local.environment import free_port

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "haproxy.cfg"

pytestmark = pytest.mark.skipif(
    shutil.which("haproxy") is None, reason="no haproxy; `make debian` installs it where apt is there"
)


@dataclass
class Proxy:
    port: int
    trust: ssl.SSLContext
    log: Path

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"


@contextmanager
def haproxy(folder: Path, **environment: str) -> Iterator[Proxy]:
    """It, with a certificate of its own."""
    authority, certificate, port = trustme.CA(), folder / "credhook.pem", free_port()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    environment |= {"PROXY_BIND": f"127.0.0.1:{port}", "PROXY_CERTIFICATE": str(certificate)}
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(
            ["haproxy", "-db", "-f", CONFIGURATION], env=os.environ | environment, stdout=log, stderr=log
        )
    try:
        until(lambda: ready(port, trust), what="the proxy")
        yield Proxy(port, trust, folder / "haproxy.log")
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def proxy(tmp_path: Path, redis_url: str) -> Iterator[Proxy]:
    with (
        receiver(tmp_path, redis_url) as process,
        haproxy(tmp_path, RECEIVER=f"127.0.0.1:{process.port}") as proxy,
    ):
        yield proxy


def ready(port: int, trust: ssl.SSLContext) -> bool:
    try:
        return httpx.get(f"https://localhost:{port}/readyz", verify=trust, timeout=60).is_success
    except httpx.TransportError:
        return False


def test_it_passes_deliveries_on_and_refuses_what_is_too_large_or_elsewhere(proxy: Proxy) -> None:
    def post(path: str, content: bytes) -> int:
        return httpx.post(
            proxy.url + path, content=content, headers=headers("m", content), verify=proxy.trust, timeout=60
        ).status_code

    assert post("/webhooks", body()) == 202
    assert post("/webhooks", b" " * 65_000) == 400  # Passed on: the receiver reads it.
    assert post("/webhooks", b" " * 70_000) == 413
    assert post("/metrics", body()) == 404


def test_requests_and_failed_handshakes_are_logged_and_no_path(proxy: Proxy) -> None:
    secret = "/webhooks/abcdefghijklmnopqrstuvwxyz"
    assert httpx.post(proxy.url + secret, content=body(), verify=proxy.trust).status_code == 404
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.post(f"{proxy.url}/webhooks", content=body())  # A sender that does not trust the certificate.
    until(lambda: "POST 404 --" in proxy.log.read_text(), what="the request")
    until(lambda: "SSL handshake failure" in proxy.log.read_text(), what="the handshake")
    assert secret not in proxy.log.read_text()


def test_every_receiver_of_one_name_gets_its_share_and_one_that_is_gone_costs_nothing(
    tmp_path: Path, redis_url: str
) -> None:
    """As with `docker compose up --scale receiver=2`: one name, an address for each."""
    addresses = ["127.0.0.1", "127.0.0.2"]
    with ExitStack() as stack:
        first = stack.enter_context(receiver(tmp_path, redis_url))
        settings = {"HOST": addresses[1], "PORT": str(first.port), "REDIS_URL": redis_url}
        command = running(
            tmp_path / "second.log", "receiver", environment=settings | {"CREDHOOK_WEBHOOK_SECRETS": SECRET}
        )
        second = stack.enter_context(command)
        resolver = stack.enter_context(name_server(addresses))
        proxy = stack.enter_context(haproxy(tmp_path, RECEIVER=f"receiver:{first.port}", RESOLVER=resolver))

        def delivered(number: int) -> bool:
            sent = headers(f"m{number}", body())
            return httpx.post(
                f"{proxy.url}/webhooks", content=body(), headers=sent, verify=proxy.trust, timeout=60
            ).is_success

        numbers = count()
        until(lambda: delivered(next(numbers)) and all("events_accepted" in one.text for one in (first, second)))
        second.kill()
        assert all(delivered(next(numbers)) for _ in range(20))


async def slow(proxy: Proxy, kind: int) -> None:
    """Return when it is cut off, which never finishes its request: a byte of header or of body a second, or nothing."""
    with suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("localhost", proxy.port, ssl=proxy.trust)
        closed = asyncio.create_task(reader.read())
        try:
            if kind == 1:
                writer.write(b"POST /webhooks HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n")
            while not closed.done():
                if kind != 2:
                    writer.write(b"a")
                    await writer.drain()
                await asyncio.wait({closed}, timeout=1.0)
        finally:
            writer.close()
            closed.cancel()
            await asyncio.gather(closed, return_exceptions=True)


async def test_slow_connections_do_not_keep_deliveries_out(proxy: Proxy) -> None:
    await delivered_beside(proxy, 200)


@pytest.mark.soak
async def test_a_thousand_slow_connections_do_not_keep_deliveries_out(proxy: Proxy) -> None:
    await delivered_beside(proxy, 1_000)


async def delivered_beside(proxy: Proxy, connections: int) -> None:
    crowd = [asyncio.create_task(slow(proxy, number % 3)) for number in range(connections)]
    statuses: Counter[int] = Counter()
    async with httpx.AsyncClient(verify=proxy.trust, timeout=60) as client:
        number = 0
        while not all(task.done() for task in crowd):
            sent = [
                client.post(f"{proxy.url}/webhooks", content=body(), headers=headers(f"m{number + step}", body()))
                for step in range(10)
            ]
            number += 10
            statuses.update(answer.status_code for answer in await asyncio.gather(*sent))
    await asyncio.gather(*crowd)
    assert statuses[202] / number >= 0.999, statuses
