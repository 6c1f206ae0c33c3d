"""The worker's settings, read once from the environment into a frozen object."""

import os
import ssl
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from credhook.events import ISSUANCE, PRESENTATION
from credhook.settings import ExistingFile, QueueSettings, Settings, StoreSettings, check_certificate, matching


def _http_url(value: str) -> str:
    """Refuse a URL that cannot be called, and drop the trailing slash so that paths can be appended."""
    parts = urlsplit(value)
    is_plain = parts.hostname and parts.port != 0 and not (parts.query or parts.fragment or "@" in value)
    if parts.scheme not in {"http", "https"} or not is_plain:
        raise ValueError("should be an http:// or https:// URL without credentials, query or fragment")
    return value.rstrip("/")


def _separated_by(separator: str | None) -> BeforeValidator:
    """Split a text at the separator, or at white space if it is None, and drop empty parts."""
    return BeforeValidator(
        lambda value: tuple(filter(None, map(str.strip, value.split(separator)))) if isinstance(value, str) else value
    )


HttpUrl = Annotated[str, AfterValidator(_http_url)]
#: Segments of RFC 3986, 3.3, with nothing that is encoded or resolved.
DetailPath = Annotated[
    str,
    matching(
        r"(?=[^{}]*\{id\}[^{}]*$)(/(?!\.{1,2}(/|$))([A-Za-z0-9_.~!$&'()*+,;=:@-]|\{id\})+)+",
        "should be a path that begins with /, holds {id} once, and has no . or .. as a part",
    ),
]
#: RFC 6749, 3.3.
_SCOPE: Final = r"[\x21\x23-\x5b\x5d-\x7e]+"
Scope = Annotated[
    str,
    matching(
        f"{_SCOPE}( {_SCOPE})*",
        "should be scopes of RFC 6749: visible ASCII without quotes and backslashes, one space between",
    ),
]
#: RFC 8707, 2.
ResourceUri = Annotated[
    str,
    matching(
        r"[A-Za-z][A-Za-z0-9+.-]*:[\x21\x22\x24-\x7e]+",
        "should be absolute URIs without a fragment, separated by spaces",
    ),
]


class PlatformSettings(Settings):
    """Settings of the platform's API and of our credentials. `credhook endpoints` and `credhook api` need no others."""

    api_url: HttpUrl = Field(
        description="Root of the platform's API, `{base_url}` in its specification.",
    )
    token_url: HttpUrl = Field(
        description="The identity provider's token endpoint, whole.",
    )
    client_id: str = Field(description="OAuth 2.0 client id.")
    client_secret: SecretStr = Field(description="OAuth 2.0 client secret.")
    token_auth: Literal["post", "basic"] = Field(
        "post",
        description="How client id and secret go to the token endpoint: `post` in the form (`client_secret_post`), "
        "`basic` in a header (`client_secret_basic`).",
    )
    scope: Scope | None = Field(
        None,
        description="Scopes that the token is asked for, separated by spaces. Default: what the server gives.",
    )
    audience: str | None = Field(
        None,
        description="Audience that the token is asked for, where the server wants one.",
    )
    resource: Annotated[tuple[ResourceUri, ...], NoDecode, _separated_by(None)] = Field(
        (),
        description="Absolute URIs that the token is asked for (RFC 8707), separated by spaces.",
    )
    client_certfile: ExistingFile | None = Field(
        None,
        description="PEM certificate chain that the platform and its token endpoint are shown, where they ask for one.",
    )
    client_keyfile: ExistingFile | None = Field(
        None,
        description="PEM private key of that certificate, not encrypted, if it is not in the same file.",
    )
    issuance_path: DetailPath = Field(
        ISSUANCE.path,
        description="Path of an issuance's details below the API URL.",
    )
    presentation_path: DetailPath = Field(
        PRESENTATION.path,
        description="Path of a presentation's details below the API URL.",
    )
    fetch_timeout: float = Field(
        10.0,
        gt=0,
        le=3_600,
        allow_inf_nan=False,
        description="Seconds that one request to the platform may take, an hour at most.",
    )
    match_ids: bool = Field(
        True,
        description="`0` accepts details that carry another id than the one asked for, "
        "from a platform that names them otherwise.",
    )

    @model_validator(mode="after")
    def _certificate_is_usable(self) -> Self:
        check_certificate(self.client_certfile, self.client_keyfile, "CLIENT")
        if trusted := os.environ.get("SSL_CERT_FILE"):
            try:
                ssl.create_default_context(cafile=trusted)
            except OSError:
                raise ValueError(f"SSL_CERT_FILE: {trusted} should be a readable file of PEM certificates") from None
        return self


class EndpointSettings(QueueSettings):
    """Settings of our endpoint on the platform. `credhook endpoints plan`, `apply` and `doctor` need them."""

    public_url: Annotated[
        str,
        matching(r"https://[^\s/?#@]+(/[^\s?#]*)?", "should be an https:// URL without credentials, query or fragment"),
    ] = Field(
        description="The receiver's https URL as the platform reaches it, path and path secret included.",
    )


class HandlerSettings(Settings):
    """Setting of the handlers to load. `credhook handlers` needs no other."""

    handlers: Annotated[tuple[str, ...], NoDecode, _separated_by(",")] = Field(
        (),
        description="`module` or `module:object`, comma-separated. "
        "Default: every `credhook.handlers` entry point that is installed, or else a handler that logs.",
    )


class WorkerSettings(PlatformSettings, HandlerSettings, StoreSettings):
    """Everything `credhook worker` reads."""

    handler_timeout: float = Field(
        60.0,
        gt=0,
        description="Seconds that one handler may take for one event.",
    )
    max_attempts: int = Field(
        12,
        ge=1,
        le=100,
        description="Attempts at one event before it is kept as `dead`. The default ends after 8 hours on average.",
    )
    concurrency: int = Field(
        100,
        ge=1,
        le=1_000,
        description="Events that one worker process has under way at most.",
    )
    grace: float = Field(
        20.0,
        ge=0,
        le=3_600,
        description="Seconds that events under way get after SIGTERM; then they are handed back to the queue.",
    )
    lease: float = Field(
        15.0,
        ge=1,
        le=300,
        description="Seconds that a claim lasts unless renewed. The events of a dead process are requeued sooner: when "
        "its supervisor sees it die, or after 6 seconds of silence (0.4 of this if that is more).",
    )
    rate: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Requests per second that all workers together make to the platform, with bursts of one second's "
        "worth; while Redis does not answer, no new ones. Default: no limit but the platform's own.",
    )
    snapshot_key: Annotated[
        SecretStr | None,
        # 32 hexadecimal digits are 128 bits.
        matching(r"\s*\S{32,}(\s+\S{32,})*\s*", "should be keys of 32 or more characters, separated by spaces"),
    ] = Field(
        None,
        description="Keeps presented data sealed in Redis, for a day at most, until every handler has run: 32 or more "
        "random characters. Of several, separated by spaces, the first seals and all open. Default: it is not kept.",
    )
