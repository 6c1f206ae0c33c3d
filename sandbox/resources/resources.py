"""What issuances and presentations have in common: being read too early, and being listed page by page."""

from typing import TypeVar
from urllib.parse import urlencode

from pydantic import Field

from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.http.wire import Whole, Wire
from credhook.sandbox.tenant.faults import Faults
from credhook.sandbox.tenant.tenant import Tenant

T = TypeVar("T")

#: Parameter of a list's query that says where its page begins; the link to the next page has it.
AFTER = "page[after]"


class PageQuery(Wire):
    """Which page of a list to show."""

    after: Whole = Field(0, ge=0, lt=2**53, alias=AFTER, description="Where the page begins, as `links.next` says.")


def links(tenant: Tenant, path: str, following: int | None) -> dict[str, str]:
    """Return the links of a page: to the one that follows, if there is one (specification, "Response envelope")."""
    return {} if following is None else {"next": f"{tenant.base_url}{path}?{urlencode({AFTER: following})}"}


def as_seen(shown: T, before: T | None, age_ms: float, faults: Faults) -> T:
    """Return a resource as a read sees it, this long after its latest event.

    `before` is what it was before that event; None if the event began it.

    Raises:
        Refusal: With 404 while the resource lags behind its event.
    """
    too_early = age_ms < faults.details_lag_ms
    stale = age_ms < faults.details_stale_ms
    if too_early or (stale and before is None):
        raise Refusal(404, "A fault of the sandbox: these details lag behind their event.")
    return before if stale and before is not None else shown
