"""Keeps web pages of other sites from driving the sandbox through a browser on this machine."""

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from credhook.sandbox.http.errors import Refusal, response


class Guard:
    """Refuses requests that a foreign page has made, before anything else looks at them."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            problem = objection(headers.get("host", ""), headers.get("origin"), self._hosts)
            if problem:
                await response(Refusal(403, problem))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def objection(host: str, origin: str | None, hosts: Collection[str]) -> str | None:
    """Return why a request is refused, or None.

    A page that has pointed its own name at this machine shows that name in `Host`, and it has no way to point
    an address; a page that posts across sites shows itself in `Origin`. Clients that are no browsers send none.

    `hosts` are names that are accepted besides `localhost` and addresses.
    """
    name = _name(f"//{host}")
    if not (name == "localhost" or _address(name) or name in hosts):
        return "The Host header is a name that this sandbox does not know; start it with --allowed-host NAME."
    if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
        return "The request comes from a page of another origin."
    return None


def is_loopback(name: str) -> bool:
    """Say whether a host name or address means this machine and no other."""
    address = _address(name)
    return address.is_loopback if address else name == "localhost"


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _name(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:  # Such as unbalanced brackets.
        return ""
