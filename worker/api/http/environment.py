"""The way to the platform as the environment describes it: the authorities that we trust, and the proxy."""

import functools
import os
import re
import ssl
import urllib.request
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

import certifi

#: A host of NO_PROXY with a port.
_HOST_AND_PORT: Final = re.compile(r"(\[[^]]+\]|[^:]+):(\d+)")
#: This machine needs no proxy, as in Go.
_HERE: Final = ("localhost", "127.0.0.0/8", "::1")


def proxy_for(origin: str) -> str:
    """Return the proxy that HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY name for this origin, or "".

    Raises:
        ValueError: The origin is none.
    """
    parts = urlsplit(origin)
    host, port = (parts.hostname or "").rstrip("."), parts.port or {"http": 80, "https": 443}[parts.scheme]
    variables = urllib.request.getproxies_environment()
    proxy = variables.get(parts.scheme) or variables.get("all") or ""
    exceptions = [*_HERE, *variables.get("no", "").replace(",", " ").split()]
    return "" if any(_is_excepted(host, port, exception) for exception in exceptions) else proxy


def _is_excepted(host: str, port: int, exception: str) -> bool:
    """Return True if an entry of NO_PROXY names the host: a host, a suffix, a range of addresses, or `*`."""
    if match := _HOST_AND_PORT.fullmatch(exception):
        if int(match[2]) != port:
            return False
        exception = match[1]
    name = exception.lower().strip("[]").removeprefix("*.").strip(".")
    try:
        address = ip_address(host)
    except ValueError:
        return name == "*" or f".{host}".endswith(f".{name}")
    with suppress(ValueError):
        return address in ip_network(name, strict=False)
    return name == "*"


def authorities() -> tuple[str | None, str | None]:
    """Return the file and the folder of the authorities that we trust: SSL_CERT_FILE and SSL_CERT_DIR, or certifi's."""
    file, folder = os.environ.get("SSL_CERT_FILE") or None, os.environ.get("SSL_CERT_DIR") or None
    return file if file or folder else certifi.where(), folder


def ssl_context() -> ssl.SSLContext:
    """Return the same trust for Python's own TLS.

    Raises:
        OSError: A file cannot be read.
    """
    file, folder = authorities()
    context = ssl.create_default_context(cafile=file, capath=folder)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13 sets it. libcurl takes such certificates.
    return context


#: One context for all that do not change it: to make it takes 10 ms.
shared_ssl_context = functools.cache(ssl_context)
