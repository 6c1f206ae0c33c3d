"""Who may use the console: login, signed sessions, and protection from pages of other sites.

No page is shown without a session. No answer can be framed, cached or made to run a foreign script.
"""

import hmac
import json
import math
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qsl, quote, urlsplit

import structlog
from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from credhook.console.rendering import page

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
#: Paths that need no session: the login page, and its style and script.
OPEN: Final = frozenset({"/login", "/console.css", "/console.js", "/icon.svg"})
#: Wrong logins within `_TRY_WINDOW_SECONDS` after which further tries wait.
_MAX_TRIES: Final = 10
_TRY_WINDOW_SECONDS: Final = 60.0
_MAX_COOKIE_CHARACTERS: Final = 1_024
_MAX_FORM_BYTES: Final = 65_536
_MAX_NAME_CHARACTERS: Final = 40
#: Methods that change nothing.
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})

Form = list[tuple[str, str]]


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
        new_code: Callable[[], str] = secrets.token_urlsafe,
    ) -> None:
        """Without a token, `hand_out` is called with a new code whenever the last one was used."""
        self.by_code = token is None
        self._hand_out = hand_out
        self._clock = clock
        self._new_code = new_code
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
            self._expected = SecretStr(self._new_code())
            self._hand_out(self._expected.get_secret_value())


class Session(NamedTuple):
    """A logged-in operator.

    Attributes:
        id: random.
        who: the name given at login, for the log and the history of events.
        until: when the session ends, in seconds since the epoch.
        form_token: sent with each form of this session; other sites cannot know it.
    """

    id: str
    who: str
    until: float
    form_token: str


class Sessions:
    """Signed session cookies. The key lives in this process, so sessions end with it."""

    def __init__(
        self,
        *,
        seconds: float,
        clock: Callable[[], float] = time.time,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`seconds`: how long a session lasts."""
        self.seconds = seconds
        self._clock = clock
        self._random_bytes = random_bytes
        self._key = random_bytes(32)
        #: Sessions ended by a logout, with the time at which they would have ended anyway.
        self._ended: dict[str, float] = {}

    def begin(self, who: str) -> str:
        """Begin a session and return its cookie."""
        claims = json.dumps([self._random_bytes(16).hex(), who, self._clock() + self.seconds])
        text = urlsafe_b64encode(claims.encode()).decode()
        return f"{text}.{self._signature('session', text)}"

    def read(self, cookie: str) -> Session | None:
        """Return the session of a cookie, or None if its signature is wrong or it is over."""
        text, _, signature = cookie.partition(".")
        if len(cookie) > _MAX_COOKIE_CHARACTERS or not _equal(signature, self._signature("session", text)):
            return None
        id_, who, until = json.loads(urlsafe_b64decode(text))
        session = Session(id_, who, until, self._signature("form", id_))
        return session if self.is_alive(session) else None

    def is_alive(self, session: Session) -> bool:
        """Return True if the session has neither expired nor been ended."""
        return session.until > self._clock() and session.id not in self._ended

    def end(self, session: Session) -> None:
        """End the session before its time."""
        now = self._clock()
        self._ended = {id_: until for id_, until in self._ended.items() if until > now}
        self._ended[session.id] = session.until

    def _signature(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose} {text}".encode(errors="replace"), sha256).hexdigest()


def session_of(request: Request) -> Session:
    """Return the session of a request that has passed the guard."""
    return cast(Session, request.state.session)


def cookie_name(url: str | None) -> str:
    """Return the cookie's name. With https the prefix keeps other hosts from setting it."""
    return "__Host-credhook-console" if url else "credhook-console"


class AccessGuard:
    """Middleware that refuses cross-site requests, and sends visitors without a session to the login page."""

    def __init__(self, app: ASGIApp, *, sessions: Sessions, url: str | None) -> None:
        """`url`: the https URL at which browsers reach the console, if it is behind a proxy."""
        self._app = app
        self._sessions = sessions
        self._url = url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge the headers. Forms are checked where they are read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, send_guarded)

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
    if method in _SAFE_METHODS:
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


async def read_form(request: Request) -> Form:
    """Return the fields of a form of this session, in order, without its token.

    Raises:
        HTTPException: 403, the token is wrong; 413, the form is too large; 400, it ended early.
    """
    fields = await _read_fields(request)
    if not _equal(field(fields, "form_token"), session_of(request).form_token):
        raise HTTPException(403, "The form is from an earlier login or from another site. Load the page again.")
    return [(name, value) for name, value in fields if name != "form_token"]


async def _read_fields(request: Request) -> Form:
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > _MAX_FORM_BYTES:
                raise HTTPException(413, f"The form is larger than {_MAX_FORM_BYTES} bytes.")
    except ClientDisconnect as error:
        raise HTTPException(400, "The form ended early.") from error
    return parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=None)


def field(form: Form, name: str) -> str:
    """Return the value of a field, or an empty string."""
    return next((value for one, value in form if one == name), "")


def routes(login: Login, sessions: Sessions, *, url: str | None, user: str) -> list[Route]:
    """Return the routes of login and logout. GET changes nothing, so a link preview uses up no code.

    `user` is the name of operators who give none.
    """

    def form(request: Request, problem: str = "", status: int = 200, *, code: str = "", next_: str = "/") -> Response:
        context = {"problem": problem, "by_code": login.by_code, "code": code, "next": next_, "user": user}
        return page(request, "login.html", status, title="Log in", **context)

    async def show(request: Request) -> Response:
        next_ = _local_path(request.query_params.get("next", "/"))
        if request.state.session:
            return RedirectResponse(next_, 303)
        return form(request, code=request.query_params.get("code", ""), next_=next_)

    async def log_in(request: Request) -> Response:
        fields = await _read_fields(request)
        next_ = _local_path(field(fields, "next"))
        wait = math.ceil(login.wait_seconds())
        if wait:
            log.warning("console_login_refused", reason="too many wrong tries")
            answer = form(request, f"Too many wrong tries. Wait {wait} s.", 429, next_=next_)
            answer.headers["Retry-After"] = str(wait)
            return answer
        if not login.succeeds(field(fields, "token")):
            log.warning("console_login_refused", reason="wrong token")
            used = "This link was used already or is not valid. The console has printed a new link on its terminal."
            return form(request, used if login.by_code else "The token is wrong.", HTTPStatus.FORBIDDEN, next_=next_)
        printable = "".join(letter for letter in field(fields, "who") if letter.isprintable())
        who = printable.strip()[:_MAX_NAME_CHARACTERS] or user
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
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(cookie_name(url), secure=url is not None, httponly=True, samesite="strict")
        return answer

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
