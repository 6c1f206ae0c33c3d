"""Who may use the console: login, sessions, and protection from pages of other sites.

No page is shown without a session. No answer can be framed, cached or made to run a foreign script.
"""

import hmac
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple, cast
from urllib.parse import quote, urlsplit

import structlog
from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from credhook.console.pages import page
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
#: Wrong logins of one address within `_TRY_WINDOW_SECONDS`. After more, it is told to wait.
_MAX_TRIES: Final = 10
_TRY_WINDOW_SECONDS: Final = 60.0
#: Log lines a minute for each reason: anyone who reaches the port could fill the disk.
_MAX_LOGGED: Final = 20
MAX_FORM_BYTES: Final = 65_536
_MAX_NAME_CHARACTERS: Final = 40


class Login:
    """Checks login attempts against the configured token, or against a one-time code.

    Attributes:
        by_code: True if no token is configured, so that codes are used.
    """

    def __init__(
        self,
        token: SecretStr | None,
        *,
        hand_out: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a token, `hand_out` is called with a new code whenever the last one was used."""
        self.by_code = token is None
        self._hand_out = hand_out
        self._clock = clock
        self._expected = token or SecretStr("")
        self._failures, self._began = Counter[str](), clock()
        self._renew()

    def succeeds(self, given: str) -> bool:
        """Compare in constant time. A correct code is used up.

        The right token always opens: its length protects it, and a stranger must not lock the operators out.
        """
        if not _equal(given, self._expected.get_secret_value()):
            return False
        self._renew()
        return True

    def failed(self, peer: str) -> float:
        """Count a wrong try of an address. Return the seconds that it should wait; 0 while it has few."""
        now = self._clock()
        if now - self._began >= _TRY_WINDOW_SECONDS:
            self._began = now
            self._failures.clear()
        self._failures[peer] += 1
        return self._began + _TRY_WINDOW_SECONDS - now if self._failures[peer] > _MAX_TRIES else 0.0

    def _renew(self) -> None:
        if self.by_code:
            self._expected = SecretStr(secrets.token_urlsafe())
            self._hand_out(self._expected.get_secret_value())


class Session(NamedTuple):
    """A logged-in operator.

    Attributes:
        cookie: random; the browser sends it with each request.
        who: the name given at login, for the log and the history of events.
        until: when the session ends, in seconds since the epoch.
        form_token: sent with each form of this session; other sites cannot know it.
    """

    cookie: str
    who: str
    until: float
    form_token: str


class Sessions:
    """The sessions of this process, by cookie. They end with it."""

    def __init__(self, *, seconds: float, clock: Callable[[], float] = time.time) -> None:
        self.seconds = seconds
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def begin(self, who: str) -> str:
        """Begin a session and return its cookie."""
        now = self._clock()
        session = Session(secrets.token_urlsafe(), who, now + self.seconds, secrets.token_urlsafe())
        self._sessions = {one.cookie: one for one in (*self._sessions.values(), session) if one.until > now}
        return session.cookie

    def read(self, cookie: str) -> Session | None:
        """Return the session of a cookie, or None if there is none or it is over."""
        session = self._sessions.get(cookie)
        return session if session and session.until > self._clock() else None

    def end(self, session: Session) -> None:
        """End the session before its time."""
        self._sessions.pop(session.cookie, None)


def session_of(request: Request) -> Session:
    """Return the session of a request that has passed the guard."""
    return cast(Session, request.state.session)


def cookie_name(url: str | None) -> str:
    """Return the cookie's name. With https the prefix keeps other hosts from setting it."""
    return "__Host-credhook-console" if url else "credhook-console"


def guard(sessions: Sessions, url: str | None) -> Middleware:
    """Return middleware that refuses cross-site requests, and sends visitors without a session to the login page.

    `url`: the https URL at which browsers reach the console, if it is behind a proxy. Forms are checked where they are
    read.
    """
    flood = FloodGuard(_MAX_LOGGED)

    def refusal(request: Request) -> Response | None:
        path = request.scope["path"]
        if problem := objection(request.method, request.headers, url):
            if (more := flood.admit(problem)) is not None:
                log.warning("console_refused", path=path, reason=problem, **more)
            return PlainTextResponse(f"{problem}\n", HTTPStatus.FORBIDDEN)
        request.state.session = sessions.read(request.cookies.get(cookie_name(url), ""))
        if request.state.session or path == "/login" or path.startswith("/static/"):
            return None
        if request.method == "GET":
            asked = f"{path}?{request.scope['query_string'].decode('latin-1')}".removesuffix("?")
            return RedirectResponse("/login" if asked == "/" else f"/login?next={quote(asked, safe='')}", 303)
        return PlainTextResponse("Log in first.\n", HTTPStatus.UNAUTHORIZED)

    def guarded(app: ASGIApp) -> ASGIApp:
        # Starlette's BaseHTTPMiddleware would end an answer after its last byte: the next request could come before.
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(raw=message["headers"]).update(HEADERS)
                await send(message)

            await (refusal(Request(scope)) or app)(scope, receive, send_with_headers)

        return answer

    return Middleware(guarded)


def objection(method: str, headers: Headers, url: str | None) -> str | None:
    """Return why a request is refused, or None.

    DNS rebinding shows a foreign name in `Host`. A cross-site form shows itself in `Origin` or `Sec-Fetch-Site`;
    every current browser sends at least one of them with a POST.
    """
    host = headers.get("host", "")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # Such as unbalanced brackets.
        name = ""
    if not (name == "localhost" or _ip_address(name) or (url and name == urlsplit(url).hostname)):
        return "The console does not know the host of the Host header. Set CREDHOOK_CONSOLE_URL to the console's URL."
    if method in {"GET", "HEAD"}:  # They change nothing.
        return None
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None and site is None:
        return "The request names no origin: it has neither Origin nor Sec-Fetch-Site."
    if site not in {None, "same-origin"} or origin not in {None, f"http://{host}", url}:
        known = f"CREDHOOK_CONSOLE_URL says {url}" if url else "CREDHOOK_CONSOLE_URL is not set"
        return f"The request comes from another origin. If the console is behind a proxy, set its URL: {known}."
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
    """Return the fields of a form of this session, or raise a 403 if its token is wrong."""
    form = await _read_fields(request)
    if not _equal(form.get("form_token", ""), session_of(request).form_token):
        raise HTTPException(403, "The form is from an earlier login or from another site. Load the page again.")
    return form


async def _read_fields(request: Request) -> QueryParams:
    return QueryParams((await request.body()).decode(errors="replace"))


def routes(login: Login, sessions: Sessions, url: str | None) -> list[Route]:
    """Return the routes of login and logout. GET changes nothing, so a link preview uses up no code."""
    flood = FloodGuard(_MAX_LOGGED)

    def form(request: Request, next_: str, problem: str = "", status: int = 200) -> Response:
        context = {"problem": problem, "by_code": login.by_code, "next": next_}
        return page(request, "login.html", status, title="Log in", code=request.query_params.get("code", ""), **context)

    async def show(request: Request) -> Response:
        next_ = _local_path(request.query_params.get("next", "/"))
        return RedirectResponse(next_, 303) if request.state.session else form(request, next_)

    async def log_in(request: Request) -> Response:
        fields = await _read_fields(request)
        next_ = _local_path(fields.get("next", "/"))
        if not login.succeeds(fields.get("token", "")):
            wait = math.ceil(login.failed(request.client.host if request.client else ""))
            reason = "too many wrong tries" if wait else "wrong token"
            if (more := flood.admit(reason)) is not None:
                log.warning("console_login_refused", reason=reason, **more)
            if wait:
                answer = form(request, next_, f"Too many wrong tries. Wait {wait} s.", HTTPStatus.TOO_MANY_REQUESTS)
                answer.headers["Retry-After"] = str(wait)
                return answer
            used = "This link was used already or is not valid. The console has printed a new link on its terminal."
            return form(request, next_, used if login.by_code else "The token is wrong.", HTTPStatus.FORBIDDEN)
        who = fields.get("who", "").strip()[:_MAX_NAME_CHARACTERS] or "operator"
        log.info("console_login", who=who)
        answer = RedirectResponse(next_, 303)
        answer.set_cookie(
            cookie_name(url),
            sessions.begin(who),
            max_age=int(sessions.seconds),
            secure=url is not None,
            httponly=True,
            samesite="strict",
        )
        return answer

    async def log_out(request: Request) -> Response:
        await read_form(request)
        session = session_of(request)
        sessions.end(session)
        log.info("console_logout", who=session.who)
        return RedirectResponse("/login", 303)

    return [
        Route("/login", show),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]


def _local_path(path: str) -> str:
    """Return the path if it is one of this console's, else `/`."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))
