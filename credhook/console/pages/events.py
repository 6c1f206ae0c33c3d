"""Events: found by search and filters, page by page; whether a page is still what there is; and the story of one."""

import json
from collections.abc import Sequence
from dataclasses import replace as but
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import urlencode

from redis import Redis
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from credhook.console.pages.filters import Query, address, selection
from credhook.console.pages.ledger import Ledger
from credhook.console.pages.live import Streams
from credhook.console.ui.rendering import fragment, page
from credhook.events import EVENT_TYPES, is_resource_id
from credhook.store import EVENT, Keys, State
from credhook.worker.commands.history.records import raw, records
from credhook.worker.commands.history.story import heading, story_of, told_of
from credhook.worker.commands.history.times import time_of
from credhook.worker.commands.search.reading import Page, read_page
from credhook.worker.commands.search.search import clock
from credhook.worker.commands.search.selection import Cursor, Selection

#: Events of a page.
_SHOWN: Final = 50
#: Events that are looked at for one before it says how far it has come.
_PATIENCE: Final = 20_000


def routes(ledger: Ledger, streams: Streams) -> list[Route]:
    """The list, what has changed of it since, and one event."""

    async def show(request: Request) -> Response:
        query = request.query_params.multi_items()
        sought = request.query_params.get("q", "").strip()
        if sought:
            return await _sought(request, sought)
        try:
            chosen = selection(query, datetime.now(UTC))
        except ValueError as error:
            return _list(request, Page([]), [], problem=str(error))
        found, rows, top = await ledger.ask(lambda redis, index: _page(redis, index, chosen))
        return _list(request, found, rows, chosen, live="" if chosen.after else _live_address(chosen, top, rows, query))

    async def _sought(request: Request, sought: str) -> Response:
        """An event's id leads to the event, any other to the events of the resource."""
        if await ledger.ask(lambda redis, _: redis.exists(raw(EVENT + sought))):
            return RedirectResponse(f"/event?{urlencode({'id': sought})}", 303)
        if not is_resource_id(sought):
            return _list(request, Page([]), [], problem="No event has that id, and no issuance or presentation could.")
        rest = [(name, value) for name, value in request.query_params.multi_items() if name not in {"q", "after"}]
        return RedirectResponse(f"/events?{urlencode([*rest, ('resource', sought)])}", 303)

    async def show_one(request: Request) -> Response:
        webhook_id = request.query_params.get("id", "")
        record = await ledger.ask(lambda redis, index: _story(redis, index, webhook_id))
        if record is None:
            raise HTTPException(404, "The ledger has no such event: it was erased, or its retention has ended.")
        lines = [(entry["at"], *told_of(entry)) for entry in record["story"]]
        context: dict[str, Any] = {"record": record, "heading": list(heading(record)), "lines": lines}
        return page(request, "event.html", title=webhook_id, **context)

    return [Route("/events", show), _live(ledger, streams), Route("/event", show_one)]


def _live(ledger: Ledger, streams: Streams) -> Route:
    """What has changed since a page was made. It is announced; what somebody reads or has marked stays where it is."""

    async def live(request: Request) -> Response:
        said = request.query_params
        try:
            chosen, top = selection(said.multi_items(), datetime.now(UTC)), Cursor.read(said.get("top", ""))
        except ValueError as error:
            raise HTTPException(400, str(error)) from None

        async def part() -> tuple[str, bool]:
            new, shown = await ledger.ask(lambda redis, index: _since(redis, index, chosen, top))
            more = {"new": new, "most": _SHOWN, "changed": shown != said.get("shown"), "page": said.get("page", "")}
            return fragment("events_part.html", **more), True

        return streams.stream(request, part)

    return Route("/live/events", live)


def _live_address(chosen: Selection, top: Cursor, rows: list[dict[str, Any]], query: Query) -> str:
    """Where it is announced: with what the page shows, and what leads to it anew, ages as they were typed."""
    again = urlencode([(name, value) for name, value in query if value])
    seen = {"top": str(top), "shown": _digest(rows), "page": again}
    return f"/live/events?{urlencode([*address(chosen), *seen.items()])}"


def _list(
    request: Request,
    found: Page,
    rows: list[dict[str, Any]],
    chosen: Selection | None = None,
    *,
    live: str = "",
    problem: str = "",
) -> Response:
    said = request.query_params
    same = [(name, value) for name, value in said.multi_items() if name != "after" and value]
    context: dict[str, Any] = {
        "rows": rows,
        "chosen": chosen,
        "narrowed": chosen is not None and not chosen.is_empty,
        "address": address(chosen) if chosen else [],
        "problem": problem,
        "said": {name: said.get(name, "") for name in ("resource", "cause", "handler", "since", "until", "id")},
        "said_states": said.getlist("state"),
        "said_types": said.getlist("type"),
        "states": list(State),
        "types": EVENT_TYPES,
        "older": [*same, ("after", str(found.after))] if found.after else [],
        "newest": same if said.get("after") else None,
        "looked_back_to": time_of(found.looked_back_to),
        "live": live,
    }
    return page(request, "events.html", 400 if problem else 200, title="Events", **context)


def _read(redis: Redis, index: Keys, chosen: Selection) -> tuple[Page, list[dict[str, Any]]]:
    found = read_page(redis, index, but(chosen, limit=_SHOWN), patience=_PATIENCE)
    return found, list(records(redis, index, [event.webhook_id for event in found.events]))


def _page(redis: Redis, index: Keys, chosen: Selection) -> tuple[Page, list[dict[str, Any]], Cursor]:
    """The page, its records, and the place above them: where what is new follows."""
    now = clock(redis)
    found, rows = _read(redis, index, chosen)
    return found, rows, found.events[0].cursor.above if found.events else Cursor(now)


def _since(redis: Redis, index: Keys, chosen: Selection, top: Cursor) -> tuple[int, str]:
    """How many events stand above that place now, of more than a page no more; and the digest of the page below it."""
    since = datetime.fromtimestamp(top.received / 1_000, UTC)
    recent = but(chosen, since=max(since, chosen.since or since), limit=_SHOWN + 1)
    new = [one for one in read_page(redis, index, recent).events if one.cursor >= top]
    return len(new), _digest(_read(redis, index, but(chosen, after=top))[1])


def _digest(rows: Sequence[dict[str, Any]]) -> str:
    """Another one whenever the table looks otherwise."""
    shown = json.dumps([[row[name] for name in ("webhook_id", "state", "attempts", "error")] for row in rows])
    return blake2b(shown.encode(), digest_size=6).hexdigest()


def _story(redis: Redis, index: Keys, webhook_id: str) -> dict[str, Any] | None:
    record = next(records(redis, index, [webhook_id]), None)
    return record and record | story_of(redis, raw(webhook_id))
