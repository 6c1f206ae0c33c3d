"""What the token endpoint is asked: the client-credentials grant, and how the client proves who it is.

RFC 6749, 4.4 and 2.3.1; `resource` is RFC 8707; `audience` is what some servers want instead.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

import yarl
from pydantic import SecretStr

from credhook.worker.api.http.exchange import HEADERS, Request, Unsendable
from credhook.worker.api.oauth.method import Method

_HEADERS: Final = {**HEADERS, "Content-Type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Asks for a token.

    Attributes:
        url: The token endpoint, whole.
        client_id: OAuth client id.
        client_secret: OAuth client secret. Not shown.
        method: How both are sent.
        scope: Scopes, separated by spaces; empty for what the server gives without being asked.
        audience: Whom the token is for; empty to leave it out.
        resources: URIs that the token is for; empty to leave them out.
    """

    url: str
    client_id: str
    client_secret: SecretStr
    method: Method = "post"
    scope: str = ""
    audience: str = ""
    resources: tuple[str, ...] = ()

    @property
    def form(self) -> dict[str, str | Sequence[str]]:
        """What is posted."""
        form: dict[str, str | Sequence[str]] = {"grant_type": "client_credentials"}
        if self.method == "post":
            form |= {"client_id": self.client_id, "client_secret": self.client_secret.get_secret_value()}
        narrowed = {"scope": self.scope, "audience": self.audience, "resource": self.resources}
        return form | {name: value for name, value in narrowed.items() if value}

    @property
    def headers(self) -> dict[str, str]:
        """What is sent beside it."""
        return _HEADERS if self.method == "post" else _HEADERS | {"Authorization": f"Basic {self._basic()}"}

    def to_send(self) -> Request:
        """The request. To be granted a token twice does no harm.

        Raises:
            Unsendable: The URL is none, or something has characters that cannot be sent.
        """
        try:
            body = urlencode(self.form, doseq=True).encode("ascii")
            return Request("POST", str(yarl.URL(self.url)), self.headers, body, repeatable=True)
        except ValueError as error:
            raise Unsendable(type(error).__name__) from error

    def _basic(self) -> str:
        """Id and secret as the form's encoding has them, then joined: a colon in the id would end it early.

        A space is `%20` and not `+`: servers that only percent-decode read it as well.
        """
        pair = (self.client_id, self.client_secret.get_secret_value())
        return b64encode(":".join(quote(each, safe="") for each in pair).encode("ascii")).decode("ascii")
