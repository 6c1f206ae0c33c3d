"""Bounds around an httpx transport: how long one request may take, and how long its answer may be.

httpx bounds each read from the socket, not their sum, and a body not at all. The bounds stand here, below
authentication, so that the token endpoint's answers are held to them as well.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, NamedTuple, cast

import httpx

from credhook.worker.api.causes import cause_of
from credhook.worker.api.hanging_up import hang_up, has_surplus
from credhook.worker.api.sizes import LONGEST_BODY

#: Bytes of any other answer that are read. Its error objects take a few hundred, and its status says most.
LONGEST_REFUSAL: Final = 64 * 1024

#: Where a failed request keeps its `Failure`, among its `extensions`. httpx closes an authentication flow without
#: saying why, and the flow must tell a failure, which concerns everyone, from a task that was cancelled.
FAILURE: Final = "credhook.failure"


class Failure(NamedTuple):
    """Why a request had no answer.

    Attributes:
        kind: Class of the error.
        cause: A word of `causes`, or nothing.
    """

    kind: str
    cause: str


_TOO_SLOW = "the answer was not complete in time"


class BodyRefused(httpx.DecodingError):
    """The body is longer than an answer may be, or compressed although that was not asked for.

    Attributes:
        cause: Which of the two, in a word.
    """

    def __init__(self, message: str, *, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class Bounded(httpx.BaseTransport):
    """A synchronous transport within bounds. The time is looked at whenever something has arrived."""

    def __init__(self, inner: httpx.BaseTransport, seconds: float, *, longest: int = LONGEST_BODY) -> None:
        self._inner = inner
        self._seconds = seconds
        self._longest = longest

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Pass the request on, and put its answer within bounds."""
        deadline = time.monotonic() + self._seconds
        with _failure_kept(request):
            response = self._inner.handle_request(request)
            try:
                return _answer(response, _Body(request, response, deadline, self._longest))
            except BodyRefused:
                response.close()
                raise

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


class AsyncBounded(httpx.AsyncBaseTransport):
    """An asynchronous transport within bounds. A request that takes too long is cancelled."""

    def __init__(self, inner: httpx.AsyncBaseTransport, seconds: float, *, longest: int = LONGEST_BODY) -> None:
        self._inner = inner
        self._seconds = seconds
        self._longest = longest

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass the request on, and put its answer within bounds."""
        deadline = asyncio.get_running_loop().time() + self._seconds
        with _failure_kept(request):
            async with _until(deadline):
                response = await self._inner.handle_async_request(request)
            try:
                return _answer(response, _AsyncBody(request, response, deadline, self._longest))
            except BodyRefused:
                await response.aclose()
                raise

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class _Allowance:
    """How much of a body is still read.

    The body of a success is read whole or not at all. Of a refusal the status matters, so its body is cut short, and
    left out if it is compressed.
    """

    def __init__(self, response: httpx.Response, longest: int) -> None:
        compressed = response.headers.get("content-encoding", "identity").strip().lower() != "identity"
        self._whole = response.is_success
        if compressed and self._whole:
            raise BodyRefused("the answer is compressed, which was not asked for", cause="compressed")
        self._longest = longest if self._whole else min(longest, LONGEST_REFUSAL)
        self._left = 0 if compressed else self._longest

    @property
    def spent(self) -> bool:
        return self._left == 0 and not self._whole

    def take(self, chunk: bytes) -> bytes:
        if self._whole and len(chunk) > self._left:
            raise BodyRefused(
                f"the answer is longer than {self._longest} bytes, see CREDHOOK_MAX_ANSWER", cause="too_large"
            )
        taken = chunk[: self._left]
        self._left -= len(taken)
        return taken


class _Body(httpx.SyncByteStream):
    def __init__(self, request: httpx.Request, response: httpx.Response, deadline: float, longest: int) -> None:
        self._request = request
        self._response = response
        self._stream = cast("httpx.SyncByteStream", response.stream)
        self._deadline = deadline
        self._allowance = _Allowance(response, longest)

    def __iter__(self) -> Iterator[bytes]:
        with _failure_kept(self._request):
            for chunk in self._stream:
                if time.monotonic() > self._deadline:
                    raise httpx.ReadTimeout(_TOO_SLOW)
                if self._allowance.spent:
                    break
                yield self._allowance.take(chunk)

    def close(self) -> None:
        if has_surplus(self._stream):
            hang_up(self._response)
        self._stream.close()


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(self, request: httpx.Request, response: httpx.Response, deadline: float, longest: int) -> None:
        self._request = request
        self._response = response
        self._stream = cast("httpx.AsyncByteStream", response.stream)
        self._deadline = deadline
        self._allowance = _Allowance(response, longest)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._stream)
        with _failure_kept(self._request):
            while not self._allowance.spent:
                async with _until(self._deadline):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                yield self._allowance.take(chunk)

    async def aclose(self) -> None:
        if has_surplus(self._stream):
            hang_up(self._response)
        await self._stream.aclose()


def _answer(response: httpx.Response, body: _Body | _AsyncBody) -> httpx.Response:
    """Return the response with a bounded body. It is not decoded: only a refusal can be compressed, and is empty."""
    headers = [(name, value) for name, value in response.headers.raw if name.lower() != b"content-encoding"]
    return httpx.Response(response.status_code, headers=headers, stream=body, extensions=response.extensions)


@contextmanager
def _failure_kept(request: httpx.Request) -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, OSError) as failure:
        request.extensions[FAILURE] = Failure(type(failure).__name__, cause_of(failure))
        if isinstance(failure, httpx.RequestError):
            failure.request = request
        raise


@asynccontextmanager
async def _until(deadline: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise httpx.ReadTimeout(_TOO_SLOW) from None
