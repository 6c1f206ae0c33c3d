"""Fetch an access token by the client-credentials grant, and keep it for all callers of one event loop.

Each process has a token of its own. No credential is stored in Redis. The platform's specification, Authentication,
gives the grant; RFC 6749 (2.3.1 and 4.4) and RFC 8707 give the details.
"""

import asyncio
import functools
import math
import re
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from urllib.parse import quote, urlencode

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, TypeAdapter

from credhook.backoff import Backoff, Waits
from credhook.worker.api.errors import ApiError, InvalidResponse, error_of, oauth_code, token_refusal
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
#: Least seconds between two tokens, also if they live shorter.
RENEWAL_SECONDS: Final = 10.0
#: Seconds between two renewals that come earlier: the platform may have forgotten a token that was just granted.
EARLY_RENEWAL_SECONDS: Final = 60.0
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
        #: When the last token was asked for, and until when no token is renewed earlier than usual.
        self._asked_at, self._no_early_until = -math.inf, -math.inf

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
        if (
            self._fetching is None
            or self._fetching.done()
            or self._fetching.get_loop() is not asyncio.get_running_loop()
        ):
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
        """Forget this token, which the platform has refused; a newer one stays. Return False if it is too new for that.

        Then another token would be refused as well, or it lives for a shorter time than we may ask.
        """
        if self._token == token:
            now = self._clock()
            if now - self._asked_at < RENEWAL_SECONDS:
                if now < self._no_early_until:
                    return False
                self._no_early_until = now + EARLY_RENEWAL_SECONDS
            self._token = None
        return True

    def refused_when_fresh(self) -> None:
        """Remember that the platform refused a token right after it was granted."""
        self._no_early_until = max(self._no_early_until, self._clock() + RENEWAL_SECONDS)

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
        self._asked_at = asked_at
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


#: Types of tokens that are not sent as `Bearer`. All other words for a bearer's token are accepted.
_OTHER_TYPES: Final = frozenset({"mac", "dpop", "pop", "hawk", "hoba"})
#: Seconds, perhaps with their unit.
_SECONDS: Final = re.compile(r"\s*(\d{1,12}(\.\d*)?)\s*(s|sec|seconds)?\s*", re.IGNORECASE)


def _stripped(value: object) -> object:
    return value.strip() if isinstance(value, str) else value


def _lifetime(value: object) -> float | None:
    """Return a lifetime in seconds, or None if the value says nothing that can be true of a token just granted."""
    if isinstance(value, str) and (match := _SECONDS.fullmatch(value)):
        value = float(match[1])
    # Servers write 0 or -1 for a token that does not expire. NaN fails the comparison.
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _is_bearer(value: object) -> object:
    """Accept a type of token unless it is known to be sent in another way."""
    if isinstance(value, str) and value.strip().casefold() in _OTHER_TYPES:
        raise ValueError("should be Bearer")
    return value


class Grant(ResponseModel):
    """The token endpoint's answer. Specification, Authentication, 3.

    Servers differ in `expires_in` and `token_type`, which do not decide whether a token can be used.
    """

    access_token: Annotated[
        str, Field(alias="access_token", pattern=r"^[\x21-\x7e]{1,16384}$"), BeforeValidator(_stripped)
    ]
    expires_in: Annotated[float | None, Field(alias="expires_in"), BeforeValidator(_lifetime)] = None
    token_type: Annotated[Any, Field(alias="token_type"), AfterValidator(_is_bearer)] = None


_GRANT: Final = TypeAdapter(Grant)


def granted(response: Response, asked_at: float) -> Token:
    """Read the token endpoint's answer; `asked_at` is the time of the request in monotonic seconds.

    Raises:
        ApiError: The answer is not a token.
    """
    # Some servers refuse a client with 200.
    if response.is_success and (b"access_token" in response.body or not oauth_code(response.body)):
        grant = parse("token", _GRANT, response)
        lifetime = min(DEFAULT_LIFETIME if grant.expires_in is None else grant.expires_in, MAX_LIFETIME)
        used = max(lifetime - RENEW_EARLY, lifetime / 2, RENEWAL_SECONDS)
        return Token(grant.access_token, renew_at=asked_at + used)
    raise token_refusal(response, datetime.now(UTC))
