"""The start page: the records, and a button for every event. Plain HTML; needs no JavaScript."""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from credhook.sandbox.access import read_form
from credhook.sandbox.certificates import ImportedCertificate, SigningRequest
from credhook.sandbox.deliveries import DeliveryAttempt, PendingDelivery, Registration
from credhook.sandbox.events import EVENT_TYPES, PREFIX, possible
from credhook.sandbox.resources import EventRequest, IssuanceRecord, PresentationRecord, trigger_events
from credhook.sandbox.templates import list_templates
from credhook.sandbox.tenant import Faults, Tenant
from credhook.sandbox.users import UserRecord
from credhook.sandbox.wire import SandboxError

#: Rows of each table that grows.
ROWS = 20

#: The value of each fault while it is off, by its name on the wire.
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

_ENVIRONMENT = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters["short"] = lambda event_type: event_type.removeprefix(PREFIX)
_TEMPLATE = _ENVIRONMENT.from_string(files("credhook.sandbox").joinpath("page.html").read_text(encoding="utf-8"))


def routes(tenant: Tenant) -> list[Route]:
    """Return the route of the page. Its buttons post to it."""

    async def serve(request: Request) -> Response:
        if request.method != "POST":
            return HTMLResponse(render(tenant), headers=HEADERS)
        try:
            _press(tenant, dict(await read_form(request)))
        except SandboxError as problem:
            return HTMLResponse(render(tenant, str(problem)), problem.status, headers=HEADERS)
        except ValidationError:
            return HTMLResponse(render(tenant, "The form was not one of this page."), 400, headers=HEADERS)
        return RedirectResponse("/", 303)

    return [Route("/", serve, methods=["GET", "POST"])]


def _press(tenant: Tenant, form: dict[str, str]) -> None:
    """Switch one fault or all faults off, or make an event happen."""
    if form == {"clear": "all"}:
        tenant.faults.clear()
    elif form.keys() == {"clear"}:
        tenant.faults.change(Faults.model_validate({form["clear"]: OFF.get(form["clear"])}))
    else:
        trigger_events(tenant, EventRequest.model_validate(form))


def render(tenant: Tenant, problem: str = "") -> str:
    """Return the page."""
    state = tenant.state
    faults = tenant.faults.on.model_dump(by_alias=True)
    return _TEMPLATE.render(
        style=Markup(STYLE),  # noqa: S704  A file of ours.
        problem=problem,
        faults={name: value for name, value in faults.items() if value != OFF[name]},
        event_types=EVENT_TYPES,
        registrations=state.of(Registration).all(),
        under_way=state.of(PendingDelivery).latest(ROWS),
        count_under_way=state.of(PendingDelivery).count(),
        attempts=state.of(DeliveryAttempt).latest(ROWS),
        issuances=state.of(IssuanceRecord).latest(ROWS),
        presentations=state.of(PresentationRecord).latest(ROWS),
        possible=possible,
        templates=list_templates(tenant),
        requests=state.of(SigningRequest).all(),
        imported={record.id for record in state.of(ImportedCertificate).all()},
        users=state.of(UserRecord).count(),
    )
