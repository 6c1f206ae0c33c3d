"""Which proxy a request goes through, by HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY."""

import ipaddress
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple

import aiohttp
import yarl


class Proxy(NamedTuple):
    """Where a request goes first.

    Attributes:
        url: Without credentials; None where there is no proxy.
        headers: Those that are for the proxy alone.
    """

    url: yarl.URL | None = None
    headers: Mapping[str, str] | None = None


class UnsupportedProxy(Exception):
    """The environment names a proxy that does not speak HTTP, or something that is no URL."""


class ProxyFailed(Exception):
    """The proxy has not led to where the request was to go."""


class Proxies:
    """The proxies that the environment names, each looked up once."""

    def __init__(self) -> None:
        self._named = urllib.request.getproxies()
        self._by_server: dict[tuple[str, str | None, int | None], Proxy] = {}

    def on_the_way_to(self, url: yarl.URL) -> Proxy:
        """The proxy for a URL.

        Raises:
            UnsupportedProxy: It is none that could be used.
        """
        server = url.scheme, url.raw_host, url.port
        proxy = self._by_server.get(server)
        if proxy is None:
            proxy = self._by_server[server] = self._find(url.scheme, url.raw_host or "", url.port)
        return proxy

    def _find(self, scheme: str, host: str, port: int | None) -> Proxy:
        named = self._named.get(scheme) or self._named.get("all")
        if not named or _is_this_host(host) or urllib.request.proxy_bypass(f"{host}:{port}"):
            return Proxy()
        try:
            url = yarl.URL(named if "://" in named else f"http://{named}")
            if url.scheme not in {"http", "https"} or not url.host:
                raise UnsupportedProxy
            if url.user is None and url.password is None:
                return Proxy(url)
            credentials = aiohttp.encode_basic_auth(url.user or "", url.password or "")
        except ValueError:  # Its words can quote the URL.
            raise UnsupportedProxy from None
        return Proxy(url.with_user(None), {"Proxy-Authorization": credentials})


def _is_this_host(host: str) -> bool:
    """As Go has it: what this host says to itself needs no proxy, whether or not NO_PROXY says so."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
