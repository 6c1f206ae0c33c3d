"""Templates become pages. Whatever is put into one is escaped; what is missing is an error and no empty place."""

from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

_LOOKS: Final = "credhook.console.ui"
_FAMILY: Final = "openid4vc."
_FILES: Final = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}


def page(request: Request, template: str, status: int = 200, *, title: str, **context: Any) -> HTMLResponse:
    """The page, with all that surrounds it."""
    around = {"title": title, "path": request.url.path, "session": getattr(request.state, "session", None)}
    text = _TEMPLATES.get_template(template).render(around | context)
    # An id that somebody else has written into Redis may be no Unicode.
    return HTMLResponse(text.encode(errors="backslashreplace"), status)


def fragment(template: str, **context: Any) -> str:
    """A part of a page, as the live ones are sent."""
    return _TEMPLATES.get_template(template).render(context)


def static_routes() -> list[Route]:
    """Style, script and icon, which are the same for everybody."""
    return [_static(name, media_type) for name, media_type in _FILES.items()]


def _static(name: str, media_type: str) -> Route:
    content = files(_LOOKS).joinpath(name).read_bytes()

    async def serve(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return Route(f"/{name}", serve)


def day_and_time(at: datetime | str) -> str:
    """As a table shows it, in UTC: `22 Nov 15:04:05`."""
    return f"{_moment(at):%d %b %H:%M:%S}"


def machine_time(at: datetime | str) -> str:
    """As programs read it, to the millisecond, and as it is shown to whoever points at it."""
    return _moment(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(at: datetime | str) -> datetime:
    return (datetime.fromisoformat(at) if isinstance(at, str) else at).astimezone(UTC)


def number(value: float | None) -> str:
    """With thin spaces between thousands; a question mark for what is not known."""
    return "?" if value is None else f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def short_type(name: str | None) -> str:
    """An event type without what all have in common."""
    return (name or "").removeprefix(_FAMILY)


def with_code(text: str) -> Markup:
    """Words in which what is to be typed stands in `backticks`."""
    parts = (
        Markup("<code>{}</code>").format(part) if odd % 2 else escape(part) for odd, part in enumerate(text.split("`"))
    )
    return Markup().join(parts)


_TEMPLATES: Final = Environment(
    loader=PackageLoader(_LOOKS), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_TEMPLATES.filters |= {
    "day_and_time": day_and_time,
    "machine_time": machine_time,
    "number": number,
    "short_type": short_type,
    "query": urlencode,
    "with_code": with_code,
}
