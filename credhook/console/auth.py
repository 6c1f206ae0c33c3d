"""Protect the console: HTTP Basic with one password, and no requests that pages of other sites cause.

Browsers send the password with every request, also with requests that other sites' pages cause. So a request must come
from a page of the console itself. No answer can be framed, cached or made to run a foreign script.
"""

import asyncio
import hmac
from base64 import b64decode
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from credhook.logs import FloodGuard

log = structlog.get_logger("credhook.console")

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "img-src 'self'; script-src 'self'; style-src 'self'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Anything stricter would make browsers send `Origin: null` with the console's own forms.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
#: Name of an operator who typed no name. The link that the console prints contains it.
OPERATOR: Final = "operator"
_MAX_NAME_CHARACTERS: Final = 40
#: Seconds until a wrong password is refused, so that guessing takes time.
_REFUSAL_SECONDS: Final = 1.0
#: Log lines a minute for each reason: anyone who reaches the port could fill the disk.
_MAX_LOGGED: Final = 20
MAX_FORM_BYTES: Final = 65_536
#: This header makes browsers ask for name and password, and send both as UTF-8.
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="credhook console", charset="UTF-8"'}


def operator(request: Request) -> str:
    """Return the name that the operator typed, for the log and the history of events."""
    return str(request.state.operator)


class Guard:
    """Middleware that refuses cross-site requests and requests without the password."""

    def __init__(self, app: ASGIApp, *, password: str, url: str | None) -> None:
        """`url`: the https URL at which browsers reach the console, if it is behind a proxy."""
        self._app = app
        self._password = password
        self._url = url
        self._flood = FloodGuard(_MAX_LOGGED)

    # With Starlette's BaseHTTPMiddleware, the next request of a connection could come before the answer has ended.
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, with our headers."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(raw=message["headers"]).update(HEADERS)
            await send(message)

        answer = await self._refusal(Request(scope)) or self._app
        await answer(scope, receive, send_with_headers)

    async def _refusal(self, request: Request) -> Response | None:
        if problem := refusal_reason(request.method, request.headers, self._url):
            self._warn("console_refused", problem, path=request.scope["path"])
            return PlainTextResponse(f"{problem}\n", HTTPStatus.FORBIDDEN)
        credentials = request.headers.get("authorization", "")
        name = authenticated(credentials, self._password)
        if name is None:
            if credentials:
                self._warn("console_login_refused", "wrong password")
                await asyncio.sleep(_REFUSAL_SECONDS)
            detail = "Log in with your name and the console's password.\n"
            return PlainTextResponse(detail, HTTPStatus.UNAUTHORIZED, _CHALLENGE)
        request.state.operator = name
        return None

    def _warn(self, event: str, reason: str, **fields: str) -> None:
        if (more := self._flood.admit(reason)) is not None:
            log.warning(event, reason=reason, **fields, **more)


def authenticated(credentials: str, password: str) -> str | None:
    """Return the operator's name from an `Authorization` header, or None if its password is wrong."""
    scheme, _, encoded = credentials.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, _, typed = b64decode(encoded, validate=True).partition(b":")
    except ValueError:  # Not base64, or not ASCII.
        return None
    if not hmac.compare_digest(typed, password.encode()):
        return None
    return name.decode(errors="replace").strip()[:_MAX_NAME_CHARACTERS] or OPERATOR


def refusal_reason(method: str, headers: Headers, url: str | None) -> str | None:
    """Return why a request is refused, or None.

    DNS rebinding shows a foreign name in `Host`. A cross-site form shows itself in `Origin` or `Sec-Fetch-Site`;
    every current browser sends at least one of these with a POST. Another site may link to a page, but not load
    it in any other way, since a page may count a million events.
    """
    host = headers.get("host", "")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # Such as unbalanced brackets.
        name = ""
    if not (name == "localhost" or _ip_address(name) or (url and name == urlsplit(url).hostname)):
        return "The console does not know the host of the Host header. Set CREDHOOK_CONSOLE_URL to the console's URL."
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if method in {"GET", "HEAD"}:
        if site in {"cross-site", "same-site"} and headers.get("sec-fetch-dest") != "document":
            return "The request comes from a page of another site."
        return None
    if origin is None and site is None:
        return "The request names no origin: it has neither Origin nor Sec-Fetch-Site."
    if site not in {None, "same-origin"} or origin not in {None, f"http://{host}", url}:
        configured = f"CREDHOOK_CONSOLE_URL says {url}" if url else "CREDHOOK_CONSOLE_URL is not set"
        return f"The request comes from another origin. If the console is behind a proxy, set its URL: {configured}."
    return None


def is_loopback(name: str) -> bool:
    """Return True if a host name or address means this machine only."""
    address = _ip_address(name)
    return address.is_loopback if address else name == "localhost"


def _ip_address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


async def read_form(request: Request) -> QueryParams:
    """Return the fields of a form."""
    return QueryParams((await request.body()).decode(errors="replace"))
