"""The proxies of deploy/ in front of real receivers: time-outs and limits are the proxy's, so they are tested there."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
import trustme

from credhook.sandbox.local.environment import free_port
from support import plain
from support.process.serving import Process, running
from support.project.reverse_proxies import ADDRESSES, Proxy, needs, proxied
from support.receiver.one_shot_senders import OneShotSenders
from support.receiver.signing import SECRET, body, headers
from support.waiting import until

PATH_SECRET = "abcdefghijklmnopqrstuvwxyz"
REQUEST_ID = "0123456789abcdef0123456789abcdef"
NAMED = '"request_id":"'


class Receivers:
    """Two receivers on one port, at an address each, and the proxy in front of them."""

    proxy: Proxy

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._settings = {"REDIS_URL": redis_url, "PORT": str(self.port), "CREDHOOK_WEBHOOK_SECRETS": SECRET}
        self.processes = [self.start(address) for address in ADDRESSES]

    def start(self, address: str) -> Process:
        """Start a receiver. Its log goes on in the file of its address."""
        settings = self._settings | {"HOST": address}
        process = running(self._folder / f"{address}.log", "receiver", environment=settings)
        until(lambda: process.answers(f"http://{address}:{self.port}/readyz"), what="the receiver")
        return process

    @property
    def text(self) -> str:
        return "".join(process.text for process in self.processes)


@pytest.fixture(scope="module", params=["haproxy", "nginx", "caddy"])
def receivers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_redis: str, authority: trustme.CA
) -> Iterator[Receivers]:
    """One proxy and its receivers for all tests. Those that end receivers for good come last."""
    needs(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    receivers = Receivers(folder, module_redis)
    try:
        with proxied(request.param, folder, receivers.port, authority) as receivers.proxy:
            yield receivers
    finally:
        for process in receivers.processes:
            process.__exit__()


@pytest.fixture
def proxy(receivers: Receivers) -> Proxy:
    return receivers.proxy


def test_proxy_passes_only_deliveries_of_a_fitting_size(proxy: Proxy, receivers: Receivers) -> None:
    def post(content: bytes, path: str = "/webhooks", **more: str) -> int:
        return proxy.post(content, headers("m", content) | more, path)

    assert post(body()) == 202
    assert post(b" " * 65_000) == 400  # Passed on: the receiver reads it.
    assert post(b" " * 70_000) == 413
    assert "CREDHOOK_MAX_BODY" not in receivers.text
    assert post(body(), header="x" * 40_000) in {400, 413, 431}
    assert post(body(), host="elsewhere") in {202, 403, 421}  # 200 would tell the sender that it was stored.
    assert post(body(), "/metrics") == 404
    assert post(body(), "/elsewhere") == 404
    assert plain.get(f"{proxy.url}/healthz", verify=proxy.trust).text == "alive\n"


async def slow(proxy: Proxy, kind: int, handshakes: asyncio.Semaphore) -> None:
    """Return when it is cut off, which never finishes its request: a byte of header or of body a second, or nothing."""
    with suppress(OSError, asyncio.IncompleteReadError):
        async with handshakes:
            reader, writer = await asyncio.open_connection("localhost", proxy.port, ssl=proxy.trust)
        closed = asyncio.create_task(reader.read())
        try:
            if kind == 1:
                writer.write(b"POST /webhooks HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000\r\n\r\n")
            while not closed.done():
                if kind == 0 or (kind == 1 and proxy.name != "nginx"):  # nginx ends those that pause, as its file says.
                    writer.write(b"a")
                    await writer.drain()
                await asyncio.wait({closed}, timeout=1.0)
        finally:
            writer.close()
            closed.cancel()
            await asyncio.gather(closed, return_exceptions=True)


@pytest.mark.parametrize("connections", [100, pytest.param(1_000, marks=pytest.mark.soak)])
async def test_slow_connections_do_not_keep_deliveries_out(proxy: Proxy, connections: int) -> None:
    handshakes = asyncio.Semaphore(50)  # All at once, they would keep this process busy for longer than a proxy waits.
    crowd = [asyncio.create_task(slow(proxy, number % 3, handshakes)) for number in range(connections)]
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
            await asyncio.sleep(0.25)  # The crowd lasts for ten seconds: enough deliveries are sent in them.
    await asyncio.gather(*crowd)
    assert statuses[202] / number >= 0.999, statuses


def test_proxy_answers_every_delivery_while_receivers_restart(proxy: Proxy, receivers: Receivers) -> None:
    """As with `docker compose up --scale receiver=2`: one name, an address for each."""
    processes = receivers.processes
    with OneShotSenders(proxy.port, proxy.trust, host="inbox") as load:
        for number, address in enumerate(ADDRESSES, 1):
            until(partial(load.has_sent, 100 * number), what="deliveries")
            until(lambda: all("events_accepted" in process.text for process in processes), what="a share for each")
            place = ADDRESSES.index(address)
            assert processes[place].stop() == 0
            processes[place] = receivers.start(address)
    # Debian's Caddy cannot send a body again. The platform does, after a 502.
    assert set(load.outcomes) <= {"HTTP/1.1 202", *(["HTTP/1.1 502"] if proxy.name == "caddy" else [])}, load.outcomes


def test_a_receiver_that_is_gone_costs_nothing(proxy: Proxy, receivers: Receivers) -> None:
    receivers.processes[1].kill()
    assert {proxy.post(body(), headers(f"m{number}", body())) for number in range(20)} == {202}


def test_proxy_and_receivers_log_the_same_request_id(proxy: Proxy, receivers: Receivers) -> None:
    refused, sent = receivers.text.count(NAMED), proxy.log.read_text().count("POST")
    given = {"passed on": REQUEST_ID, "made": "Ada Lovelace"}
    for request_id in given.values():
        assert proxy.post(body(), {"x-request-id": request_id}, f"/webhooks/{PATH_SECRET}") == 404
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.post(f"{proxy.url}/webhooks", content=body())  # A sender that does not trust the certificate.
    if proxy.name == "haproxy":
        until(lambda: "SSL handshake failure" in proxy.log.read_text(), what="the handshake")
    for process in receivers.processes:  # The proxy says who does not answer, and no path either.
        process.__exit__()
    assert proxy.post(body(), {}, f"/webhooks/{PATH_SECRET}") in {502, 503}
    until(lambda: proxy.log.read_text().count("POST") >= sent + 3, what="the requests")
    said = proxy.log.read_text()
    assert REQUEST_ID in said
    assert PATH_SECRET not in said + receivers.text
    assert "Lovelace" not in said
    request_ids = [line.partition('"')[0] for line in receivers.text.split(NAMED)[1:]]
    assert len(request_ids) == refused + 2
    assert all(request_id in said for request_id in request_ids)
