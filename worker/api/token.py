"""Fetch an access token by the client-credentials grant, and keep it for all callers of one event loop.

Each process has a token of its own. No credential is stored in Redis. The platform's specification, Authentication,
gives the grant; RFC 6749 (2.3.1 and 4.4) and RFC 8707 give the details.
"""

import asyncio
import functools
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from urllib.parse import quote, urlencode

from pydantic import Field, SecretStr, TypeAdapter

from credhook.backoff import Backoff, Waits
from credhook.worker.api.errors import ApiError, InvalidResponse, error_of, token_refusal
from credhook.worker.api.http.exchange import HEADERS, BodyRefused, Request, Response, Transport, Unanswered, Unsendable
from credhook.worker.api.models import ResponseModel
from credhook.worker.api.responses import parse

if TYPE_CHECKING:
    from credhook.settings import PlatformSettings

#: How the client authenticates: secret in the form (`client_secret_post`, as the specification has it) or in a header
#: (`client_secret_basic`, which every OAuth server must support).
TokenAuth = Literal["post", "basic"]

#: Seconds before expiry at which a token is renewed. Specification, Limits.
RENEW_EARLY: Final = 30.0
#: Lifetime in seconds if the answer gives none. Specification, Limits.
DEFAULT_LIFETIME: Final = 300
#: Maximum lifetime in seconds, even if the answer has a longer one.
MAX_LIFETIME: Final = 86_400

#: Pauses after failed token requests, in seconds. A `Retry-After` of the endpoint counts up to the longest one.
PAUSES: Final = Backoff(first=2.0, longest=60.0, jitter=0.5)
#: Seconds without renewal after the platform has refused a fresh token: another token would be refused too.
RENEWAL_PAUSE: Final = 10.0
#: Seconds between two looks whether there is a token.
KEEP_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Token:
    """An access token."""

    #: The text behind `Bearer`.
    value: str = field(repr=False)
    #: Monotonic seconds.
    renew_at: float

    @functools.cached_property
    def headers(self) -> Mapping[str, str]:
        """Return the headers of requests with this token."""
        return {**HEADERS, "Authorization": f"Bearer {self.value}"}


