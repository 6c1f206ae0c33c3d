"""From where a request may come: what keeps pages of other sites from using the console through a browser. Pure."""

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

#: Methods that change nothing.
_SAFE: Final = frozenset({"GET", "HEAD"})


def objection(method: str, headers: Headers, url: str | None) -> str | None:
    """Why a request is refused, or None.

    A page that has pointed its own name at this machine shows that name in `Host`, and it has no way to point an
    address. A page that posts across sites shows itself in `Origin` and `Sec-Fetch-Site`; each browser of today sends
    one of them at least with what it posts.

    `url` is where browsers reach the console besides this machine's addresses, if that is known.
    """
    host = headers.get("host", "")
    name = _name(host)
    if not (name == "localhost" or _address(name) or (url and name == urlsplit(url).hostname)):
        return "The Host header names a host that this console does not know; CREDHOOK_CONSOLE_URL says which it is."
    if method in _SAFE:
        return None
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None and site is None:
        return "The request does not say from which page it comes."
    if site not in {None, "same-origin"} or origin not in {None, f"http://{host}", url}:
        known = f"CREDHOOK_CONSOLE_URL says {url}" if url else "CREDHOOK_CONSOLE_URL is not set"
        return f"The request comes from a page of another origin. If that is the console's, behind a proxy: {known}."
    return None


def is_loopback(name: str) -> bool:
    """Whether a host name or address means this machine and no other."""
    address = _address(name)
    return address.is_loopback if address else name == "localhost"


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # Such as unbalanced brackets.
        return ""
