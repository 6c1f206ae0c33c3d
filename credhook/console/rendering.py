"""Pages from templates. Values are escaped; a missing value is an error."""

from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

_FAMILY: Final = "openid4vc."
_FILES: Final = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}


def page(request: Request, template: str, status: int = 200, *, title: str, **context: Any) -> HTMLResponse:
    """Render a whole page, with its frame."""
    around = {"title": title, "path": request.url.path, "session": getattr(request.state, "session", None)}
    text = _TEMPLATES.get_template(template).render(around | context)
    # An id in Redis may hold bytes that are not Unicode.
    return HTMLResponse(text.encode(errors="backslashreplace"), status)


def fragment(template: str, **context: Any) -> str:
    """Render a part of a page, for live updates."""
    return _TEMPLATES.get_template(template).render(context)


def static_routes() -> list[Route]:
    """Return the routes of style, script and icon."""
    return [_static(name, media_type) for name, media_type in _FILES.items()]


def _static(name: str, media_type: str) -> Route:
    content = files("credhook.console").joinpath("ui", name).read_bytes()

    async def serve(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return Route(f"/{name}", serve)


def day_and_time(at: datetime | str) -> str:
    """Format a time for a table, in UTC: `22 Nov 15:04:05`."""
    return f"{_moment(at):%d %b %H:%M:%S}"


def machine_time(at: datetime | str) -> str:
    """Format a time as ISO 8601 in UTC, to the millisecond."""
    return _moment(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(at: datetime | str) -> datetime:
    return (datetime.fromisoformat(at) if isinstance(at, str) else at).astimezone(UTC)


def number(value: float | None) -> str:
    """Format a number with thin spaces between thousands; `?` if it is None."""
    return "?" if value is None else f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def short_type(name: str | None) -> str:
    """Return an event type without its common prefix."""
    return (name or "").removeprefix(_FAMILY)


def with_code(text: str) -> Markup:
    """Turn `backticks` into code elements."""
    parts = (
        Markup("<code>{}</code>").format(part) if odd % 2 else escape(part) for odd, part in enumerate(text.split("`"))
    )
    return Markup().join(parts)


_TEMPLATES: Final = Environment(
    loader=PackageLoader("credhook.console", "ui/templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "day_and_time": day_and_time,
    "machine_time": machine_time,
    "number": number,
    "short_type": short_type,
    "query": urlencode,
    "with_code": with_code,
}
