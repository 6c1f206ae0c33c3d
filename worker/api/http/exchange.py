"""A request, its response within bounds, and the exceptions if there is none.

Limits apply to the bytes of a body after decompression and to the number of its JSON values. A value of two bytes
becomes a model of several hundred bytes: 3 MB of `{}` took 600 MiB and blocked the event loop for five seconds. A value
takes at most 2 microseconds, measured; most take a tenth of that.
"""

import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

#: Bytes of a successful answer that are read, unless the settings say otherwise. A page of presentations is some
#: hundred kilobytes.
LONGEST_BODY: Final = 4 * 1024 * 1024

#: Values that one resource may have: 40 ms at most. A presentation of five credentials has some hundred.
MOST_VALUES: Final = 20_000

#: Values that a list of resources may have: 60 ms at most for its JSON; its models are made one by one. 28,000 users.
MOST_LISTED: Final = 200_000

#: Values from which on a list is read beside the event loop: 4 ms.
MANY: Final = 2_000


def has_more_than(most: int, body: bytes) -> bool:
    """Return True if a JSON body may have more values. Short bodies are not read, since a value takes a byte."""
    return len(body) > most and values(body) > most


def values(body: bytes) -> int:
    """Return an upper bound on the values in a JSON body. Brackets and commas inside strings count as well."""
    return 1 + len(body) - len(body.translate(None, b"{[,"))


#: Bytes of a refusal that are read. The platform's error objects take a few hundred, and its status says most.
LONGEST_REFUSAL: Final = 64 * 1024

#: Lets zlib detect gzip or zlib by the header. Servers call zlib `deflate`.
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_READABLE: Final = frozenset({"gzip", "x-gzip", "deflate"})


class BodyRefused(Exception):
    """The body is longer than a response may be, or in an encoding that was not asked for.

    Attributes:
        cause: a word for the reason.
    """

    def __init__(self, message: str, *, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


def is_success(status: int) -> bool:
    """Return True for a 2xx."""
    return 200 <= status < 300  # noqa: PLR2004  The class of statuses, in HTTP's own words.


async def read(status: int, headers: Mapping[str, str], chunks: AsyncIterator[bytes], longest: int) -> bytes:
    """Read a body of at most `longest` bytes from `chunks`, which are compressed if the headers say so.

    That of a success is read whole or not at all. Of a refusal the status matters: its body is cut short, and left out
    if it cannot be read. The headers are looked up without regard to case.

    Raises:
        BodyRefused: It is longer than that, or in an encoding that is not read here.
    """
    whole = is_success(status)
    allowed = longest if whole else min(longest, LONGEST_REFUSAL)
    encoding = headers.get("Content-Encoding", "identity").strip().lower() or "identity"
    if encoding != "identity" and encoding not in _READABLE:
        if whole:
            raise BodyRefused("the answer is in an encoding that was not asked for", cause="encoding")
        return b""
    decoder = zlib.decompressobj(_GZIP_OR_ZLIB) if encoding in _READABLE else None
    parts, size = [], 0
    async for chunk in chunks:
        try:
            # No more is made than is needed to see that it is too much.
            part = decoder.decompress(chunk, allowed - size + 1) if decoder else chunk
        except zlib.error:
            break
        parts.append(part)
        size += len(part)
        if size > allowed:
            if whole:
                raise BodyRefused(f"the answer is longer than {longest} bytes", cause="too_large")
            break
    if whole and decoder and (not decoder.eof or decoder.unused_data):
        raise BodyRefused("the answer is not compressed as it says", cause="encoding")
    return b"".join(parts)[:allowed]


#: What every request says. A compressed answer is read, but not asked for: it costs more than it saves where most are a
#: few kilobytes.
HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "credhook"}


# Not frozen: a frozen object takes three times as long to make, and each fetch makes one of each.


@dataclass(slots=True)
class Request:
    """An HTTP request.

    Attributes:
        method: GET, POST, PATCH or DELETE.
        url: As it goes over the wire, percent-encoded.
        headers: Not shown, since one of them is the token.
        body: Not shown, since it can hold personal data and secrets.
        repeatable: Whether the request may be sent again when its connection ended before it was answered.
        template: Its path, with names where ids stand; empty if it has none.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)
    repeatable: bool = False
    template: str = ""


@dataclass(slots=True)
class Response:
    """What came back over the connection, whole and decompressed.

    Headers are looked up without regard to case; the body is not shown.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    #: Give up the connection it came over: its later answers cannot be trusted either.
    hang_up: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    @property
    def is_success(self) -> bool:
        """Return True for a 2xx."""
        return is_success(self.status)


class Unanswered(Exception):
    """There is no response. Its message quotes no URL and no header.

    Attributes:
        kind: Class of the library's error.
        cause: A word, or nothing if none fits:

            name_resolution   the host's name is not known
            refused           nothing listens there
            unreachable       there is no route
            reset             the connection was torn down
            closed            the connection ended before the answer was whole
            certificate       its certificate is not trusted, or is for another name
            tls               the TLS handshake failed
            timeout           the answer was not in time
            proxy             the proxy refused, or cannot be used
            protocol          the answer is not HTTP
    """

    def __init__(self, kind: str, cause: str = "") -> None:
        self.kind, self.cause = kind, cause
        super().__init__(f"{kind}, {cause}")


class Unsendable(Exception):
    """The request cannot be sent; the message is the class of the library's error."""


class Transport(Protocol):
    """Sends requests, many at a time."""

    async def send(self, request: Request) -> Response:
        """Send the request and read its response. That of a refusal may lack its body, if not all of it came.

        Raises:
            Unanswered: There is no response, or not all of a success, in time.
            Unsendable: It cannot be sent at all.
            BodyRefused: The response is longer than it may be.
        """

    async def aclose(self) -> None:
        """Close the connections."""
