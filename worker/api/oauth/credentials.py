"""OAuth 2.0 client credentials: one token, fetched once for all who wait for it. Specification: Authentication."""

import asyncio
import time
from collections.abc import Callable
from copy import copy
from typing import Final, Protocol, Self

from pydantic import SecretStr

from credhook.worker.api.calls.errors import ApiError, InvalidResponse
from credhook.worker.api.calls.failures import error_of
from credhook.worker.api.http.body_limit import BodyRefused
from credhook.worker.api.http.exchange import Transport, Unanswered, Unsendable
from credhook.worker.api.oauth.method import Method
from credhook.worker.api.oauth.token_request import TokenRequest
from credhook.worker.api.oauth.tokens import Token, TokenCache, Tokens, granted


class Client(Protocol):
    """What the credentials need to know, as the worker's settings have it."""

    @property
    def token_url(self) -> str:
        """The token endpoint, whole."""

    @property
    def client_id(self) -> str:
        """OAuth client id."""

    @property
    def client_secret(self) -> SecretStr:
        """OAuth client secret."""

    @property
    def token_auth(self) -> Method:
        """How id and secret are sent."""

    @property
    def scope(self) -> str | None:
        """Scopes, separated by spaces."""

    @property
    def audience(self) -> str | None:
        """Whom the token is for."""

    @property
    def resource(self) -> tuple[str, ...]:
        """URIs that the token is for."""


#: Seconds for which a token that was refused when it was fresh is not renewed: the platform does not like this client,
#: and each of its answers would be followed by a token request and another call.
_RENEWAL_PAUSE: Final = 10.0


class ClientCredentials:
    """Has a token of the client-credentials grant for all senders of an event loop.

    Args:
        token_url: The token endpoint. Its requests go there whatever the API's URL.
        client_id: OAuth client id.
        client_secret: OAuth client secret. Not shown.
        method: How both are sent.
        scope: Scopes, separated by spaces; empty for what the server gives without being asked.
        audience: Whom the token is for; empty to leave it out.
        resources: URIs that the token is for; empty to leave them out.
        tokens: Where the token is kept; by default in this object's memory.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        token_url: str,
        client_id: str,
        client_secret: str | SecretStr,
        *,
        method: Method = "post",
        scope: str = "",
        audience: str = "",
        resources: tuple[str, ...] = (),
        tokens: Tokens | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        secret = SecretStr(client_secret) if isinstance(client_secret, str) else client_secret
        self._request = TokenRequest(token_url, client_id, secret, method, scope, audience, resources)
        self._tokens = TokenCache() if tokens is None else tokens
        self._clock = clock
        #: The fetch that is under way, for all who wait for it.
        self._fetching: asyncio.Task[Token | ApiError] | None = None
        #: The last token that was refused although it was fresh, and until when no other is fetched for it.
        self._refused: tuple[Token | None, float] = None, 0.0

    @classmethod
    def from_settings(cls, settings: Client, *, tokens: Tokens | None = None) -> Self:
        """Take the credentials from the worker's settings."""
        return cls(
            settings.token_url,
            settings.client_id,
            settings.client_secret,
            method=settings.token_auth,
            scope=settings.scope or "",
            audience=settings.audience or "",
            resources=settings.resource,
            tokens=tokens,
        )

    def __repr__(self) -> str:
        return f"ClientCredentials(client_id={self._request.client_id!r})"

    async def token(self, transport: Transport) -> Token:
        """The current token, or a new one.

        Args:
            transport: What carries the token request, if there has to be one.

        Raises:
            ApiError: No token was to be had.
        """
        token = self._tokens.get()
        if token is not None and self._clock() < token.renew_at:
            return token
        if self._fetching is None:
            # A task of its own: whoever waits may be cancelled, and the others still want the token.
            self._fetching = asyncio.create_task(self._fetch(transport))
            self._fetching.add_done_callback(self._fetched)
        outcome = await asyncio.shield(self._fetching)
        if isinstance(outcome, ApiError):
            raise copy(outcome)
        return outcome

    def is_refused_when_fresh(self, token: Token) -> bool:
        """Whether the platform has just refused this token when it was fresh: another would not be better."""
        refused, until = self._refused
        return refused is not None and token.value == refused.value and self._clock() < until

    async def invalidate(self, token: Token) -> None:
        """Forget a token that the platform has refused."""
        await self._tokens.invalidate(token)

    def refused_when_fresh(self, token: Token) -> None:
        """Remember that the platform has refused a token that it had not seen before."""
        self._refused = token, self._clock() + _RENEWAL_PAUSE

    async def aclose(self) -> None:
        """Give up a fetch that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    async def _fetch(self, transport: Transport) -> Token | ApiError:
        """Fetch a token, if nobody else has; a refusal is told to all who wait, so it is a result here."""
        outcome: Token | ApiError | None = None
        try:
            outcome = await self._tokens.acquire()
            if outcome is None:
                outcome = await self._grant(transport)
                await self._tokens.replace(outcome)
        except ApiError as error:
            outcome = error
        finally:
            await self._release(outcome)
        return outcome

    async def _release(self, outcome: Token | ApiError | None) -> None:
        """Release, also if the fetch is given up meanwhile: the fleet would wait for a lock that stays."""
        releasing = asyncio.ensure_future(self._tokens.release(outcome))
        try:
            await asyncio.shield(releasing)
        except asyncio.CancelledError:
            await releasing
            raise

    async def _grant(self, transport: Transport) -> Token:
        asked_at = self._clock()
        try:
            response = await transport.send(self._request.to_send())
        except (Unanswered, Unsendable, BodyRefused) as failure:
            error = error_of("token", failure)
        else:
            try:
                return granted(response, asked_at)
            except InvalidResponse:  # It may have been for another request.
                response.hang_up()
                raise
        raise error

    def _fetched(self, _: "asyncio.Task[Token | ApiError]") -> None:
        self._fetching = None
