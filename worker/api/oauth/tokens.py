"""Access tokens: what one is, where the current one is kept, and how the token endpoint's answer is read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Final, Protocol

from pydantic import BeforeValidator, Field, TypeAdapter
from pydantic_core import from_json

from credhook.worker.api.calls.errors import ApiError, InvalidResponse, Unauthorized, Unavailable
from credhook.worker.api.calls.responses import parse, refusal
from credhook.worker.api.http.exchange import HEADERS, Response
from credhook.worker.api.models.base import ResponseModel

#: Seconds before its expiry at which a token is renewed. Specification, Limits.
EARLY = 30.0

#: Seconds that a token lives if the answer does not say. Specification, Limits.
LIFETIME = 300

#: Seconds that a token is used at most, whatever the answer says.
LONGEST_LIFETIME = 86_400


@dataclass(frozen=True, slots=True)
class Token:
    """An access token.

    Attributes:
        value: What goes behind `Bearer`. Not shown.
        renew_at: Reading of the credentials' clock from which on a new one is fetched.
        headers: What requests with it say: one object, of which nothing is made anew for each. Not shown.
    """

    value: str = field(repr=False)
    renew_at: float
    headers: Mapping[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", {**HEADERS, "Authorization": f"Bearer {self.value}"})


class Tokens(Protocol):
    """Where the current token is kept, for the `ClientCredentials` of one event loop."""

    def get(self) -> Token | None:
        """Return the current token, whether or not it is time to renew it: from memory, since each request asks."""

    async def acquire(self) -> Token | None:
        """Return a token that somebody else has fetched meanwhile, or None: the caller is to fetch one.

        Raises:
            ApiError: Somebody else was refused one just now, and it would be the same for the caller.
        """

    async def release(self, outcome: Token | ApiError | None) -> None:
        """Let others fetch. Called after every `acquire`, with what came of it; None: it was given up."""

    async def replace(self, token: Token) -> None:
        """Keep a token that was just granted."""

    async def invalidate(self, token: Token) -> None:
        """Forget this token, which the platform has refused. A newer one stays."""


class TokenCache:
    """The current token, in memory."""

    def __init__(self, token: Token | None = None) -> None:
        self._token = token

    def get(self) -> Token | None:
        """Return the current token."""
        return self._token

    async def acquire(self) -> Token | None:
        """Return None: there is nobody else."""
        return None

    async def release(self, outcome: Token | ApiError | None) -> None:
        """Do nothing, likewise."""

    async def replace(self, token: Token) -> None:
        """Keep a token."""
        self._token = token

    async def invalidate(self, token: Token) -> None:
        """Forget this token, if it is still the current one."""
        if self._token == token:
            self._token = None


def _lifetime(value: object) -> object:
    """Read null as no statement. A fraction or a number in a text is a number; true and false are none."""
    if value is None:
        return LIFETIME
    return "a boolean" if isinstance(value, bool) else value


class Grant(ResponseModel):
    """The token endpoint's answer. Specification, Authentication, 3.

    Read as servers write it, who differ in `expires_in`, and who leave out a `token_type` that goes without saying.
    """

    access_token: Annotated[str, Field(alias="access_token", pattern=r"^[\x21-\x7e]{1,16384}$")]
    expires_in: Annotated[float, BeforeValidator(_lifetime), Field(alias="expires_in", ge=0)] = LIFETIME
    token_type: Annotated[str | None, Field(alias="token_type", pattern="^(?i:bearer)$")] = None


_GRANT = TypeAdapter(Grant)

#: An error code of OAuth, such as `invalid_client`. Only what looks like one is put into a message.
_OAUTH_CODE = re.compile(r"[a-z_]{1,40}")

#: Which settings a refusal concerns, by its code; all others concern the credentials.
_SETTINGS: Final = {
    "invalid_scope": "CREDHOOK_SCOPE",
    "invalid_target": "CREDHOOK_AUDIENCE and CREDHOOK_RESOURCE",
}
_CREDENTIALS: Final = "CREDHOOK_CLIENT_ID, CREDHOOK_CLIENT_SECRET, CREDHOOK_TOKEN_AUTH and CREDHOOK_TOKEN_URL"


def granted(response: Response, asked_at: float) -> Token:
    """Read the token endpoint's answer.

    Raises:
        ApiError: It is not a token.
    """
    if not response.is_success:
        raise _refused(response)
    grant = parse("token", _GRANT, response)
    lifetime = min(grant.expires_in, LONGEST_LIFETIME)
    return Token(grant.access_token, renew_at=asked_at + max(lifetime - EARLY, lifetime / 2))


def _refused(response: Response) -> ApiError:
    """Say what a refusal means. Every 4xx that does not pass concerns the credentials, or where they are sent."""
    error = refusal("token", response, datetime.now(UTC))
    if isinstance(error, Unavailable | InvalidResponse):
        return error
    code = _oauth_code(response.body)
    return Unauthorized(
        f"token: the token endpoint refuses this client: {response.status}{f' ({code})' if code else ''}; "
        f"check {_SETTINGS.get(code, _CREDENTIALS)}",
        operation="token",
        status=response.status,
        errors=error.errors,
    )


def _oauth_code(body: bytes) -> str:
    try:
        document = from_json(body)
    except ValueError:
        return ""
    code = document.get("error") if isinstance(document, dict) else None
    return code if isinstance(code, str) and _OAUTH_CODE.fullmatch(code) else ""
