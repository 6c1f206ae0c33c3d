"""The platform's lists, page after page: what passes is waited for, what does not ends the walk."""

import pytest

from credhook.worker.api.errors import InvalidRequest, InvalidResponse, Unavailable
from credhook.worker.api.models import ListedResource
from credhook.worker.api.operations import Page
from credhook.worker.backfill.run import PAGE_SECONDS, walk


class Lists:
    """A list of which each page answers in turn with what it is told to, and the time that its reader waits."""

    def __init__(self, **pages: "list[Exception | str | None]") -> None:
        self.pages = pages
        self.now = 0.0
        self.asked: list[str] = []

    async def page(self, query: str) -> Page[ListedResource]:
        self.asked.append(query)
        answer = self.pages[query or "first"].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Page((ListedResource(id=query or "first", status="offered"),), answer)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def walked(self) -> list[str]:
        pages = walk(self.page, clock=lambda: self.now, sleep=self.sleep)
        return [one.id async for items in pages for one in items]


async def test_a_page_that_fails_for_a_while_is_read_again_and_not_those_before_it() -> None:
    later = [Unavailable("busy", retry_after=40.0), Unavailable("down")]
    lists = Lists(first=["second"], second=[*later, "third"], third=[None])
    assert await lists.walked() == ["first", "second", "third"]
    assert lists.asked == ["", "second", "second", "second", "third"]
    assert lists.now >= 40.0


async def test_patience_ends() -> None:
    lists = Lists(first=[Unavailable("down")] * 1_000)
    with pytest.raises(Unavailable):
        await lists.walked()
    assert lists.now <= PAGE_SECONDS
    lists = Lists(first=[Unavailable("busy", retry_after=PAGE_SECONDS + 1)])
    with pytest.raises(Unavailable):
        await lists.walked()
    assert lists.now == 0.0


async def test_what_does_not_pass_is_not_waited_for() -> None:
    with pytest.raises(InvalidRequest):
        await Lists(first=[InvalidRequest("no")]).walked()


async def test_a_circle_ends_the_walk() -> None:
    lists = Lists(first=["second"], second=["third"], third=["second"])
    with pytest.raises(InvalidResponse, match="leads in a circle"):
        await lists.walked()
