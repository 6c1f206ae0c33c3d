"""The web application: it shows the wallet's link, and the outcome when it is there. Any process serves any page."""

import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import escape
from typing import Annotated, Any, Final, TypeAlias

from checkin import OUTCOME, SECONDS
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from redis.asyncio import Redis

from credhook import AsyncApi

BEGIN: Final = '<form method="post" action="/begin"><button>Check in</button></form>'
WAIT: Final = """<a href="LINK">Open your wallet</a><script>
(function wait() {
  const stream = new EventSource("/stream");
  stream.onmessage = () => location.reload();
  stream.onerror = () => stream.readyState === EventSource.CLOSED && setTimeout(wait, 1000); // A proxy's error page.
})();</script>"""


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """Share one client of the platform, and one of Redis, among all requests of the process.

    Each waiting page holds a connection of Redis. redis-py would allow 100, and wait 5 s for an answer.
    """
    url = os.environ["CHECKIN_REDIS_URL"]
    redis = Redis.from_url(url, decode_responses=True, max_connections=5_000, socket_timeout=30)
    async with AsyncApi.from_env() as api, redis:
        yield {"api": api, "redis": redis}


async def api_of(request: Request) -> Any:
    """Return the client of the platform."""
    return request.state.api


async def redis_of(request: Request) -> Any:
    """Return the client of Redis."""
    return request.state.redis


Platform: TypeAlias = Annotated[AsyncApi, Depends(api_of)]
Store: TypeAlias = Annotated[Any, Depends(redis_of)]

app = FastAPI(lifespan=lifespan, openapi_url=None)


async def request_presentation(api: AsyncApi) -> tuple[str, str]:
    """Return a new presentation's id and the wallet's link. The specification has no operation for it: use yours."""
    data = (await api.request("POST", os.environ["CHECKIN_REQUEST_PATH"], {}))["data"]
    return data["id"], data["authorizationRequestUri"]


async def session(request: Request, redis: Store) -> Any:
    """Return what the browser began, or None. Only its cookie tells: nobody can ask for the outcome of another."""
    return json.loads(await redis.get(f"checkin:session:{request.cookies.get('__Host-checkin')}") or "null")


@app.get("/")
async def page(request: Request, redis: Store) -> Response:
    """Show the state. The server reads the outcome itself, because a browser can be made to say anything."""
    begun = await session(request, redis)
    ended = begun and await redis.xrevrange(OUTCOME + begun["presentation"], count=1)
    shown = WAIT.replace("LINK", escape(begun["link"])) if begun else BEGIN
    shown = f"<p>{ended[0][1]['outcome']}</p>{BEGIN}" if ended else shown
    return HTMLResponse(f"<!doctype html><title>Check in</title>{shown}", headers={"cache-control": "no-store"})


@app.post("/begin")
async def begin(api: Platform, redis: Store) -> Response:
    """Request a presentation, and bind it to this browser."""
    presentation, link = await request_presentation(api)
    token, begun = secrets.token_urlsafe(), {"presentation": presentation, "link": link}
    await redis.set(f"checkin:session:{token}", json.dumps(begun), ex=SECONDS)
    response = RedirectResponse("/", 303)
    response.set_cookie("__Host-checkin", token, max_age=SECONDS, secure=True, httponly=True, samesite="lax")
    return response


@app.get("/stream")
async def stream(request: Request, redis: Store) -> Response:
    """Tell the page when to look again."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(news(request, redis), media_type="text/event-stream", headers=headers)


async def news(request: Request, redis: Any) -> AsyncIterator[str]:
    """Yield one message when the outcome comes, or is there from before, or when there is nothing to wait for."""
    yield "retry: 1000\n\n"
    while begun := await session(request, redis):
        if await redis.xread({OUTCOME + begun["presentation"]: "0"}, block=15_000):
            break
        yield ": waiting\n\n"  # Proxies close silent connections.
    yield "data: look\n\n"
