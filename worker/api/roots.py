"""The API's root: every request goes below it, or is not sent."""

from typing import Any

import httpx

from worker.api.operations import Call


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
        prefix = url.raw_path.decode("ascii").rstrip("/")
        if url.scheme not in {"http", "https"} or not url.host or url.userinfo or url.query or url.fragment:
            raise ValueError("the API's URL should be http:// or https://, a host and a path")
        self._origin = (url.scheme, url.raw_host, url.port)
        self._prefix = prefix
        self._text = f"{url.scheme}://{url.netloc.decode('ascii')}{prefix}"

    def url(self, call: Call[Any]) -> httpx.URL:
        """Return the call's URL.

        Raises:
            ValueError: It would not lead where the operation says.
        """
        target = f"{call.path}?{call.query}" if call.query else call.path
        url = httpx.URL(f"{self._text}{target}")
        if (url.scheme, url.raw_host, url.port) != self._origin or url.raw_path != f"{self._prefix}{target}".encode():
            raise ValueError(f"{call.operation.name}: the path leads elsewhere")
        return url
