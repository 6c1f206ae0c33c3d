"""The trace of an event in its record: trace and span in 32 characters, where W3C's header takes 55.

The receiver writes it, with the span that has sent the event. What its sampler has not chosen has an empty text, so
that workers leave it alone as well. Replaying an event puts a mark before it, see replay.lua.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final

from credhook.store import REPLAYED

#: The text for an event that was not sampled.
NOT_CHOSEN: Final = ""

_WRITTEN: Final = re.compile(rf"({REPLAYED}?)([\w-]{{32}})", re.ASCII)
_TRACE: Final = 16


@dataclass(frozen=True, slots=True)
class Traced:
    """The span that has sent an event: its trace's id in 32 hexadecimal digits, its own in 16.

    `replayed`: whether the event has been replayed since.
    """

    trace: str
    span: str
    replayed: bool = False

    @classmethod
    def read(cls, text: str) -> "Traced | None":
        """Return what `str` has written, or None if the event was not sampled."""
        written = _WRITTEN.fullmatch(text)
        if written is None:
            return None
        ids = urlsafe_b64decode(written[2])
        return cls(ids[:_TRACE].hex(), ids[_TRACE:].hex(), bool(written[1]))

    def __str__(self) -> str:
        return REPLAYED * self.replayed + urlsafe_b64encode(bytes.fromhex(self.trace + self.span)).decode()