class ClientCredentials:
    """The token of one OAuth client, shared by all callers of an event loop.

    After a failed token request there is a pause. During it, callers get the same error without a request.

    `scope` (separated by spaces), `audience` and `resources` (URIs) narrow what the token is for; empty ones are not
    sent. `clock` returns monotonic seconds.

    Attributes:
        on_fetch: Called after each token request, with its error or None.
    """

    def __init__(
        self,
        token_url: str,
        client_id: str,
        client_secret: str | SecretStr,
        *,
        method: TokenAuth = "post",
        scope: str = "",
        audience: str = "",
        resources: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._token_url, self._client_id = token_url, client_id
        self._secret = SecretStr(client_secret) if isinstance(client_secret, str) else client_secret
        self._method = method
        narrowed = {"scope": scope, "audience": audience, "resource": resources}
        self._narrowed = {name: value for name, value in narrowed.items() if value}
        self._token: Token | None = None
        self._clock = clock
        self.on_fetch: Callable[[ApiError | None], None] = lambda _: None
        #: The request under way, for all callers that wait for it.
        self._fetching: asyncio.Task[Token | ApiError] | None = None
        #: The last failure, and until when callers get it.
        self._failure: ApiError | None = None
        self._paused_until, self._waits = 0.0, Waits(PAUSES)
        #: The last fresh token that the platform refused, and until when it is not renewed.
        self._refused, self._refused_until = Token("", renew_at=0.0), 0.0

    @classmethod
    def from_settings(cls, settings: "PlatformSettings") -> Self:
        """Take the credentials from the settings."""
        return cls(
            settings.token_url,
            settings.client_id,
            settings.client_secret,
            method=settings.token_auth,
            scope=settings.scope or "",
            audience=settings.audience or "",
            resources=settings.resource,
        )

    async def token(self, transport: Transport) -> Token:
        """Return the current token, or fetch one over `transport`.

        Raises:
            ApiError: The token endpoint gave none. `retry_after` says when it is asked again.
        """
        if self._token is not None and self._clock() < self._token.renew_at:
            return self._token
        if self._fetching is None or self._fetching.done():
            if self._failure is not None and (pause := self._paused_until - self._clock()) > 0:
                failure = copy(self._failure)
                failure.retry_after = pause
                raise failure
            # A task of its own: a caller may be cancelled, and the others still want the token.
            self._fetching = asyncio.create_task(self._fetch(transport))
        outcome = await asyncio.shield(self._fetching)
        if isinstance(outcome, ApiError):
            raise copy(outcome)
        return outcome

    async def keep(self, transport: Transport) -> None:
        """Have a token at hand until cancelled: an idle process, too, finds out if its credentials are refused."""
        while True:
            with suppress(ApiError):  # `on_fetch` has it.
                await self.token(transport)
            await asyncio.sleep(KEEP_SECONDS)

    def invalidate(self, token: Token) -> bool:
        """Forget this token, which the platform has refused; a newer one stays. Return False if it was just fresh."""
        if token.value == self._refused.value and self._clock() < self._refused_until:
            return False
        if self._token == token:
            self._token = None
        return True

    def refused_when_fresh(self, token: Token) -> None:
        """Remember that the platform refused this token right after it was granted."""
        self._refused, self._refused_until = token, self._clock() + RENEWAL_PAUSE

    async def aclose(self) -> None:
        """Cancel a request that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    async def _fetch(self, transport: Transport) -> Token | ApiError:
        """Fetch a token. An error is returned, since it is for all callers that wait."""
        asked_at = self._clock()
        response = None
        try:
            response = await transport.send(self.request())
            token = granted(response, asked_at)
        except (ApiError, Unanswered, Unsendable, BodyRefused) as failure:
            error = failure if isinstance(failure, ApiError) else error_of("token", failure)
            if response is not None and isinstance(error, InvalidResponse):
                response.hang_up()  # The answer may have been for another request.
            error.retry_after = min(max(error.retry_after or 0.0, self._waits.next()), PAUSES.longest)
            self._failure, self._paused_until = error, self._clock() + error.retry_after
            self.on_fetch(error)
            return error
        self._token, self._failure = token, None
        self._waits.reset()
        self.on_fetch(None)
        return token

    def request(self) -> Request:
        """Return the token request. It may be repeated: a second token does no harm.

        Raises:
            Unsendable: The URL or a value cannot be sent.
        """
        form: dict[str, Any] = {"grant_type": "client_credentials"}
        headers = {**HEADERS, "Content-Type": "application/x-www-form-urlencoded"}
        secret = self._secret.get_secret_value()
        try:
            if self._method == "post":
                form |= {"client_id": self._client_id, "client_secret": secret}
            else:
                # Encoded before they are joined: a colon in the id would end it early. A space becomes `%20`, which
                # servers that only percent-decode read as well as `+`.
                pair = f"{quote(self._client_id, safe='')}:{quote(secret, safe='')}"
                headers["Authorization"] = f"Basic {b64encode(pair.encode('ascii')).decode('ascii')}"
            body = urlencode(form | self._narrowed, doseq=True).encode("ascii")
        except ValueError as error:
            raise Unsendable(type(error).__name__) from error
        return Request("POST", self._token_url, headers, body, repeatable=True)


class Grant(ResponseModel):
    """The token endpoint's answer. Specification, Authentication, 3.

    Servers differ in the type of `expires_in`, and some leave out `token_type`.
    """

    access_token: Annotated[str, Field(alias="access_token", pattern=r"^[\x21-\x7e]{1,16384}$")]
    expires_in: Annotated[float | None, Field(alias="expires_in", ge=0)] = None
    token_type: Annotated[str | None, Field(alias="token_type", pattern="^(?i:bearer)$")] = None


_GRANT: Final = TypeAdapter(Grant)


def granted(response: Response, asked_at: float) -> Token:
    """Read the token endpoint's answer; `asked_at` is the time of the request in monotonic seconds.

    Raises:
        ApiError: The answer is not a token.
    """
    if response.is_success:
        grant = parse("token", _GRANT, response)
        lifetime = min(DEFAULT_LIFETIME if grant.expires_in is None else grant.expires_in, MAX_LIFETIME)
        return Token(grant.access_token, renew_at=asked_at + max(lifetime - RENEW_EARLY, lifetime / 2))
    raise token_refusal(response, datetime.now(UTC))
