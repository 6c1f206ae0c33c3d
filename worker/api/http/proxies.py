"""Find the proxy of a request by HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY."""

import ipaddress
import urllib.request
from urllib.parse import urlsplit


class UnsupportedProxy(Exception):
    """The environment names a proxy that does not speak HTTP, or its URL is not valid."""


class Proxies:
    """The proxies that the environment names. Each origin is looked up once."""

    def __init__(self) -> None:
        self._named = urllib.request.getproxies()
        self._by_origin: dict[str, str | None] = {}

    def url_for(self, origin: str) -> str | None:
        """Return the URL of the proxy, which may hold credentials, or None if there is no proxy.

        Raises:
            UnsupportedProxy: The proxy cannot be used.
        """
        if origin not in self._by_origin:
            self._by_origin[origin] = self._find(origin)
        return self._by_origin[origin]

    def _find(self, origin: str) -> str | None:
        parts = urlsplit(origin)
        named = self._named.get(parts.scheme) or self._named.get("all")
        host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]
        if not named or _is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{port}"):
            return None
        url = named if "://" in named else f"http://{named}"
        try:
            proxy = urlsplit(url)
            usable = proxy.scheme in {"http", "https"} and proxy.hostname and proxy.port != 0
        except ValueError:
            usable = False
        if not usable:  # Raised outside of the handler: the error there can quote the URL.
            raise UnsupportedProxy
        return url


def _is_loopback(host: str) -> bool:
    """Return True for this machine, which needs no proxy, as in Go."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
