"""Why attempts fail: one line for all that fail alike."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from credhook.console.pages.ledger import Ledger
from credhook.console.pages.live import Streams
from credhook.console.ui.rendering import fragment, page
from credhook.worker.commands.history.causes import causes

#: Of those that have failed last.
_SHOWN = 200


def routes(ledger: Ledger, streams: Streams) -> list[Route]:
    """The page, and its live part."""
    read = partial(causes, retention=ledger.retention, limit=_SHOWN)

    async def part() -> tuple[str, bool]:
        return fragment("causes_part.html", causes=await ledger.ask(read)), True

    async def show(request: Request) -> Response:
        return page(request, "causes.html", title="Causes", causes=await ledger.ask(read))

    async def live(request: Request) -> Response:
        return streams.stream(request, part)

    return [Route("/causes", show), Route("/live/causes", live)]
