"""How far a round may go in putting unhandled events back."""

from credhook.worker.queue.replay import PAGE, UnhandledEvent, in_reach


def page(event_type: str, *since: float) -> list[UnhandledEvent]:
    return [UnhandledEvent(f"{event_type}{one}".encode(), event_type, one) for one in since]


def test_all_that_there_is_can_be_put_back() -> None:
    pages = [page("a", 1, 5), page("b", 3), page("c")]
    assert in_reach(pages) == [*pages[0], *pages[1]]
    assert in_reach([]) == []


def test_nothing_overtakes_what_may_stand_behind_a_full_page() -> None:
    full = page("a", *range(PAGE))
    assert in_reach([full, page("b", 3, PAGE - 1, PAGE)]) == [*full, *page("b", 3, PAGE - 1)]
