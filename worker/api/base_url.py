"""The API's base URL: every request goes below it, or is not sent."""

import re
from typing import Any, Final

import httpx

from credhook.worker.api.errors import InvalidRequest
from credhook.worker.api.operations import Call

#: A host as it goes over the wire. httpx itself would send spaces, percent-encoded.
_HOST: Final = re.compile(rb"[A-Za-z0-9._:-]+")
_LARGEST_PORT: Final = 65_535

#: Path and query of RFC 3986, 3.3 and 3.4, as they go over the wire.
_TARGET: Final = re.compile(r"(?P<path>/[\w.~!$&'()*+,;=:@%/-]*)(\?[\w.~!$&'()*+,;=:@%/?-]*)?", re.ASCII)
#: A segment that climbs, for whoever decodes it first as well.
_CLIMBS: Final = re.compile(r"/(\.|%2e){1,2}(/|$)", re.IGNORECASE)


class BaseUrl:
    """Origin and path prefix of the API."""

    def __init__(self, api_url: str) -> None:
        """Take the URL apart.

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
        self._text = f"{url.scheme}://{url.netloc.decode('ascii')}{url.raw_path.decode('ascii').rstrip('/')}"

    def url(self, call: Call[Any]) -> str:
        """Return the call's URL. It is sent as it is: nothing in it is resolved or encoded once more.

        Raises:
            InvalidRequest: It would not lead where the operation says, which is due to a path in the settings.
        """
        target = f"{call.path}?{call.query}" if call.query else call.path
        plain = _TARGET.fullmatch(target)
        if plain is None or _CLIMBS.search(plain["path"]):
            raise InvalidRequest(f"{call.operation.name}: its path leads elsewhere", operation=call.operation.name)
        return self._text + target
