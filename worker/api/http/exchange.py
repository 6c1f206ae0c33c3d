"""A request and its response, and what is raised where there is none."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from credhook.worker.api.bounds import is_success
from credhook.worker.api.http.causes import cause_of

#: What every request says. A compressed answer is read, but not asked for: it costs more than it saves where most are a
#: few kilobytes.
HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "credhook"}


# Not frozen, for it takes three times as long to make what is, and each fetch makes one of each.


@dataclass(slots=True)
class Request:
    """What is sent.

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
    connection: asyncio.WriteTransport | None = field(default=None, repr=False)

    @property
    def is_success(self) -> bool:
        """Whether the status is a 2xx."""
        return is_success(self.status)

    def hang_up(self) -> None:
        """Close the connection that it came over: nobody can tell whose answers come over it any more.

        Whoever else is using it by now gets an error, rather than somebody else's answer.
        """
        if self.connection is not None:
            self.connection.abort()


class Unanswered(Exception):
    """There is no response.

    Attributes:
        kind: Class of what was raised.
        cause: A word of `causes`, or nothing.
    """

    def __init__(self, error: BaseException, cause: str = "") -> None:
        self.kind = type(error).__name__
        self.cause = cause_of(error) or cause
        super().__init__(f"{self.kind}, {self.cause}")


class Unsendable(Exception):
    """The request is none that could be sent; the message is the class of what was raised."""


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
