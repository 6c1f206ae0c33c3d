"""OAuth 2.0 client credentials: one token, fetched once for everyone who waits for it. Specification: Authentication.

The flow is one generator for synchronous and asynchronous clients. It yields what it needs done: a request to be sent,
or another's token request to be waited for, in this process or elsewhere. The two drivers at the end of
`ClientCredentials` differ only in how they wait. Tasks, threads and event loops may share one instance.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import Future, wait
from copy import copy
from typing import Any, Final, Protocol, Self

import httpx
from pydantic import SecretStr

from credhook.worker.api.errors import ApiError, NotUnderstood
from credhook.worker.api.hanging_up import hang_up
from credhook.worker.api.hints import unanswered
from credhook.worker.api.token_request import Method, TokenRequest
from credhook.worker.api.tokens import Pause, Token, TokenCache, Tokens, granted
from credhook.worker.api.transport import FAILURE


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

#: How a token request ended: with a token, with an error for all who waited, or, None, because it was given up.
Outcome = Token | ApiError | None
Flight = Future[Outcome]

#: What the flow needs done next. It is answered with the response, or with nothing once the flight or pause has ended.
Step = httpx.Request | Flight | Pause


class ClientCredentials(httpx.Auth):
    """Authorises requests with a token of the client-credentials grant.

    Args:
        token_url: The token endpoint. Its requests go there whatever the client's base URL.
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
        self._flight: Flight | None = None
        self._lock = threading.Lock()
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

    def steps(self, request: httpx.Request) -> Generator[Step, Any, None]:
        """Authorise a request; after a 401, once more with a fresh token.

        Raises:
            ApiError: No token was to be had.
        """
        token = yield from self._token(request)
        response: httpx.Response = yield _authorised(request, token)
        if response.status_code != httpx.codes.UNAUTHORIZED or self._is_refused_when_fresh(token):
            return
        self._tokens.invalidate(token)
        token = yield from self._token(request)
        response = yield _authorised(request, token)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self._refused = token, self._clock() + _RENEWAL_PAUSE

    def _is_refused_when_fresh(self, token: Token) -> bool:
        """Whether the platform has just refused this token when it was fresh: another would not be better."""
        refused, until = self._refused
        return refused is not None and token.value == refused.value and self._clock() < until

    def _token(self, request: httpx.Request) -> Generator[Step, Any, Token]:
        """Return the current token, or fetch one, or wait for the one that is being fetched."""
        while True:
            with self._lock:
                token = self._tokens.get()
                if token is not None and self._clock() < token.renew_at:
                    return token
                awaited = self._flight
                ours = self._flight = awaited or _flight()
            if awaited is None:
                return (yield from self._fetch(ours, request))
            yield awaited
            outcome = awaited.result()
            if isinstance(outcome, Token):
                return outcome
            if outcome is not None:
                raise copy(outcome)

    def _fetch(self, flight: Flight, request: httpx.Request) -> Generator[Step, Any, Token]:
        """Fetch a token, and tell those who wait how that ended, whatever happens: they would wait for ever."""
        failed: Mapping[str, Any] = {}
        outcome: Outcome = None
        try:
            token = yield from self._tokens.turn()
            if token is None:
                # Within the time-outs of the request that needs it: a request made by hand has none.
                ask = httpx.Request(
                    "POST",
                    self._request.url,
                    data=self._request.form,
                    headers=self._request.headers,
                    extensions={"timeout": request.extensions.get("timeout", {})},
                )
                failed = ask.extensions
                asked_at = self._clock()
                response: httpx.Response = yield ask
                token = granted(response, asked_at)
                self._tokens.replace(token)
            outcome = token
        except ApiError as error:
            outcome = error
            raise
        except GeneratorExit:  # It is all that httpx tells the flow of a failure, and of a cancellation as well.
            if FAILURE in failed:
                outcome = unanswered("token", failed[FAILURE].kind, failed[FAILURE].cause)
            raise
        finally:
            with self._lock:
                self._flight = None
            flight.set_result(outcome)
            self._tokens.end_turn(outcome)
        return token

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Drive the steps for `httpx.Client`, waiting for other threads where there is something to wait for."""
        flow = self.steps(request)
        try:
            step = next(flow)
            while True:
                if isinstance(step, httpx.Request):
                    response = yield step
                    response.read()
                    try:
                        step = flow.send(response)
                    except NotUnderstood:  # It may have been for another request.
                        hang_up(response)
                        raise
                else:
                    time.sleep(step.seconds) if isinstance(step, Pause) else wait([step])
                    step = flow.send(None)
        except StopIteration:
            return
        finally:
            flow.close()

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Drive the steps for `httpx.AsyncClient`, letting other tasks run while there is something to wait for."""
        flow = self.steps(request)
        try:
            step = next(flow)
            while True:
                if isinstance(step, httpx.Request):
                    response = yield step
                    await response.aread()
                    try:
                        step = flow.send(response)
                    except NotUnderstood:  # It may have been for another request.
                        hang_up(response)
                        raise
                else:
                    await (asyncio.sleep(step.seconds) if isinstance(step, Pause) else asyncio.wrap_future(step))
                    step = flow.send(None)
        except StopIteration:
            return
        finally:
            flow.close()


def _flight() -> Flight:
    """Return a flight that is under way, so that none of those who wait can cancel it for all."""
    flight = Flight()
    flight.set_running_or_notify_cancel()
    return flight


def _authorised(request: httpx.Request, token: Token) -> httpx.Request:
    request.headers["Authorization"] = f"Bearer {token.value}"
    return request
