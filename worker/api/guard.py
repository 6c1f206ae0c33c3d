"""What stands before each request to the API, and hears what it came to.

Whoever knows how the platform is hands a `Guard` to the senders; they know nothing of how it decides. Token requests go
to the identity provider and pass beside it.
"""

from typing import Protocol


class Permit(Protocol):
    """Leave to make one request. Only the first word about it counts."""

    def answered(self, status: int, retry_after: float | None) -> None:
        """The platform answered; `retry_after` in seconds, if it said so.

        A 401 is reported only if the token was fresh.
        """

    def unanswered(self, cause: str) -> None:
        """No response came, or not all of it; `cause` is a word of `causes`, or else the class of the error."""

    def cancelled(self) -> None:
        """The request was cancelled or never sent, which says nothing of the platform."""


class Guard(Protocol):
    """Lets requests pass or refuses them."""

    async def acquire(self, operation: str) -> Permit:
        """Wait until the request may be sent.

        Raises:
            Unavailable: it should not be sent now.
        """


class Unguarded:
    """Lets every request pass, and does not listen."""

    async def acquire(self, operation: str) -> "Unguarded":  # noqa: ARG002  The protocol's.
        """Return at once."""
        return self

    def answered(self, status: int, retry_after: float | None) -> None:
        """Do nothing."""

    def unanswered(self, cause: str) -> None:
        """Do nothing."""

    def cancelled(self) -> None:
        """Do nothing."""
