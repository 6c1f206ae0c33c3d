"""The start page: what exists, and a button for everything that can happen. Plain HTML; needs no JavaScript.

What it looks like is in page.html, where whatever is put into it is escaped.
"""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from credhook.sandbox.deliveries import deliveries, endpoints
from credhook.sandbox.http.body import read_form
from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.resources import certificates, issuances, presentations, templates, users
from credhook.sandbox.tenant.events import EVENT_TYPES, PREFIX
from credhook.sandbox.tenant.faults import Faults
from credhook.sandbox.tenant.lifecycle import possible
from credhook.sandbox.tenant.tenant import Tenant
from credhook.sandbox.triggers.triggers import Happening, happen

#: Rows of each table that grows.
ROWS = 20

#: What each fault is while it is off, by its name on the wire.
OFF = Faults().model_dump(by_alias=True)

STYLE = files("credhook.sandbox").joinpath("page.css").read_text(encoding="utf-8")

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; style-src "
        f"'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'"
    ),
    # Anything stricter would make browsers send `Origin: null` with the page's own forms.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def routes(tenant: Tenant) -> list[Route]:
    """Return the routes of the page: it is read by GET, and its buttons post to it."""

    async def show(_: Request) -> Response:
        return HTMLResponse(render(tenant), headers=HEADERS)

    async def press(request: Request) -> Response:
        try:
            _obey(tenant, dict(await read_form(request)))
        except (Refusal, ValidationError) as problem:
            told = str(problem) if isinstance(problem, Refusal) else "The form was not one of this page."
            status = problem.status if isinstance(problem, Refusal) else 400
            return HTMLResponse(render(tenant, told), status, headers=HEADERS)
        return RedirectResponse("/", 303)

    async def serve(request: Request) -> Response:
        return await (press if request.method == "POST" else show)(request)

    return [Route("/", serve, methods=["GET", "POST"])]


def _obey(tenant: Tenant, form: dict[str, str]) -> None:
    """Do what a button of the page says: switch a fault off, or all of them, or make an event happen.

    Raises:
        Refusal, ValidationError: It cannot be done, or no button says so.
    """
    if form == {"clear": "all"}:
        tenant.faults.clear()
    elif form.keys() == {"clear"}:
        tenant.faults.change(Faults.model_validate({form["clear"]: OFF.get(form["clear"])}))
    else:
        happen(tenant, Happening.model_validate(form))


def render(tenant: Tenant, problem: str = "") -> str:
    """Return the page."""
    state = tenant.state
    faults = tenant.faults.on.model_dump(by_alias=True)
    under_way = deliveries.under_way(state)
    return _TEMPLATE.render(
        style=Markup(STYLE),  # noqa: S704  A file of ours.
        problem=problem,
        faults={name: value for name, value in faults.items() if value != OFF[name]},
        event_types=EVENT_TYPES,
        registrations=endpoints.shelf(state).all(),
        under_way=under_way.latest(ROWS),
        count_under_way=under_way.count(),
        attempts=deliveries.log(state).latest(ROWS),
        issuances=issuances.shelf(state).latest(ROWS),
        presentations=presentations.shelf(state).latest(ROWS),
        possible=possible,
        templates=templates.listed(tenant),
        requests=certificates.listed(tenant),
        imported={record.id for record in certificates.records(state).all()},
        users=users.shelf(state).count(),
    )


def _short(event_type: str) -> str:
    return event_type.removeprefix(PREFIX)


_ENVIRONMENT = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters["short"] = _short
_TEMPLATE = _ENVIRONMENT.from_string(files("credhook.sandbox").joinpath("page.html").read_text(encoding="utf-8"))
