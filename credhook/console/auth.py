"""Who may use the console: login, sessions, and protection from pages of other sites.

No page is shown without a session. No answer can be framed, cached or made to run a foreign script.
"""

import hmac
import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple, cast
from urllib.parse import quote, urlsplit

import structlog
from pydantic import SecretStr
from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from credhook.console.pages import page

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
#: Wrong logins within `_TRY_WINDOW_SECONDS` after which further tries wait.
_MAX_TRIES: Final = 10
_TRY_WINDOW_SECONDS: Final = 60.0
_MAX_FORM_BYTES: Final = 65_536
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
        self._failures: deque[float] = deque(maxlen=_MAX_TRIES)
        self._renew()

    def wait_seconds(self) -> float:
        """Return the seconds until the next attempt is accepted; 0 if it is accepted now."""
        if len(self._failures) < _MAX_TRIES:
            return 0.0
        return max(0.0, self._failures[0] + _TRY_WINDOW_SECONDS - self._clock())

    def succeeds(self, given: str) -> bool:
        """Compare in constant time. A correct code is used up."""
        if not _equal(given, self._expected.get_secret_value()):
            self._failures.append(self._clock())
            return False
        self._failures.clear()
        self._renew()
        return True

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
        """`seconds`: how long a session lasts."""
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

    def refusal(request: Request) -> Response | None:
        path = request.scope["path"]
        if problem := objection(request.method, request.headers, url):
            log.warning("console_refused", path=path, reason=problem)
            return PlainTextResponse(f"{problem}\n", HTTPStatus.FORBIDDEN)
        request.state.session = sessions.read(request.cookies.get(cookie_name(url), ""))
        if request.state.session or path == "/login" or path.startswith("/static/"):
            return None
        if request.method == "GET":
            asked = f"{path}?{request.scope['query_string'].decode('latin-1')}".removesuffix("?")
            return RedirectResponse("/login" if asked == "/" else f"/login?next={quote(asked, safe='')}", 303)
        return PlainTextResponse("Log in first.\n", HTTPStatus.UNAUTHORIZED)

    async def dispatch(request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = refusal(request) or await call_next(request)
        response.headers.update(HEADERS)
        return response

    return Middleware(BaseHTTPMiddleware, dispatch=dispatch)


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
    """Return the fields of a form of this session.

    Raises:
        HTTPException: 403, its token is wrong; 413, the form is too large.
    """
    form = await _read_fields(request)
    if not _equal(form.get("form_token", ""), session_of(request).form_token):
        raise HTTPException(403, "The form is from an earlier login or from another site. Load the page again.")
    return form


async def _read_fields(request: Request) -> QueryParams:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_FORM_BYTES:
            raise HTTPException(413, f"The form is larger than {_MAX_FORM_BYTES} bytes.")
    return QueryParams(body.decode(errors="replace"))


def routes(login: Login, sessions: Sessions, url: str | None) -> list[Route]:
    """Return the routes of login and logout. GET changes nothing, so a link preview uses up no code."""

    def form(request: Request, next_: str, problem: str = "", status: int = 200) -> Response:
        context = {"problem": problem, "by_code": login.by_code, "next": next_}
        return page(request, "login.html", status, title="Log in", code=request.query_params.get("code", ""), **context)

    async def show(request: Request) -> Response:
        next_ = _local_path(request.query_params.get("next", "/"))
        return RedirectResponse(next_, 303) if request.state.session else form(request, next_)

    async def log_in(request: Request) -> Response:
        fields = await _read_fields(request)
        next_ = _local_path(fields.get("next", "/"))
        if wait := math.ceil(login.wait_seconds()):
            log.warning("console_login_refused", reason="too many wrong tries")
            answer = form(request, next_, f"Too many wrong tries. Wait {wait} s.", HTTPStatus.TOO_MANY_REQUESTS)
            answer.headers["Retry-After"] = str(wait)
            return answer
        if not login.succeeds(fields.get("token", "")):
            log.warning("console_login_refused", reason="wrong token")
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
