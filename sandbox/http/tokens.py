"""Access tokens: the client-credentials grant, and the check that every API request passes."""

import secrets
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from credhook.sandbox.http.body import FORM, media_type, read_form
from credhook.sandbox.http.errors import Refusal

PATH = "/realms/{realm}/protocol/openid-connect/token"
REALM = "sandbox"
CLIENT_ID = "sandbox"
CLIENT_SECRET = "sandbox"  # noqa: S105  Published: it opens nothing but a sandbox.

#: Seconds (specification, "Limits").
LIFETIME = 300


class Tokens:
    """The tokens that have been handed out. They are not state: a restart forgets them, and clients ask anew."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without any; `clock` tells seconds since 1970."""
        self._clock = clock
        self._expiry: dict[str, float] = {}

    def issue(self) -> str:
        """Return a new token, good for `LIFETIME` seconds."""
        now = self._clock()
        self._expiry = {token: until for token, until in self._expiry.items() if until > now}
        token = secrets.token_urlsafe(32)
        self._expiry[token] = now + LIFETIME
        return token

    def check(self, authorization: str | None) -> str:
        """Return the token of an `Authorization` header.

        Raises:
            Refusal: With 401, when it is missing, unknown or expired (specification, "Authentication", 5).
        """
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise unauthorized("The access token is missing.")
        if self._expiry.get(token, 0) <= self._clock():
            raise unauthorized("The access token is unknown or has expired.")
        return token

    def revoke(self, token: str) -> None:
        """Forget a token before its time."""
        self._expiry.pop(token, None)

    async def grant(self, request: Request) -> Response:
        """Answer `POST /realms/{realm}/protocol/openid-connect/token`.

        Errors have the form of RFC 6749 and the identity provider's wording, not the API's `errors` envelope:
        the token endpoint belongs to the identity provider, and OAuth clients read `error`.
        """
        if request.path_params["realm"] != REALM:
            return _refuse(404, "Realm does not exist", None)
        if media_type(request) != FORM:
            return _refuse(400, "invalid_request", f"The content type should be {FORM}")
        return self._answer(await read_form(request))

    def _answer(self, fields: list[tuple[str, str]]) -> Response:
        form = dict(fields)
        if len(form) < len(fields):
            return _refuse(400, "invalid_request", "duplicated parameter")
        if "grant_type" not in form:
            return _refuse(400, "invalid_request", "Missing form parameter: grant_type")
        if form["grant_type"] != "client_credentials":
            return _refuse(400, "unsupported_grant_type", "Unsupported grant_type")
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT_ID, CLIENT_SECRET):
            return _refuse(401, "invalid_client", "Invalid client or Invalid client credentials")
        granted = {
            "access_token": self.issue(),
            "expires_in": LIFETIME,
            "refresh_expires_in": 0,
            "token_type": "Bearer",
            "not-before-policy": 0,
            "scope": "",
        }
        return JSONResponse(granted, headers={"Cache-Control": "no-store"})


def unauthorized(detail: str) -> Refusal:
    """Return the 401 of the specification."""
    return Refusal(401, detail, headers={"WWW-Authenticate": "Bearer"})


def _refuse(status: int, error: str, description: str | None) -> Response:
    body = {"error": error} | ({"error_description": description} if description else {})
    return JSONResponse(body, status)
