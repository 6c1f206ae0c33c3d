"""Events: a filtered list, page by page, and one event with its history."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from credhook.console.graphs import graphs
from credhook.console.pages import page
from credhook.events import EVENT_TYPES
from credhook.store import HANDLER, State
from credhook.store.history import entry_lines, event_with_history, heading, records, time_of
from credhook.store.selection import (
    CAUSE_ID,
    Cursor,
    Page,
    Selection,
    an_id,
    event_type,
    moment,
    read_page,
    valid,
)
from credhook.store.store import SyncStore

#: Events on a page.
_PAGE_EVENTS: Final = 50
#: Events read for one page before it reports how far back it has looked.
_MOST_READ: Final = 20_000

_HANDLER: Final = re.compile(r"[!-~]{1,200}")


def selection(query: Sequence[tuple[str, str]], now: datetime) -> Selection:
    """Read a page's address as `credhook events` reads its options. Empty values and other names are ignored.

    Ages count from `now`.

    Raises:
        ValueError: a value is invalid; the message names it and the expected form.
    """
    filters = [(name, value.strip()) for name, value in query if value.strip()]
    read: dict[str, Callable[[str], Any]] = {
        "resource": an_id,
        "cause": partial(valid, CAUSE_ID.fullmatch, "cause's id"),
        "handler": partial(valid, _HANDLER.fullmatch, "handler's name"),
        "since": partial(moment, now=now),
        "until": partial(moment, now=now),
        "after": Cursor.read,
    }
    chosen = Selection(
        states=frozenset(State(value) for name, value in filters if name == "state"),
        types=frozenset(event_type(value) for name, value in filters if name == "type"),
        ids=tuple(an_id(value) for name, value in filters if name == "id"),
        **{name: read[name](value) for name, value in filters if name in read},
    )
    if chosen.since and chosen.until and chosen.since >= chosen.until:
        raise ValueError("“since” must be earlier than “until”")
    return chosen


def query_of(selection: Selection) -> list[tuple[str, str]]:
    """Return the query of a selection, with ages as fixed times."""
    parts = [("state", state.value) for state in sorted(selection.states)]
    parts += [("type", kind) for kind in sorted(selection.types)]
    parts += [("id", webhook_id) for webhook_id in selection.ids]
    parts += [(name, str(value)) for name in ("resource", "cause", "handler") if (value := getattr(selection, name))]
    parts += [(name, when.isoformat()) for name in ("since", "until") if (when := getattr(selection, name))]
    return parts


def in_words(selection: Selection) -> str:
    """Return the selection in one line, for pages and the log."""
    return ", ".join(f"{name} {value.removeprefix('openid4vc.')}" for name, value in query_of(selection)) or "all"


def _name_of(chosen: Selection) -> str:
    """Return the type or the handler that the page is about, as its counts name it; "" with other filters."""
    filters = query_of(chosen)
    if len(filters) != 1:
        return ""
    ((name, value),) = filters
    return {"type": value, "handler": f"{HANDLER}{value}"}.get(name, "")


def routes(store: SyncStore) -> list[Route]:
    """Return the routes of the list and of one event."""

    def show(request: Request) -> Response:
        query = request.query_params.multi_items()
        if sought := request.query_params.get("q", "").strip():
            if store.redis.exists(store.keys.event + sought):
                return RedirectResponse(f"/event?{urlencode({'id': sought})}", 303)
            return RedirectResponse(f"/events?{urlencode({'resource': sought})}", 303)
        events, chosen, problem = Page([]), Selection(), ""
        try:
            chosen = selection(query, datetime.now(UTC))
        except ValueError as error:
            problem = str(error)
        else:
            events = read_page(store, replace(chosen, limit=_PAGE_EVENTS), most_read=_MOST_READ)
        same = [(name, value) for name, value in query if name != "after" and value]
        name = _name_of(chosen)
        context: dict[str, Any] = {
            "graphs": graphs(store, name=name) if name and not chosen.after else [],
            "rows": list(records(store, [event.webhook_id for event in events.events])),
            "narrowed": not chosen.is_empty,
            "address": query_of(chosen),
            "problem": problem,
            "filters": request.query_params,
            "states": list(State),
            "types": EVENT_TYPES,
            "older": [*same, ("after", str(events.after))] if events.after else [],
            "newest": same if chosen.after else None,
            "looked_back_to": time_of(events.looked_back_to),
        }
        return page(request, "events.html", 400 if problem else 200, title="Events", **context)

    def show_one(request: Request) -> Response:
        webhook_id = request.query_params.get("id", "")
        record = event_with_history(store, webhook_id)
        if record is None:
            raise HTTPException(404, "There is no such event. It was erased, or its retention has ended.")
        lines = [(entry["at"], *entry_lines(entry)) for entry in record["history"]]
        return page(request, "event.html", title=webhook_id, record=record, heading=list(heading(record)), lines=lines)

    return [Route("/events", show), Route("/event", show_one)]
