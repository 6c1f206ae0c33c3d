"""Who may call the sandbox: access tokens, and the guard against web pages of other sites."""

import secrets
from collections.abc import Callable, Collection
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from credhook.sandbox.wire import SandboxError, media_type, read_body

TOKEN_PATH = "/realms/{realm}/protocol/openid-connect/token"  # noqa: S105  A path.
FORM = "application/x-www-form-urlencoded"
REALM = "sandbox"
CLIENT_ID = "sandbox"
CLIENT_SECRET = "sandbox"  # noqa: S105  Published: it opens nothing but a sandbox.

TOKEN_LIFETIME_SECONDS = 300


class TokenIssuer:
    """Issues and checks access tokens. A restart forgets them, and clients ask for new ones."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds since 1970."""
        self._clock = clock
        self._expiry: dict[str, float] = {}

    def issue(self) -> str:
        """Return a new token."""
        now = self._clock()
        self._expiry = {token: until for token, until in self._expiry.items() if until > now}
        token = secrets.token_urlsafe(32)
        self._expiry[token] = now + TOKEN_LIFETIME_SECONDS
        return token

    def check(self, authorization: str | None) -> str:
        """Return the token of an `Authorization` header.

        Raises:
            SandboxError: With 401, if it is missing, unknown or expired (specification, "Authentication", 5).
        """
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise unauthorized("The access token is missing.")
        if self._expiry.get(token, 0) <= self._clock():
            raise unauthorized("The access token is unknown or has expired.")
        return token

    def revoke(self, token: str) -> None:
        """Forget a token before it expires."""
        self._expiry.pop(token, None)

    async def grant(self, request: Request) -> Response:
        """Answer `POST /realms/{realm}/protocol/openid-connect/token`.

        The token endpoint belongs to the identity provider. So its errors have the form of RFC 6749 and the
        provider's wording, not the API's `errors` envelope.
        """
        if request.path_params["realm"] != REALM:
            return JSONResponse({"error": "Realm does not exist"}, 404)
        if media_type(request) != FORM:
            return _refuse(400, "invalid_request", f"The content type should be {FORM}")
        fields = await read_form(request)
        form = dict(fields)
        if len(form) < len(fields):
            return _refuse(400, "invalid_request", "duplicated parameter")
        if (grant_type := form.get("grant_type")) != "client_credentials":
            error = "invalid_request" if grant_type is None else "unsupported_grant_type"
            return _refuse(400, error, "grant_type should be client_credentials")
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT_ID, CLIENT_SECRET):
            return _refuse(401, "invalid_client", "Invalid client or Invalid client credentials")
        granted = {
            "access_token": self.issue(),
            "expires_in": TOKEN_LIFETIME_SECONDS,
            "refresh_expires_in": 0,
            "token_type": "Bearer",
            "not-before-policy": 0,
            "scope": "",
        }
        return JSONResponse(granted, headers={"Cache-Control": "no-store"})


async def read_form(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form, in their order."""
    return parse_qsl((await read_body(request)).decode("utf-8", "replace"))


def unauthorized(detail: str) -> SandboxError:
    """Return the 401 of the specification."""
    return SandboxError(401, detail, headers={"WWW-Authenticate": "Bearer"})


def _refuse(status: int, error: str, description: str) -> Response:
    return JSONResponse({"error": error, "error_description": description}, status)


class BrowserGuard:
    """Middleware that answers 403 to requests of web pages of other origins."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            problem = objection(headers.get("host", ""), headers.get("origin"), self._hosts)
            if problem:
                await SandboxError(403, problem).response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def objection(host: str, origin: str | None, hosts: Collection[str]) -> str | None:
    """Return the reason to refuse a request, or None.

    A page that points its own name at this machine shows that name in `Host`; it cannot show an address. A page
    that posts across sites shows its own in `Origin`. `hosts` are accepted as well as `localhost` and addresses.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # Such as unbalanced brackets.
        name = ""
    if not (name == "localhost" or _address(name) or name in hosts):
        return "The sandbox does not know the name in the Host header; start it with --allowed-host NAME."
    if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
        return "The request comes from a page of another origin."
    return None


def is_loopback(name: str) -> bool:
    """Return True if a host name or address means this machine only."""
    address = _address(name)
    return address.is_loopback if address else name == "localhost"


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None
