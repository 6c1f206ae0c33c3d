"""A request, its response, and the exceptions if there is none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from credhook.worker.api.bounds import is_success

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
