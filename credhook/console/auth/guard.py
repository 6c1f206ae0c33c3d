"""Stands before every page: who may not see it sees nothing, and no answer can be framed, kept or made to run a script.

An answer's rules are the same for all, whatever made it.
"""

from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from credhook.console.auth.origins import objection
from credhook.console.auth.sessions import Sessions

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
#: What is shown to whoever asks: the door, and what it looks like.
OPEN: Final = frozenset({"/login", "/console.css", "/console.js", "/icon.svg"})
#: The cookie: a browser keeps no page of a neighbouring host from setting one without that prefix.
_COOKIE, _SECURE_COOKIE = "credhook-console", "__Host-credhook-console"


class Guard:
    """Lets a request pass, or answers it."""

    def __init__(self, app: ASGIApp, *, sessions: Sessions, url: str | None) -> None:
        """Guard the application; `url`: where browsers reach it over https, if that is known."""
        self._app = app
        self._sessions = sessions
        self._url = url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge by the headers alone; forms are judged where they are read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._refusal(scope)
        await (answer or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        problem = objection(method, headers, self._url)
        if problem:
            log.warning("console_refused", path=path, reason=problem)
            return PlainTextResponse(f"{problem}\n", HTTPStatus.FORBIDDEN)
        session = self._sessions.read(HTTPConnection(scope).cookies.get(cookie_name(self._url), ""))
        scope.setdefault("state", {})["session"] = session
        if session or path in OPEN:
            return None
        if method == "GET" and not path.startswith("/live/"):
            asked = f"{path}?{scope['query_string'].decode('latin-1')}".removesuffix("?")
            return RedirectResponse("/login" if asked == "/" else f"/login?next={quote(asked, safe='')}", 303)
        return PlainTextResponse("Log in first.\n", HTTPStatus.UNAUTHORIZED)


def cookie_name(url: str | None) -> str:
    """What the cookie is called; over https so that no other host, and no page without TLS, can set it."""
    return _SECURE_COOKIE if url else _COOKIE
