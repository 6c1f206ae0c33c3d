"""The transports that a table of tests runs over, and clients over them."""

import asyncio
from pathlib import Path
from typing import Any, Final

import httpx

from credhook.worker.api.client import Api, AsyncApi, Sender
from credhook.worker.api.http.exchange import Transport
from credhook.worker.api.http.httpx_transport import HttpxTransport, Routes
from credhook.worker.api.http.transport import CurlTransport
from credhook.worker.api.token import ClientCredentials

#: What `CREDHOOK_HTTP_CLIENT` may name.
BOTH: Final = ("libcurl", "httpx")
#: With the kind of client that works in threads.
ALL: Final = (*BOTH, "httpx in threads")


def transport_of(kind: str, timeout: float = 10.0, *, certfile: Path | None = None) -> Transport:
    """Return a transport of this kind, with the trust and the proxies of the environment."""
    if kind == "libcurl":
        return CurlTransport(timeout, certfile=certfile)
    if kind == "httpx":
        return HttpxTransport(httpx.AsyncClient(transport=Routes(certfile), trust_env=False), timeout)
    return HttpxTransport(httpx.Client(trust_env=False), timeout)


def api_over(
    kind: str | Transport, url: str, auth: ClientCredentials, *, timeout: float = 10.0, **options: Any
) -> AsyncApi:
    """Return a client over a transport."""
    transport = transport_of(kind, timeout) if isinstance(kind, str) else kind
    return AsyncApi(Sender(url, auth, transport, **options))


def for_threads(api: AsyncApi) -> Api:
    """Return a client for threads that sends its calls as this client does, on the running loop."""
    return Api(sender_of(api), asyncio.get_running_loop())


def sender_of(api: Api | AsyncApi) -> Any:
    """Return what sends the calls of a client, which authors do not see."""
    return vars(api)["_sender"]
