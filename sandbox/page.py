"""The start page: what exists, and a button for everything that can happen. Plain HTML; needs no JavaScript."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from credhook.sandbox.deliveries import deliveries, endpoints
from credhook.sandbox.http.body import read_form
from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.resources import certificates, issuances, presentations, templates, users
from credhook.sandbox.tenant.events import EVENT_TYPES, PREFIX, EventType, concerns_issuance
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


class Markup(str):
    """Text that is HTML already; every other text is escaped."""

    __slots__ = ()


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
    body = "".join(
        (
            "<h1>The platform, played on this machine</h1>",
            "<p>Everything here is made up and stays here. ",
            '<a href="/openapi.json">The API of the platform</a> · ',
            '<a href="/sandbox/openapi.json">what the sandbox adds</a> · <a href="/">reload</a></p>',
            f'<p class="bad" role="alert">{escape(problem)}</p>' if problem else "",
            _faults(tenant.faults.on),
            "<h2>Make something happen</h2>",
            _buttons("Issuance", [each for each in EVENT_TYPES if concerns_issuance(each)]),
            _buttons("Verification", [each for each in EVENT_TYPES if not concerns_issuance(each)]),
            _section(
                "Webhook endpoints",
                ("Id", "URL", "Events", "Health"),
                _endpoint_rows(tenant),
                none="None yet. <code>credhook endpoints apply</code> registers your receiver.",
            ),
            _section(
                "Latest deliveries",
                ("At", "Event", "Resource", "webhook-id", "Attempt", "Answer", "Outcome"),
                _under_way_rows(tenant) + _attempt_rows(tenant),
                caption=_under_way(tenant),
            ),
            _section("Latest issuances", ("Id", "Status", "Updated", "What may happen next"), _issuance_rows(tenant)),
            _section(
                "Latest presentations", ("Id", "Status", "Updated", "What may happen next"), _presentation_rows(tenant)
            ),
            _section("Templates", ("Id", "Format", "Type", "Archived"), _template_rows(tenant)),
            _section("Certificate signing requests", ("Id", "Subject", "Imported"), _request_rows(tenant)),
            f"<h2>Users</h2><p>{users.shelf(tenant.state).count() or 'None'} onboarded so far.</p>",
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Sandbox</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    )


def _faults(faults: Faults) -> str:
    """Return the line that names the faults that are on and switches them off; nothing where none is on."""
    on = {name: value for name, value in faults.model_dump(by_alias=True).items() if value != OFF[name]}
    if not on:
        return ""
    told = f"Faults that are on: {', '.join(f'{name}={value}' for name, value in on.items())}"
    buttons = "".join(f'<button name="clear" value="{name}">switch {name} off</button>' for name in [*on, "all"])
    return f'<form method="post" action="/">{_marked("bad", told)}{buttons}</form>'


def _buttons(legend: str, events: Iterable[EventType]) -> str:
    return f"<fieldset><legend>{legend}</legend>{''.join(_button(event) for event in events)}</fieldset>"


def _button(event_type: EventType, resource_id: str | None = None) -> str:
    """Return a form of one button, which makes an event happen to a new resource or to a given one."""
    label = event_type.removeprefix(PREFIX)
    resource = aria = ""
    if resource_id is not None:
        label = event_type.rpartition(".")[2]
        resource = f'<input type="hidden" name="resourceId" value="{escape(resource_id)}">'
        aria = f' aria-label="{label} {escape(resource_id)}"'
    return (
        f'<form method="post" action="/">{resource}'
        f'<button name="eventType" value="{event_type}"{aria}>{label}</button></form>'
    )


def _section(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    none: str = "None yet.",
    caption: str = "",
) -> str:
    if not rows:
        return f"<section><h2>{title}</h2><p>{none}</p></section>"
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<section><h2>{title}</h2>{table}</section>"


def _cell(text: str) -> str:
    return text if isinstance(text, Markup) else escape(text)


def _code(text: str) -> Markup:
    return Markup(f"<code>{escape(text)}</code>")


def _marked(mark: str, text: str) -> Markup:
    """Return text that looks as one class of the style says."""
    return Markup(f'<span class="{mark}">{_cell(text)}</span>')


def _endpoint_rows(tenant: Tenant) -> list[list[str]]:
    return [
        [
            _code(registration.endpoint.id),
            _code(registration.endpoint.url),
            _marked("prose", _short(registration.endpoint.filter_types)),
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
        return _marked("bad", Markup(f"switched off at {_at(registration.switched_off_at)}"))
    if registration.failing_since:
        return _marked("bad", Markup(f"failing since {_at(registration.failing_since)}"))
    return "well"


def _under_way(tenant: Tenant) -> str:
    """Return the caption that counts what is under way; nothing where nothing is."""
    count = deliveries.under_way(tenant.state).count()
    if not count:
        return ""
    newest = f" The newest {ROWS} are shown." if count > ROWS else ""
    return f'<caption>{count} under way.{newest} <a href="/">Reload</a> to see what comes of it.</caption>'


def _under_way_rows(tenant: Tenant) -> list[list[str]]:
    return [
        [
            _marked("busy", "under way"),
            delivery.event_type.removeprefix(PREFIX),
            _code(delivery.resource_id),
            _code(delivery.webhook_id),
            str(delivery.attempts or ""),
            "",
            "waits to be retried" if delivery.waits_for_retry else "",
        ]
        for delivery in deliveries.under_way(tenant.state).latest(ROWS)
    ]


def _attempt_rows(tenant: Tenant) -> list[list[str]]:
    return [
        [
            _at(attempt.started_at),
            attempt.event_type.removeprefix(PREFIX),
            _code(attempt.resource_id),
            _code(attempt.webhook_id),
            str(attempt.attempt),
            _marked("prose", attempt.error or f"{attempt.status} {attempt.answer or ''}".strip()),
            _outcome(attempt),
        ]
        for attempt in deliveries.log(tenant.state).latest(ROWS)
    ]


def _outcome(attempt: deliveries.Attempt) -> str:
    """Return what followed from an attempt; whatever is no acknowledgement stands out."""
    if attempt.outcome == "acknowledged":
        return attempt.outcome
    told = attempt.outcome if attempt.forged is None else f"forged: {attempt.forged}"
    return _marked("warn" if attempt.outcome == "retrying" else "bad", told)


def _issuance_rows(tenant: Tenant) -> list[list[str]]:
    return [
        [
            _code(record.shown.id),
            record.shown.status,
            _at(record.shown.updated_at),
            _next("issuance", record.shown.id, record.shown.status, record.announced),
        ]
        for record in issuances.shelf(tenant.state).latest(ROWS)
    ]


def _presentation_rows(tenant: Tenant) -> list[list[str]]:
    return [
        [
            _code(record.shown.id),
            record.shown.status,
            _at(record.shown.updated_at),
            _next("verification", record.shown.id, record.shown.status, record.announced),
        ]
        for record in presentations.shelf(tenant.state).latest(ROWS)
    ]


def _next(kind: str, id_: str, status: str, announced: Sequence[EventType]) -> Markup:
    buttons = "".join(_button(event_type, id_) for event_type in possible(kind, status, announced))
    return Markup(f'<div class="next">{buttons}</div>')


def _template_rows(tenant: Tenant) -> list[list[str]]:
    return [
        [
            _code(template.id),
            template.format,
            _code(template.type),
            _at(template.archived_at) if template.archived_at else "",
        ]
        for template in templates.listed(tenant)
    ]


def _request_rows(tenant: Tenant) -> list[list[str]]:
    imported = {record.id for record in certificates.records(tenant.state).all()}
    return [
        [_code(request.id), _marked("prose", request.subject), "yes" if request.id in imported else "no"]
        for request in certificates.listed(tenant)
    ]


def _at(moment: datetime) -> Markup:
    """Return a time of day; its date shows when it is pointed at."""
    whole = f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return Markup(f'<time datetime="{whole}" title="{whole}">{moment.astimezone(UTC):%H:%M:%S} UTC</time>')
