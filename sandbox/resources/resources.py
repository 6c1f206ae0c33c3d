"""What issuances and presentations have in common: being read too early."""

from typing import TypeVar

from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.tenant.faults import Faults

T = TypeVar("T")


def as_seen(shown: T, before: T | None, age_ms: float, faults: Faults) -> T:
    """Return a resource as a read sees it, this long after its latest event.

    Args:
        shown: The resource as it is.
        before: The resource as it was before the event; None if the event began it.
        age_ms: Milliseconds since the event.
        faults: What is on.

    Raises:
        Refusal: With 404 while the resource lags behind its event.
    """
    too_early = age_ms < faults.details_lag_ms
    stale = age_ms < faults.details_stale_ms
    if too_early or (stale and before is None):
        raise Refusal(404, "A fault of the sandbox: these details lag behind their event.")
    return before if stale and before is not None else shown
