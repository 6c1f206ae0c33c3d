"""The start page: what exists, and a button for everything that can happen. Plain HTML; needs no JavaScript."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from sandbox import certificates, deliveries, endpoints, issuances, presentations, templates, users
from sandbox.body import read_form
from sandbox.errors import Refusal
from sandbox.events import EVENT_TYPES, PREFIX, EventType, concerns_issuance
from sandbox.faults import Faults
from sandbox.happenings import Happening, happen
from sandbox.lifecycle import possible
from sandbox.tenant import Tenant

#: Rows of each table that grows.
ROWS = 20

STYLE = """
:root { color-scheme: light dark; --line: #8884; --accent: #2563eb; --bad: #b91c1c; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1.5rem; }
h1 { margin: 0; font-size: 1.5rem; } h2 { margin: 2rem 0 .5rem; font-size: 1.1rem; }
p { margin: .25rem 0 1rem; opacity: .8; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem .3rem 0; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; } th { font-weight: 600; opacity: .7; }
code { font: 12px ui-monospace, monospace; }
form { display: inline; }
button { font: inherit; font-size: 13px; margin: 0 .3rem .3rem 0; padding: .25rem .7rem; cursor: pointer;
  border: 1px solid var(--accent); border-radius: .4rem; background: none; color: inherit; }
button:hover, button:focus-visible { background: var(--accent); color: #fff; }
fieldset { border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0; }
.bad { color: var(--bad); font-weight: 600; }
"""

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


class Markup(str):
    """Text that is HTML already; every other text is escaped."""

    __slots__ = ()


def routes(tenant: Tenant) -> list[Route]:
    """Return the routes of the page: it is read by GET, and its buttons post to it."""

    async def show(_: Request) -> Response:
        return HTMLResponse(render(tenant), headers=HEADERS)

    async def press(request: Request) -> Response:
        form = dict(await read_form(request))
        try:
            happen(tenant, Happening.model_validate(form))
        except (Refusal, ValidationError) as problem:
            told = str(problem) if isinstance(problem, Refusal) else "The form was not one of this page."
            status = problem.status if isinstance(problem, Refusal) else 400
            return HTMLResponse(render(tenant, told), status, headers=HEADERS)
        return RedirectResponse("/", 303)

    async def serve(request: Request) -> Response:
        return await (press if request.method == "POST" else show)(request)

    return [Route("/", serve, methods=["GET", "POST"])]


def render(tenant: Tenant, problem: str = "") -> str:
    """Return the page."""
    faults = _difference(tenant.faults.on)
    body = "".join(
        (
            "<h1>The platform, played on this machine</h1>",
            "<p>Everything here is made up and stays here. ",
            '<a href="/openapi.json">The API of the platform</a> · ',
            '<a href="/sandbox/openapi.json">what the sandbox adds</a> · <a href="/">reload</a></p>',
            f'<p class="bad" role="alert">{escape(problem)}</p>' if problem else "",
            f'<p class="bad">Faults that are on: {escape(faults)}</p>' if faults else "",
            "<h2>Make something happen</h2>",
            _buttons("Issuance", [each for each in EVENT_TYPES if concerns_issuance(each)]),
            _buttons("Verification", [each for each in EVENT_TYPES if not concerns_issuance(each)]),
            _section("Webhook endpoints", ("Id", "URL", "Events", "Health"), _endpoint_rows(tenant)),
            _section(
                "Latest deliveries",
                ("At", "Event", "Resource", "webhook-id", "Attempt", "Answer", "Outcome"),
                _attempt_rows(tenant),
            ),
            _section("Latest issuances", ("Id", "Status", "Updated", "What may happen next"), _issuance_rows(tenant)),
            _section(
                "Latest presentations", ("Id", "Status", "Updated", "What may happen next"), _presentation_rows(tenant)
            ),
            _section("Templates", ("Id", "Format", "Type", "Archived"), _template_rows(tenant)),
            _section("Certificate signing requests", ("Id", "Subject", "Imported"), _request_rows(tenant)),
            f"<p>Users of the tenant: {users.shelf(tenant.state).count()}</p>",
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Sandbox</title><style>{STYLE}</style></head><body>{body}</body></html>"
    )


def _buttons(legend: str, events: Iterable[EventType]) -> str:
    return f"<fieldset><legend>{legend}</legend>{''.join(_button(event) for event in events)}</fieldset>"


def _button(event_type: EventType, resource_id: str | None = None) -> Markup:
    """Return a form of one button, which makes an event happen to a new resource or to a given one."""
    resource = "" if resource_id is None else f'<input type="hidden" name="resourceId" value="{escape(resource_id)}">'
    label = event_type.removeprefix(PREFIX) if resource_id is None else event_type.rpartition(".")[2]
    return Markup(
        f'<form method="post" action="/">{resource}'
        f'<button name="eventType" value="{event_type}">{label}</button></form>'
    )


def _section(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return f"<h2>{title}</h2><p>None yet.</p>"
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(text: str) -> str:
    return text if isinstance(text, Markup) else escape(text)


def _endpoint_rows(tenant: Tenant) -> list[list[str]]:
    return [
        [
            registration.endpoint.id,
            registration.endpoint.url,
            _short(registration.endpoint.filter_types),
            _health(registration),
        ]
        for registration in endpoints.shelf(tenant.state).all()
    ]


def _short(types: Sequence[EventType]) -> str:
    if set(types) == set(EVENT_TYPES):
        return "all"
    return ", ".join(each.removeprefix(PREFIX) for each in types)


def _health(registration: endpoints.Registration) -> str:
    if registration.switched_off_at:
        return f"switched off at {_at(registration.switched_off_at)}"
    return f"failing since {_at(registration.failing_since)}" if registration.failing_since else "well"


def _attempt_rows(tenant: Tenant) -> list[list[str]]:
    return [
        [
            _at(attempt.started_at),
            attempt.event_type.removeprefix(PREFIX),
            attempt.resource_id,
            attempt.webhook_id,
            str(attempt.attempt),
            attempt.error or f"{attempt.status} {attempt.answer or ''}".strip(),
            attempt.outcome if attempt.forged is None else f"forged: {attempt.forged}",
        ]
        for attempt in deliveries.log(tenant.state).latest(ROWS)
    ]


def _issuance_rows(tenant: Tenant) -> list[list[str]]:
    return [
        [
            record.shown.id,
            record.shown.status,
            _at(record.shown.updated_at),
            _next("issuance", record.shown.id, record.shown.status, record.announced),
        ]
        for record in issuances.shelf(tenant.state).latest(ROWS)
    ]


def _presentation_rows(tenant: Tenant) -> list[list[str]]:
    return [
        [
            record.shown.id,
            record.shown.status,
            _at(record.shown.updated_at),
            _next("verification", record.shown.id, record.shown.status, record.announced),
        ]
        for record in presentations.shelf(tenant.state).latest(ROWS)
    ]


def _next(kind: str, id_: str, status: str, announced: Sequence[EventType]) -> Markup:
    return Markup("".join(_button(event_type, id_) for event_type in possible(kind, status, announced)))


def _template_rows(tenant: Tenant) -> list[list[str]]:
    return [
        [template.id, template.format, template.type, _at(template.archived_at) if template.archived_at else ""]
        for template in templates.listed(tenant)
    ]


def _request_rows(tenant: Tenant) -> list[list[str]]:
    imported = {record.id for record in certificates.records(tenant.state).all()}
    return [
        [request.id, request.subject, "yes" if request.id in imported else "no"]
        for request in certificates.listed(tenant)
    ]


def _difference(faults: Faults) -> str:
    """Return the faults that are on, as `name=value`."""
    off = Faults().model_dump(by_alias=True)
    return ", ".join(
        f"{name}={value}" for name, value in faults.model_dump(by_alias=True).items() if value != off[name]
    )


def _at(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}"
