"""The API's root: every request goes below it, or is not sent."""

import re
from typing import Any

import httpx

from credhook.worker.api.errors import InvalidRequest
from credhook.worker.api.operations import Call

#: A host as it goes over the wire. httpx itself would send spaces, percent-encoded.
_HOST = re.compile(rb"[A-Za-z0-9._:-]+")

_LARGEST_PORT = 65_535


class Root:
    """Origin and path prefix of the API.

    httpx resolves `..` in a path and lets an absolute URL win over its base URL, so the URL is put together here, and
    compared with what was put together.
    """

    def __init__(self, api_url: str) -> None:
        """Take the root apart.

        Raises:
            ValueError: It is not an absolute http or https URL, or holds more than origin and path.
        """
        try:
            url = httpx.URL(api_url)
        except httpx.InvalidURL as error:
            raise ValueError(f"the API's URL is not one: {error}") from None
        plain = url.scheme in {"http", "https"} and not url.userinfo and not url.query and not url.fragment
        if not plain or not _HOST.fullmatch(url.raw_host) or (url.port or 0) > _LARGEST_PORT:
            raise ValueError("the API's URL should be http:// or https://, a host and a path")
        self._origin = (url.scheme, url.raw_host, url.port)
        self._prefix = url.raw_path.decode("ascii").rstrip("/")
        self._text = f"{url.scheme}://{url.netloc.decode('ascii')}{self._prefix}"

    def url(self, call: Call[Any]) -> httpx.URL:
        """Return the call's URL.

        Raises:
            InvalidRequest: It would not lead where the operation says, which is due to a path in the settings.
        """
        target = f"{call.path}?{call.query}" if call.query else call.path
        url = httpx.URL(f"{self._text}{target}")
        if (url.scheme, url.raw_host, url.port) != self._origin or url.raw_path != f"{self._prefix}{target}".encode():
            raise InvalidRequest(f"{call.operation.name}: its path leads elsewhere", operation=call.operation.name)
        return url
