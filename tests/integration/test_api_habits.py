"""What an HTTP client likes to do by itself, and ours must not: keep cookies, follow redirects, tell logs of bodies."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.errors import InvalidRequest, InvalidResponse, Unavailable
from credhook.worker.api.token import ClientCredentials

GRANTED = b'{"access_token": "t0ken-value", "token_type": "Bearer"}'
ADA = b'{"data": {"id": "p", "status": "verified", "credentials": [{"attributes": {"name": "Ada Lovelace"}}]}}'


def answer(body: bytes, status: int = 200, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Platform:
    """Grants tokens and answers all else with the same bytes.

    Attributes:
        answer: those bytes.
        hangs_up: whether the connection ends with them.
        heads: of all requests.
        url: its root.
    """

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.hangs_up = False
        self.heads: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = head.lower().partition("content-length: ")[2].partition("\r\n")[0]
                await reader.readexactly(int(length or 0))
                self.heads.append(head)
                is_for_token = head.startswith("POST /token ")
                writer.write(answer(GRANTED, 200, "Set-Cookie: session=1; Path=/") if is_for_token else self.answer)
                await writer.drain()
                if self.hangs_up and not is_for_token:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @property
    def targets(self) -> list[str]:
        """Of the requests that were not for a token."""
        targets = [head.split()[1] for head in self.heads]
        return [target for target in targets if target != "/token"]


@asynccontextmanager
async def serving(answer: bytes, *, timeout: float = 5.0) -> AsyncIterator[tuple[Platform, AsyncApi]]:  # noqa: ASYNC109
    platform = Platform(answer)
    server = await asyncio.start_server(platform.serve, "127.0.0.1", 0)
    platform.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    auth = ClientCredentials(f"{platform.url}/token", "me", "s3cret")
    try:
        async with AsyncApi(platform.url, auth, timeout=timeout) as api:
            yield platform, api
    finally:
        server.close()


async def test_cookies_are_not_kept() -> None:
    async with serving(answer(ADA, 200, "Set-Cookie: session=2; Path=/")) as (platform, api):
        for _ in range(2):
            await api.presentations.get("p")
            await asyncio.to_thread(SyncApi(api).presentations.get, "p")
    assert len(platform.heads) == 5
    assert not [head for head in platform.heads if "cookie" in head.lower()]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", ["http://evil.invalid/", "/me-creds/api/presentations/other", "?x", ""])
async def test_redirects_are_refused(status: int, location: str) -> None:
    async with serving(answer(b"", status, f"Location: {location}")) as (platform, api):
        with pytest.raises(InvalidResponse) as caught:
            await api.presentations.get("p")
    assert caught.value.status == status
    assert platform.targets == ["/me-creds/api/presentations/p"]


async def test_nothing_is_sent_that_nobody_has_asked_for() -> None:
    async with serving(answer(ADA)) as (platform, api):
        await api.presentations.get("p")
    ask, get = ({line.partition(":")[0].lower() for line in head.split("\r\n")[1:] if line} for head in platform.heads)
    assert ask == {"host", "accept", "accept-encoding", "user-agent", "content-type", "content-length"}
    assert get == {"host", "accept", "accept-encoding", "user-agent", "authorization"}


async def test_logs_hold_no_token_no_secret_and_no_body(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in (
        "pyreqwest",
        "reqwest",
        "hyper",
        "rustls",
        "asyncio",
    ):  # Our own set-up of logs may have kept them quiet.
        caplog.set_level(logging.DEBUG, name)
    asyncio.get_running_loop().set_debug(True)
    async with serving(answer(ADA)) as (platform, api):
        await api.presentations.get("p")
        platform.answer = answer(b'{"errors": [{"detail": "Ada Lovelace"}]}', 400)
        with pytest.raises(InvalidRequest) as caught:
            await api.presentations.get("p")
        platform.answer, platform.hangs_up = answer(ADA)[:-9], True
        with pytest.raises(Unavailable) as cut:
            await api.presentations.get("p")
    for secret in ("Ada", "s3cret", "t0ken-value", "Bearer"):
        assert secret not in caplog.text
        assert secret not in f"{caught.value} {cut.value}"
