"""What the specification puts results into."""

from typing import Generic, TypeVar

from typing_extensions import TypedDict

R = TypeVar("R")


class Envelope(TypedDict, Generic[R]):
    """A result, as it comes. What may stand beside it is not read."""

    data: R
