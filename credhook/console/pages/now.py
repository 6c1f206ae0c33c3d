"""The first page: how the fleet is, and what wants attention."""

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from credhook.console.pages.ledger import Ledger, Look
from credhook.console.pages.live import Streams
from credhook.console.ui.rendering import fragment, number, page
from credhook.ops.attention import age
from credhook.ops.fleet import Fleet
from credhook.ops.status import arriving

#: Name of a finding → the page of the events that it is about.
_SEE: Final = {
    "events.dead": "/events?state=dead&state=data_gone",
    "events.oldest_open": "/events?state=waiting&state=accepted",
    "events.unhandled": "/events?state=unhandled",
    "events.quarantined": "/events?state=quarantined",
    "events.unreadable": "/events?state=unreadable",
}
_MEBIBYTE: Final = 1 << 20


class Tile(NamedTuple):
    """A number at the head of the page, and the page of what it counts; `bad` or `warn` where it should be zero."""

    name: str
    value: str
    more: str = ""
    href: str = ""
    tone: str = ""


def routes(ledger: Ledger, streams: Streams, clock: Callable[[], float] = time.time) -> list[Route]:
    """The page, and its live part."""

    async def part() -> tuple[str, bool]:
        return fragment("now_part.html", **_shown(ledger, await ledger.look(), clock())), True

    async def show(request: Request) -> Response:
        shown = _shown(ledger, await ledger.look(), clock())
        return page(request, "now.html", title="Now", **shown)

    async def live(request: Request) -> Response:
        return streams.stream(request, part)

    return [Route("/", show), Route("/live/now", live)]


def _shown(ledger: Ledger, look: Look, now: float) -> dict[str, Any]:
    facts = look.facts
    since = ledger.history.since
    return {
        "look": look,
        "see": _SEE,
        "facts": facts,
        "tiles": tiles(facts) if facts else [],
        "series": ledger.history.series(now) if facts else [],
        "remembered": age(now - since) if since is not None else "",
        "age": age,
        "memory": _memory(facts) if facts else "",
        "queue": ledger.index.queue,
    }


def tiles(facts: Fleet) -> list[Tile]:
    """The numbers at the head of the page. Pure."""
    counts = facts.counts
    unhandled = sum(counts.unhandled.values())
    per_second, last = arriving(facts)
    oldest = "none" if facts.oldest_open is None else age(facts.oldest_open)
    found = [
        Tile("arriving", f"{per_second:.1f}/s", last),
        Tile("queued", number(counts.queued), "wait for a worker", "/events?state=accepted"),
        Tile("in flight", number(counts.in_flight), "a worker has them"),
        Tile("retrying", number(counts.retrying), "wait for an attempt", "/events?state=waiting"),
        Tile("oldest open", oldest, f"of {number(counts.open)} open"),
        Tile(
            "given up",
            number(counts.dead_recently),
            f"today, {number(counts.dead)} kept",
            "/events?state=dead&state=data_gone",
            "bad" if counts.dead_recently else "",
        ),
    ]
    for name, value, remark in (
        ("unhandled", unhandled, "no handler"),
        ("quarantined", counts.quarantined, "unknown type"),
        ("unreadable", counts.unreadable, "others wrote there"),
    ):
        if value != 0:
            found.append(Tile(name, number(value), remark, f"/events?state={name}", "warn"))
    return found


def _memory(facts: Fleet) -> str:
    server = facts.server
    used = f"{server.used_memory / _MEBIBYTE:.0f} MiB"
    return f"{used} of {server.maxmemory / _MEBIBYTE:.0f} MiB" if server.maxmemory else f"{used}, without a bound"
