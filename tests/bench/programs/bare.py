"""The limit: Starlette as its documentation shows it, reading the body and answering 202."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


async def receive(request: Request) -> Response:
    await request.body()
    return Response(status_code=202)


app = Starlette(routes=[Route("/webhooks", receive, methods=["POST"])])
