"""The web application: it shows the wallet's link, and the outcome when it is there. Any process serves any page."""

import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import escape
from typing import Any, Final

from checkin import OUTCOME, SECONDS
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from credhook import AsyncApi

#: Each waiting page holds a connection. redis-py would allow 100, and wait 5 s for an answer.
REDIS: Final[Any] = Redis.from_url(
    os.environ["CHECKIN_REDIS_URL"], decode_responses=True, max_connections=5_000, socket_timeout=30
)
BEGIN: Final = '<form method="post" action="/begin"><button>Check in</button></form>'
WAIT: Final = """<a href="LINK">Open your wallet</a><script>
(function wait() {
  const stream = new EventSource("/stream");
  stream.onmessage = () => location.reload();
  stream.onerror = () => stream.readyState === EventSource.CLOSED && setTimeout(wait, 1000); // A proxy's error page.
})();</script>"""


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[dict[str, AsyncApi]]:
    """Share one client of the platform among all requests of the process."""
    async with AsyncApi.from_env() as api:
        yield {"api": api}


async def request_presentation(api: AsyncApi) -> tuple[str, str]:
    """Return a new presentation's id and the wallet's link. The specification has no operation for it: use yours."""
    data = (await api.request("POST", os.environ["CHECKIN_REQUEST_PATH"], {}))["data"]
    return data["id"], data["authorizationRequestUri"]


async def session(request: Request) -> Any:
    """Return what the browser began, or None. Only its cookie tells: nobody can ask for the outcome of another."""
    return json.loads(await REDIS.get(f"checkin:session:{request.cookies.get('__Host-checkin')}") or "null")


async def page(request: Request) -> Response:
    """Show the state. The server reads the outcome itself, because a browser can be made to say anything."""
    begun = await session(request)
    ended = begun and await REDIS.xrevrange(OUTCOME + begun["presentation"], count=1)
    shown = WAIT.replace("LINK", escape(begun["link"])) if begun else BEGIN
    shown = f"<p>{ended[0][1]['outcome']}</p>{BEGIN}" if ended else shown
    return HTMLResponse(f"<!doctype html><title>Check in</title>{shown}", headers={"cache-control": "no-store"})


async def begin(request: Request) -> Response:
    """Request a presentation, and bind it to this browser."""
    presentation, link = await request_presentation(request.state.api)
    token, begun = secrets.token_urlsafe(), {"presentation": presentation, "link": link}
    await REDIS.set(f"checkin:session:{token}", json.dumps(begun), ex=SECONDS)
    response = RedirectResponse("/", 303)
    response.set_cookie("__Host-checkin", token, max_age=SECONDS, secure=True, httponly=True, samesite="lax")
    return response


async def stream(request: Request) -> Response:
    """Tell the page when to look again."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(news(request), media_type="text/event-stream", headers=headers)


async def news(request: Request) -> AsyncIterator[str]:
    """Yield one message when the outcome comes, or is there from before, or when there is nothing to wait for."""
    yield "retry: 1000\n\n"
    while begun := await session(request):
        if await REDIS.xread({OUTCOME + begun["presentation"]: "0"}, block=15_000):
            break
        yield ": waiting\n\n"  # Proxies close silent connections.
    yield "data: look\n\n"


ROUTES: Final = [Route("/", page), Route("/begin", begin, methods=["POST"]), Route("/stream", stream)]
app = Starlette(routes=ROUTES, lifespan=lifespan)
