"""What stands before each request to the API, and hears what it came to.

Whoever knows of the platform's condition hands a `Gate` to the senders; they know nothing of how it decides. Token
requests go to the identity provider and pass beside it.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Protocol, cast

import httpx

from credhook.worker.api.answers import seconds_to_wait
from credhook.worker.api.causes import cause_of

#: Where a request to the API keeps its operation's name, among its `extensions`; other requests have none.
OPERATION: Final = "credhook.operation"

#: Where it keeps its passage after a 401, until it is known whether a fresh token changes that.
_OPEN: Final = "credhook.passage"


class Passage(Protocol):
    """One request's way through the gate. Only the first word about it counts. May be called from any thread."""

    def answered(self, status: int, retry_after: float | None) -> None:
        """The platform answered; `retry_after` in seconds, if it said so.

        A 401 is told only where it was the last word: to a fresh token.
        """

    def outdated(self) -> bool:
        """The platform refused the token, and the request comes again with a fresh one.

        Returns:
            Whether it then goes on with this passage; otherwise it enters anew.
        """

    def unanswered(self, cause: str) -> None:
        """No answer came, or not all of it; `cause` is a word of `causes`, or else the class of the error."""

    def abandoned(self) -> None:
        """It was cancelled or never sent, which says nothing of the platform."""


class Gate(Protocol):
    """Lets requests pass or refuses them."""

    async def enter(self, operation: str) -> Passage:
        """Wait until the request may be sent.

        Raises:
            TryLater: it should not be sent now.
        """

    def enter_in_thread(self, operation: str) -> Passage:
        """The same for a thread, which is held up."""


class Gated(httpx.BaseTransport):
    """A synchronous transport behind a gate."""

    def __init__(self, inner: httpx.BaseTransport, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Pass the request on once the gate lets it."""
        operation = request.extensions.get(OPERATION)
        if operation is None:
            return self._inner.handle_request(request)
        passage = _still_open(request) or self._gate.enter_in_thread(operation)
        with _watched(passage):
            response = self._inner.handle_request(request)
        if not _refused(request, response, passage):
            response.stream = _Body(response, passage)
        return response

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


class AsyncGated(httpx.AsyncBaseTransport):
    """An asynchronous transport behind a gate."""

    def __init__(self, inner: httpx.AsyncBaseTransport, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass the request on once the gate lets it."""
        operation = request.extensions.get(OPERATION)
        if operation is None:
            return await self._inner.handle_async_request(request)
        passage = _still_open(request) or await self._gate.enter(operation)
        with _watched(passage):
            response = await self._inner.handle_async_request(request)
        if not _refused(request, response, passage):
            response.stream = _AsyncBody(response, passage)
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class _Body(httpx.SyncByteStream):
    """A body that tells the passage once it is complete: a platform that stalls in the middle has not answered."""

    def __init__(self, response: httpx.Response, passage: Passage) -> None:
        self._stream = cast("httpx.SyncByteStream", response.stream)
        self._status = response.status_code
        self._passage = passage

    def __iter__(self) -> Iterator[bytes]:
        with _watched(self._passage):
            yield from self._stream
        self._passage.answered(self._status, None)

    def close(self) -> None:
        self._stream.close()
        self._passage.abandoned()


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(self, response: httpx.Response, passage: Passage) -> None:
        self._stream = cast("httpx.AsyncByteStream", response.stream)
        self._status = response.status_code
        self._passage = passage

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _watched(self._passage):
            async for chunk in self._stream:
                yield chunk
        self._passage.answered(self._status, None)

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._passage.abandoned()


@contextmanager
def _watched(passage: Passage) -> Iterator[None]:
    """Tell the passage of what goes wrong here."""
    try:
        yield
    except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.PoolTimeout):
        passage.abandoned()  # Our own doing: it was never sent.
        raise
    except (httpx.TransportError, OSError) as error:
        passage.unanswered(cause_of(error) or type(error).__name__)
        raise
    except httpx.DecodingError:
        passage.answered(httpx.codes.OK, None)  # It is well enough to answer, if not in a form that we read.
        raise
    except BaseException:
        passage.abandoned()
        raise


def _refused(request: httpx.Request, response: httpx.Response, passage: Passage) -> bool:
    """Whether it is no success. Then its status says everything, and the passage is told at once.

    All but a 401: that of a token which has just become stale says nothing of the platform, and the same request
    follows with a fresh one, by the same passage.
    """
    if response.is_success:
        return False
    wait = seconds_to_wait(response.headers.get("retry-after"), datetime.now(UTC))
    if response.status_code == httpx.codes.UNAUTHORIZED:
        request.extensions[_OPEN] = passage, wait
    else:
        passage.answered(response.status_code, wait)
    return True


def _still_open(request: httpx.Request) -> Passage | None:
    """The passage of this request's first try, which was answered with 401, if it goes on with that one."""
    passage, _ = request.extensions.pop(_OPEN, (None, None))
    return passage if passage is not None and passage.outdated() else None


def conclude(request: httpx.Request, response: httpx.Response | None = None) -> None:
    """Say of a request that will not be sent again that a 401 was the last word about it.

    Args:
        request: The one that was authorised; nothing is said if it was answered otherwise.
        response: What it was answered with in the end; None if it never was, for want of a token.
    """
    passage, wait = request.extensions.pop(_OPEN, (None, None))
    if passage is None:
        return
    if response is None:
        passage.abandoned()
    else:
        passage.answered(response.status_code, wait)
