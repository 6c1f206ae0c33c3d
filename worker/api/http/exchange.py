"""A request, its response within bounds, and the exceptions if there is none. Limits apply after decompression."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from errno import ECONNABORTED, ECONNREFUSED, ECONNRESET, EPIPE, ETIMEDOUT
from typing import Final, Protocol

#: Maximum bytes of a successful response. A page of presentations has some hundred kilobytes.
LONGEST_BODY: Final = 4 * 1024 * 1024
#: Bytes of a refusal that are read. The platform's error objects take a few hundred, and its status says most.
LONGEST_REFUSAL: Final = 64 * 1024

#: Headers of every request. Compression costs more than it saves for responses of a few kilobytes.
HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "credhook"}

#: The word of `Unanswered` for an error of the operating system; for others it is `unreachable`.
BY_ERRNO: Final = {
    ECONNREFUSED: "refused",
    ETIMEDOUT: "timeout",
    ECONNRESET: "reset",
    ECONNABORTED: "reset",
    EPIPE: "reset",
}
#: The word for a verdict of OpenSSL, a number of `X509_V_ERR_…`. 1 stands where libcurl found another name. Without a
#: word here, the certificate is unfit.
BY_VERDICT: Final = {
    **dict.fromkeys((0, 2, 19, 20, 21, 27), "certificate"),
    **dict.fromkeys((1, 62, 64), "certificate_name"),
    **dict.fromkeys((10, 12), "certificate_expired"),
    **dict.fromkeys((9, 11), "certificate_early"),
    **dict.fromkeys((24, 25, 32, 79), "certificate_authority"),
    18: "certificate_self_signed",
}


def is_of_tls(word: str) -> bool:
    """Return True for a word about TLS: a proxy passes such errors through."""
    return word == "tls" or word.startswith("certificate")


# Not frozen: a frozen object takes three times as long to make, and each fetch makes one of each.


@dataclass(slots=True)
class Request:
    """An HTTP request.

    Attributes:
        method: GET, POST, PUT, PATCH or DELETE.
        url: as it goes over the wire, percent-encoded.
        headers: not shown, since one of them is the token.
        body: not shown, since it can hold personal data and secrets.
        repeatable: True if the request may be sent again when its connection ended before it was answered.
        template: its path, with names where ids stand; empty if it has none.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)
    repeatable: bool = False
    template: str = ""


@dataclass(slots=True)
class Response:
    """A response, decompressed. Header names are in lower case, and the body is not shown."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    #: Close the connection: its later responses cannot be trusted either.
    hang_up: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    @property
    def is_success(self) -> bool:
        """Return True for a 2xx."""
        return 200 <= self.status < 300  # noqa: PLR2004  HTTP's own class of statuses.

    @property
    def limit(self) -> int:
        """Return the maximum bytes of the body. The body of a refusal is cut: its status says most."""
        return LONGEST_BODY if self.is_success else LONGEST_REFUSAL

    def with_body(self, body: bytes) -> "Response":
        """Set the body. At most one byte more than `limit` was read.

        Raises:
            BodyRefused: it is longer than a response may be.
        """
        if not self.is_success:
            body = body[:LONGEST_REFUSAL]
        elif len(body) > LONGEST_BODY:
            raise BodyRefused(f"the answer is longer than {LONGEST_BODY} bytes")
        self.body = body
        return self


class BodyRefused(Exception):
    """The body is longer than a response may be."""


class Unanswered(Exception):
    """There is no response. Its message quotes no URL and no header.

    Attributes:
        kind: the library's name for the error.
        reason: the library's words about a certificate, if any.
        cause: a word, or nothing if none fits:

            name_resolution          the host's name is not known
            refused                  nothing listens there
            unreachable              there is no route
            socket                   the system gives no socket
            reset                    the connection was torn down
            closed                   the connection ended before the answer was whole
            certificate              no authority that we trust has signed its certificate
            certificate_self_signed  its certificate is signed by itself
            certificate_name         its certificate is for another name
            certificate_expired      its certificate, or its authority's, is no longer valid
            certificate_early        its certificate, or its authority's, is not valid yet
            certificate_authority    its authority's certificate may not sign others
            certificate_unfit        its certificate is revoked, too weak, or not for servers or for this name
            tls                      the TLS handshake failed
            timeout                  the answer was not in time
            proxy                    the proxy refused, or cannot be used
            protocol                 the answer is not HTTP, or takes too many headers
    """

    def __init__(self, kind: str, cause: str = "", reason: str = "") -> None:
        self.kind, self.cause, self.reason = kind, cause, reason
        super().__init__(", ".join(filter(None, (kind, cause, reason))))


class Unsendable(Exception):
    """The request cannot be sent; the message is the class of the library's error."""


class Transport(Protocol):
    """Sends requests, many at a time."""

    async def send(self, request: Request) -> Response:
        """Send the request and read its response.

        Raises:
            Unanswered: there is no whole response in time.
            Unsendable: it cannot be sent at all.
            BodyRefused: the response is longer than it may be.
        """

    async def aclose(self) -> None:
        """Close the connections."""
