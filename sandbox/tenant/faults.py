"""What can be made to go wrong, by a flag or while running."""

import asyncio
from typing import Annotated, Literal

from pydantic import Field

from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.http.wire import WHOLE, Whole, Wire

#: Largest wait that can be asked for, in milliseconds: a slip of the keyboard should not hang a client.
LONGEST_MS = 600_000
#: Largest number of times that a fault can be asked for.
MOST = 1_000_000

Milliseconds = Annotated[int, Field(ge=0, le=LONGEST_MS), WHOLE]
Times = Annotated[int, Field(ge=0, le=MOST), WHOLE]
Envelopes = Literal["documented", "swapped", "alternating"]


class Faults(Wire):
    """The faults that are on. Every default means "off"; counts marked "next" run down by themselves."""

    duplicate: Whole = Field(1, ge=1, le=100, description="Deliver each event N times under one webhook-id.")
    reorder: Times = Field(0, description="Hold N deliveries back, then send the last first.")
    delay_ms: Milliseconds = Field(0, description="Wait before the first attempt.")
    drop: Times = Field(0, description="Lose the first N attempts of each delivery on the way.")
    lose_answers: Times = Field(0, description="Lose the receiver's first N answers to each delivery, and redeliver.")
    forge: Whole = Field(0, ge=0, le=100, description="Send N forgeries beside each delivery.")
    details_lag_ms: Milliseconds = Field(0, description="Answer 404 to details until this long after the event.")
    details_stale_ms: Milliseconds = Field(0, description="Show details as they were until this long after the event.")
    read_once: bool = Field(False, description="Show the attributes of a presentation to one read only.")
    envelopes: Envelopes = Field(
        "documented", description="Swap bare bodies and `data` envelopes, always or at every other answer."
    )
    page_size: Whole = Field(
        1000, ge=1, le=MOST, description="Show N issuances or presentations of a list at once, with a link to the next."
    )
    unauthorized: Times = Field(0, description="Refuse the next N API requests with 401 and forget their tokens.")
    server_errors: Times = Field(0, description="Answer 500 to the next N API requests.")
    rate_limit: Times = Field(0, description="Answer 429 to the next N API requests.")
    requests_per_second: Times = Field(
        0, description="Answer 429 to API requests beyond this many in a second; 0 is no limit."
    )
    retry_after: Whole = Field(1, ge=0, le=3600, description="Seconds named in the Retry-After of a 429.")
    slow_ms: Milliseconds = Field(0, description="Wait before each API answer.")


class FaultSwitch:
    """The faults as they stand, changed by whoever operates the sandbox and by the counts that run down."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._second = (0, 0)
        self._swap = False

    @property
    def on(self) -> Faults:
        """The faults that are on now."""
        return self._faults

    def change(self, changes: Faults) -> None:
        """Switch the faults that are named, and leave the others as they are."""
        self._faults = self._faults.model_copy(update=changes.model_dump(exclude_unset=True))

    def clear(self) -> None:
        """Switch every fault off, those of the command line as well."""
        self._faults = Faults()

    def take(self, name: Literal["unauthorized", "server_errors", "rate_limit"]) -> bool:
        """Use up one of the counted faults; say whether there was one left."""
        left: int = getattr(self._faults, name)
        if left:
            self._faults = self._faults.model_copy(update={name: left - 1})
        return left > 0

    def swaps_envelope(self) -> bool:
        """Say whether the next answer wears the other kind of envelope."""
        self._swap = self._faults.envelopes == "swapped" or (self._faults.envelopes == "alternating" and not self._swap)
        return self._swap

    async def disturb(self, now: float) -> None:
        """Hold up or refuse one API request, before anything looks at it; `now` is in seconds since 1970.

        Raises:
            Refusal: With 500 or 429, if the request is to fail.
        """
        if self._faults.slow_ms:
            await asyncio.sleep(self._faults.slow_ms / 1000)
        if self.take("server_errors"):
            raise Refusal(500, "A fault of the sandbox: serverErrors.")
        if self.take("rate_limit") or self._exceeds_rate(int(now)):
            raise Refusal(
                429,
                "Too many requests; Retry-After says how many seconds to wait.",
                headers={"Retry-After": str(self._faults.retry_after)},
            )

    def _exceeds_rate(self, second: int) -> bool:
        limit = self._faults.requests_per_second
        current, count = self._second
        self._second = (second, count + 1 if second == current else 1)
        return 0 < limit < self._second[1]
