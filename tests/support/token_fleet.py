"""A fleet that shares its token: a token endpoint that counts, an API that knows the good ones, and members.

Each member has what a process has, and knows of the others only through Redis.
"""

import asyncio
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from in_thread import in_thread
from pydantic import SecretStr
from redis.asyncio import Redis

from credhook.store.connection import open_redis
from credhook.worker.api.calls.errors import ApiError
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.oauth.credentials import ClientCredentials
from credhook.worker.platform.cipher import Cipher
from credhook.worker.platform.shared_token import SharedTokens
from credhook.worker.platform.token_key import key_name

SECRET = "s3cret-of-the-client"


class Platform:
    """A token endpoint and an API. What they do next is set by the test, while they run.

    Attributes:
        granted: each token, in order, with the client secret that it was granted to.
        good: the tokens that the API takes.
        seen: the tokens that the API was shown.
        lifetime: seconds, of the next token.
        refusal: status and headers, instead of a token.
        hangs_up: no answer, instead of a token.
        answers: while it is clear, token requests wait.
        waiting: token requests that have come.
    """

    def __init__(self) -> None:
        self.granted: list[str] = []
        self.good: set[str] = set()
        self.seen: list[str] = []
        self.lifetime = 300
        self.refusal: tuple[int, dict[str, str]] | None = None
        self.hangs_up = False
        self.answers = threading.Event()
        self.answers.set()
        self.waiting = 0
        self.url = ""

    @property
    def key(self) -> str:
        """Where Redis has the token."""
        return key_name(f"{self.url}/token", "me")

    def environment(self, redis_url: str) -> dict[str, str]:
        """Of a process that is a member."""
        return {
            "REDIS_URL": redis_url,
            "CREDHOOK_API_URL": self.url,
            "CREDHOOK_TOKEN_URL": f"{self.url}/token",
            "CREDHOOK_CLIENT_ID": "me",
            "CREDHOOK_CLIENT_SECRET": SECRET,
        }

    def token(self, form: dict[str, list[str]]) -> tuple[int, dict[str, str], object] | None:
        self.waiting += 1
        assert self.answers.wait(60)
        if self.hangs_up:
            return None
        if self.refusal:
            return *self.refusal, {"error": "invalid_client"}
        token = f"token-{len(self.granted)}-of-{form['client_secret'][0][::-1]}"
        self.granted.append(token)
        self.good.add(token)
        return 200, {}, {"access_token": token, "expires_in": self.lifetime, "token_type": "Bearer"}

    def presentation(self, token: str) -> tuple[int, dict[str, str], object]:
        self.seen.append(token)
        return (200, {}, {"id": "p", "status": "verified"}) if token in self.good else (401, {}, {})


def _handler(platform: Platform) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            self.answer(platform.token(parse_qs(body)))

        def do_GET(self) -> None:
            self.answer(platform.presentation(self.headers["authorization"].removeprefix("Bearer ")))

        def answer(self, answer: tuple[int, dict[str, str], object] | None) -> None:
            if answer is None:
                return
            status, headers, document = answer
            body = json.dumps(document).encode()
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def serving() -> Iterator[Platform]:
    """The platform on a real socket."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # A member that was killed or has given up.

    platform = Platform()
    with in_thread(Server(("127.0.0.1", 0), _handler(platform))) as server:
        platform.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield platform
        finally:
            platform.answers.set()


class Member:
    """What one process of a fleet has: credentials, and a connection to Redis, of its own."""

    def __init__(
        self,
        platform: Platform,
        redis: Redis,
        *,
        secret: str = SECRET,
        timeout: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.redis = redis
        self.cipher = Cipher(SecretStr(secret), "token")
        self.tokens = SharedTokens(
            redis, self.cipher, platform.key, timeout=timeout, clock=clock, chance=chance, sleep=sleep
        )
        self.auth = ClientCredentials(f"{platform.url}/token", "me", secret, tokens=self.tokens, clock=clock)
        self.api = AsyncApi(platform.url, self.auth, timeout=timeout)

    async def get(self) -> str | ApiError:
        """Call the API once: what it answered, or why not."""
        try:
            return (await self.api.presentations.get("p")).id
        except ApiError as error:
            return error

    async def aclose(self) -> None:
        await self.auth.aclose()
        await self.api.aclose()
        await self.redis.aclose()


@asynccontextmanager
async def fleet(number: int, platform: Platform, redis_url: str, **options: Any) -> AsyncIterator[list[Member]]:
    """So many members; the options are each one's."""
    async with AsyncExitStack() as stack:
        members = [Member(platform, open_redis(redis_url), **options) for _ in range(number)]
        for member in members:
            stack.push_async_callback(member.aclose)
        yield members


async def at_once(members: list[Member]) -> list[str | ApiError]:
    return await asyncio.gather(*(member.get() for member in members))


class Time:
    """A clock that moves when somebody sleeps.

    Attributes:
        now: seconds.
        slept: for how long, each time.
    """

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)
