"""Pages from templates, the first page, and the causes of failures.

Functions of routes that ask Redis are not asynchronous, so that Starlette calls them in threads. Templates escape
values; a missing value is an error.
"""

from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import structlog
from jinja2 import Environment, PackageLoader, StrictUndefined
from rq.suspension import resume, suspend
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from credhook.console.auth import operator, read_form
from credhook.console.graphs import graphs
from credhook.ops.findings import age, elsewhere, look_at
from credhook.ops.fleet import forget
from credhook.ops.status import arriving, verdict
from credhook.store.causes import READ_LIMIT, causes
from credhook.store.history import written
from credhook.store.store import SyncStore

log = structlog.get_logger("credhook.console")

#: Causes on the page, the latest failures first.
_MAX_CAUSES: Final = 200
_CAUSES: Final = ("See the causes", "/causes")
_PLAN: Final = ("See the plan", "/endpoints")
#: Finding → the pages that help: the words of the link, and the address.
_PAGES_OF: Final = {
    "events.dead": (_CAUSES, ("See them", "/events?state=dead&state=data_gone")),
    "events.oldest_open": (_CAUSES, ("See them", "/events?state=waiting&state=accepted")),
    "events.unhandled": (("See them", "/events?state=unhandled"), _PLAN),
    "events.quarantined": (("See them", "/events?state=quarantined"),),
    "events.unreadable": (("See them", "/events?state=unreadable"),),
    "fleet.silence": (_PLAN,),
    "platform.endpoints": (_PLAN,),
}


def page(request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """Render a page. `context` holds its `title` and the other values of the template."""
    around = {"path": request.url.path, "operator": operator(request), "now": datetime.now(UTC)}
    text = TEMPLATES.get_template(template).render(around | context)
    # An id in Redis may hold bytes that are not Unicode.
    return HTMLResponse(text.encode(errors="backslashreplace"), status)


def in_utc(at: datetime | str) -> datetime:
    """Return a time, which may be written as ISO 8601, in UTC."""
    return (datetime.fromisoformat(at) if isinstance(at, str) else at).astimezone(UTC)


def number(value: float | None) -> str:
    """Format a number with thin spaces between thousands; `?` if it is None."""
    return "?" if value is None else f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


TEMPLATES: Final = Environment(
    loader=PackageLoader("credhook.console", "ui/templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    "age": age,
    "elsewhere": elsewhere,
    "verdict": verdict,
    "in_utc": in_utc,
    "written": written,
    "number": number,
    "query": urlencode,
}


def routes(store: SyncStore, address: str) -> list[Route]:
    """Return the routes of the first page with its buttons, and of the causes page."""

    def show_fleet(request: Request) -> Response:
        fleet, findings = look_at(store, address)
        context: dict[str, Any] = {"fleet": fleet, "arriving": fleet and arriving(fleet)}
        context["graphs"] = graphs(store) if fleet and fleet.last_hour else []
        context["findings"], context["notes"] = (
            [finding for finding in findings if finding.needs_attention is needed] for needed in (True, False)
        )
        return page(request, "now.html", title="Now", queue=store.queue, pages_of=_PAGES_OF, **context)

    def show_causes(request: Request) -> Response:
        open_causes, complete = causes(store)
        context: dict[str, Any] = {"causes": open_causes[:_MAX_CAUSES], "complete": complete, "read_limit": READ_LIMIT}
        return page(request, "causes.html", title="Causes", **context)

    async def switch(request: Request, verb: str) -> Response:
        log.info("console_" + verb, who=operator(request))
        await run_in_threadpool(suspend if verb == "suspend" else resume, store.redis)
        return RedirectResponse("/", 303)

    async def acknowledge(request: Request) -> Response:
        seen = set((await read_form(request)).getlist("worker"))
        log.info("console_acknowledge", who=operator(request), workers=sorted(seen))
        fleet, _ = await run_in_threadpool(look_at, store, address)
        missing = [worker for worker in fleet.missing if worker.name in seen] if fleet else []
        await run_in_threadpool(forget, store, missing)
        return RedirectResponse("/", 303)

    return [
        Route("/", show_fleet),
        Route("/acknowledge", acknowledge, methods=["POST"]),
        Route("/causes", show_causes),
        *(Route(f"/{verb}", partial(switch, verb=verb), methods=["POST"]) for verb in ("suspend", "resume")),
    ]
