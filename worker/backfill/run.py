"""One reconciliation: both lists of the platform, compared with the ledger part by part."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from credhook.events import concerns_issuance
from credhook.worker.api.calls.pages import Page
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.models.listed import ListedResource
from credhook.worker.backfill.comparing import Comparison
from credhook.worker.backfill.states import (
    ISSUANCE,
    PRESENTATION,
    Announced,
    Missable,
    Untold,
    Window,
    must_have_happened,
)
from credhook.worker.backfill.walking import walk

#: Events that are compared at once: 15 MB of memory, and one look through the ledger.
PART: Final = 50_000


class TooLate(Exception):
    """So much time has passed that the ledger may have forgotten what the reconciliation is about."""


@dataclass(slots=True)
class Result:
    """What has been found so far: resources that the platform has listed, and events that must have happened.

    `missing`: event type → how many had not arrived, and were accepted unless that was not asked for; `untold`: why
    nothing can be said of a resource → of how many.
    """

    listed: int = 0
    happened: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    untold: Counter[str] = field(default_factory=Counter)


class Reconciliation:
    """What the platform says has happened, beside what the ledger has."""

    def __init__(
        self,
        api: AsyncApi,
        comparison: Comparison,
        *,
        window: Window,
        wanted: Collection[str],
        retention: int,
        advance: Callable[[int], None],
        result: Result,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; what is found is added to `result`.

        A list that none of the `wanted` types is about is not read. `retention` is in seconds; `advance` is told how
        many resources and records have been looked at since.
        """
        self._api = api
        self._comparison = comparison
        self._window = window
        self._wanted = wanted
        self._too_late = window.since.timestamp() + retention
        self._advance = advance
        self._clock = clock
        self.result = result

    async def run(self, *, dry: bool) -> None:
        """Accept what has not arrived, or only count it; `result` grows meanwhile.

        Raises:
            ApiError: the platform refuses a page, or does not give it.
            RedisError: Redis failed.
            TooLate: it has taken too long.
        """
        part: list[Missable] = []
        async for found in self._happened():
            part += found
            if len(part) >= PART:
                await self._compare(part, dry=dry)
                part = []
        if part:
            await self._compare(part, dry=dry)

    async def _compare(self, part: list[Missable], *, dry: bool) -> None:
        if self._clock() > self._too_late:
            raise TooLate
        self.result.happened += len(dict.fromkeys(part))
        if dry:
            found = await self._comparison.missing(part, self._advance)
            self.result.missing.update(one.types[0] for one in found)
        else:
            await self._comparison.accept_missing(part, self.result.missing.update, self._advance)

    async def _happened(self) -> AsyncIterator[list[Missable]]:
        """What must have happened to the resources of a page, page after page."""
        of_issuances = [concerns_issuance(name) for name in self._wanted]
        lists: list[tuple[Callable[[str], Awaitable[Page[ListedResource]]], Mapping[str, tuple[Announced, ...]]]] = []
        if any(of_issuances):
            lists.append((self._api.issuances.page, ISSUANCE))
        if not all(of_issuances):
            lists.append((self._api.presentations.page, PRESENTATION))
        for page, states in lists:
            async for resources in walk(page):
                self.result.listed += len(resources)
                self._advance(len(resources))
                yield [event for one in resources for event in self._events_of(one, states)]

    def _events_of(self, resource: ListedResource, states: Mapping[str, tuple[Announced, ...]]) -> list[Missable]:
        try:
            return list(must_have_happened(resource, states, self._window, self._wanted))
        except Untold as untold:
            self.result.untold[untold.why] += 1
            return []
