"""Events: a filtered list, page by page, with news since it was loaded; and one event with its history."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import urlencode

from redis import Redis
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from credhook.console.live import Streams
from credhook.console.overview import FleetWatch
from credhook.console.rendering import fragment, page
from credhook.events import EVENT_TYPES, is_resource_id
from credhook.store import Keys, State
from credhook.store.connection import clock
from credhook.worker.commands.history import entry_lines, event_with_history, heading, records, time_of
from credhook.worker.commands.search import (
    CAUSE_ID,
    Cursor,
    Page,
    Selection,
    event_type,
    moment,
    read_page,
    resource_id,
    webhook_id,
)

#: Events on a page.
_PAGE_EVENTS: Final = 50
#: Events read for one page before it reports how far back it has looked.
_PATIENCE_EVENTS: Final = 20_000

_HANDLER: Final = re.compile(r"[!-~]{1,200}")

Query = Sequence[tuple[str, str]]


def selection(query: Query, now: datetime) -> Selection:
    """Read a page's address as `credhook events` reads its options. Empty values and other names are ignored.

    Ages count from `now`.

    Raises:
        ValueError: a value is invalid; the message names it and says what is expected.
    """
    given = [(name, value.strip()) for name, value in query if value.strip()]
    read: dict[str, Callable[[str], Any]] = {
        "resource": resource_id,
        "cause": partial(_matching, CAUSE_ID, "cause's id"),
        "handler": partial(_matching, _HANDLER, "handler's name"),
        "since": partial(moment, now=now),
        "until": partial(moment, now=now),
        "after": Cursor.read,
    }
    found = Selection(
        states=frozenset(_state(value) for name, value in given if name == "state"),
        types=frozenset(event_type(value) for name, value in given if name == "type"),
        ids=tuple(webhook_id(value) for name, value in given if name == "id"),
        **{name: read[name](value) for name, value in given if name in read},
    )
    if found.since and found.until and found.since >= found.until:
        raise ValueError("“since” must be earlier than “until”")
    return found


def address(selection: Selection) -> list[tuple[str, str]]:
    """Return the query of a selection, with ages as fixed times."""
    parts = [("state", state.value) for state in sorted(selection.states)]
    parts += [("type", kind) for kind in sorted(selection.types)]
    parts += [("id", one) for one in selection.ids]
    parts += [(name, str(value)) for name in ("resource", "cause", "handler") if (value := getattr(selection, name))]
    parts += [(name, when.isoformat()) for name in ("since", "until") if (when := getattr(selection, name))]
    return parts


def in_words(selection: Selection) -> str:
    """Return the selection in one line, for pages and the log."""
    times = {name: when for name in ("since", "until") if (when := getattr(selection, name))}
    shown = {name: f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" for name, when in times.items()}
    words = (f"{name} {shown.get(name, value).removeprefix('openid4vc.')}" for name, value in address(selection))
    return ", ".join(words) or "all"


def _state(text: str) -> State:
    try:
        return State(text)
    except ValueError:
        raise ValueError(f"{text!r} is no state. The states are {', '.join(State)}") from None


def _matching(pattern: re.Pattern[str], what: str, text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} is no {what}")
    return text


def routes(fleet: FleetWatch, streams: Streams) -> list[Route]:
    """Return the routes of the list, its live news, and one event."""

    async def show(request: Request) -> Response:
        query = request.query_params.multi_items()
        sought = request.query_params.get("q", "").strip()
        if sought:
            return await _sought(request, sought)
        try:
            chosen = selection(query, datetime.now(UTC))
        except ValueError as error:
            return _list(request, Page([]), [], problem=str(error))
        found, rows, top = await fleet.ask(lambda redis, keys: _page(redis, keys, chosen))
        return _list(request, found, rows, chosen, live="" if chosen.after else _live_address(chosen, top, rows, query))

    async def _sought(request: Request, sought: str) -> Response:
        """Redirect to the event of that id, else to the events of that resource."""
        if await fleet.ask(lambda redis, keys: redis.exists(keys.event + sought)):
            return RedirectResponse(f"/event?{urlencode({'id': sought})}", 303)
        if not is_resource_id(sought):
            return _list(
                request,
                Page([]),
                [],
                problem="No event has this id, and no issuance or presentation can.",
            )
        rest = [(name, value) for name, value in request.query_params.multi_items() if name not in {"q", "after"}]
        return RedirectResponse(f"/events?{urlencode([*rest, ('resource', sought)])}", 303)

    async def show_one(request: Request) -> Response:
        webhook_id = request.query_params.get("id", "")
        record = await fleet.ask(lambda redis, keys: event_with_history(redis, keys, webhook_id))
        if record is None:
            raise HTTPException(404, "There is no such event. It was erased, or its retention has ended.")
        lines = [(entry["at"], *entry_lines(entry)) for entry in record["history"]]
        context: dict[str, Any] = {"record": record, "heading": list(heading(record)), "lines": lines}
        return page(request, "event.html", title=webhook_id, **context)

    return [Route("/events", show), _live(fleet, streams), Route("/event", show_one)]


def _live(fleet: FleetWatch, streams: Streams) -> Route:
    """Announce changes since the page was loaded. The list itself does not move while it is read."""

    async def live(request: Request) -> Response:
        query = request.query_params
        try:
            chosen, top = selection(query.multi_items(), datetime.now(UTC)), Cursor.read(query.get("top", ""))
        except ValueError as error:
            raise HTTPException(400, str(error)) from None

        async def part() -> tuple[str, bool]:
            new, shown = await fleet.ask(lambda redis, keys: _since(redis, keys, chosen, top))
            changed = shown != query.get("shown")
            more = {"new": new, "most": _PAGE_EVENTS, "changed": changed, "page": query.get("page", "")}
            return fragment("events_part.html", **more), True

        return streams.stream(request, part)

    return Route("/live/events", live)


def _live_address(chosen: Selection, top: Cursor, rows: list[dict[str, Any]], query: Query) -> str:
    """Return the address of the news: the selection, the top of the page, and a digest of its rows."""
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
    query = request.query_params
    same = [(name, value) for name, value in query.multi_items() if name != "after" and value]
    context: dict[str, Any] = {
        "rows": rows,
        "chosen": chosen,
        "narrowed": chosen is not None and not chosen.is_empty,
        "address": address(chosen) if chosen else [],
        "problem": problem,
        "said": {name: query.get(name, "") for name in ("resource", "cause", "handler", "since", "until", "id")},
        "said_states": query.getlist("state"),
        "said_types": query.getlist("type"),
        "states": list(State),
        "types": EVENT_TYPES,
        "older": [*same, ("after", str(found.after))] if found.after else [],
        "newest": same if query.get("after") else None,
        "looked_back_to": time_of(found.looked_back_to),
        "live": live,
    }
    return page(request, "events.html", 400 if problem else 200, title="Events", **context)


def _read(redis: Redis, keys: Keys, chosen: Selection) -> tuple[Page, list[dict[str, Any]]]:
    found = read_page(redis, keys, replace(chosen, limit=_PAGE_EVENTS), patience=_PATIENCE_EVENTS)
    return found, list(records(redis, keys, [event.webhook_id for event in found.events]))


def _page(redis: Redis, keys: Keys, chosen: Selection) -> tuple[Page, list[dict[str, Any]], Cursor]:
    """Return the page, its records, and the cursor above them, after which new events follow."""
    now = clock(redis)
    found, rows = _read(redis, keys, chosen)
    return found, rows, found.events[0].cursor.above if found.events else Cursor(now)


def _since(redis: Redis, keys: Keys, chosen: Selection, top: Cursor) -> tuple[int, str]:
    """Count the events above the cursor, up to one more than a page, and digest the page below it."""
    since = datetime.fromtimestamp(top.received / 1_000, UTC)
    recent = replace(chosen, since=max(since, chosen.since or since), limit=_PAGE_EVENTS + 1)
    new = [one for one in read_page(redis, keys, recent).events if one.cursor >= top]
    return len(new), _digest(_read(redis, keys, replace(chosen, after=top))[1])


def _digest(rows: Sequence[dict[str, Any]]) -> str:
    """Return a digest that changes when a shown value changes."""
    shown = json.dumps([[row[name] for name in ("webhook_id", "state", "attempts", "error")] for row in rows])
    return blake2b(shown.encode(), digest_size=6).hexdigest()
