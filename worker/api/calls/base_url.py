"""The API's base URL: every request goes below it, or is not sent."""

import re
from typing import Any, Final

import yarl

from credhook.worker.api.calls.errors import InvalidRequest
from credhook.worker.api.calls.operations import Call

#: A host as it goes over the wire.
_HOST: Final = re.compile(r"[a-z0-9._:-]+")

_ENCODED: Final = "%[0-9A-Fa-f]{2}"
#: Path and query of RFC 3986, 3.3 and 3.4, as they go over the wire.
_TARGET: Final = re.compile(
    rf"(?P<path>/(?:[\w.~!$&'()*+,;=:@/-]++|{_ENCODED})*+)(\?(?:[\w.~!$&'()*+,;=:@/?-]++|{_ENCODED})*+)?", re.ASCII
)
#: Nearly all of them: nothing is encoded, nothing begins with a dot, so nothing climbs.
_ORDINARY: Final = re.compile(r"(?:/[\w~:-][\w.~:-]*+)++", re.ASCII)
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
            url = yarl.URL(api_url)
            host, port = url.raw_host or "", url.explicit_port
        except ValueError as error:
            raise ValueError(f"the API's URL is not one: {error}") from None
        plain = not url.raw_user and not url.raw_password and not url.raw_query_string and not url.raw_fragment
        if url.scheme not in {"http", "https"} or not plain or not _HOST.fullmatch(host):
            raise ValueError("the API's URL should be http:// or https://, a host and a path")
        authority = f"[{host}]" if ":" in host else host
        if port is not None and not url.is_default_port():
            authority += f":{port}"
        self._text = f"{url.scheme}://{authority}{url.raw_path.rstrip('/')}"

    def url(self, call: Call[Any]) -> str:
        """Return the call's URL. It is sent as it is: nothing in it is resolved or encoded once more.

        Raises:
            InvalidRequest: It would not lead where the operation says, which is due to a path in the settings.
        """
        target = f"{call.path}?{call.query}" if call.query else call.path
        if _ORDINARY.fullmatch(target):
            return self._text + target
        plain = _TARGET.fullmatch(target)
        if plain is None or _CLIMBS.search(plain["path"]):
            raise InvalidRequest(f"{call.operation.name}: its path leads elsewhere", operation=call.operation.name)
        return self._text + target
