"""The settings of every process, read once from its environment, and messages for wrong and unknown settings.

One module holds all classes, so that every command can tell whether a variable of the environment is a setting.
"""

import difflib
import json
import os
import re
import shlex
import ssl
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SecretsSettingsSource, SettingsConfigDict, SettingsError

from credhook.events import ISSUANCE, PRESENTATION
from credhook.store.address import RedisAddress
from credhook.urls import checked_url

if TYPE_CHECKING:
    from credhook.store.store import AsyncStore, SyncStore
    from credhook.webhook_keys import Key

#: The variable that names the folder of secrets; systemd sets it. Each file in the folder has the name of a setting.
_FOLDER: Final = "CREDENTIALS_DIRECTORY"
#: Removed around a value: blanks, line ends, byte order marks, characters of no width.
_AROUND: Final = re.compile(r"^[\s\ufeff\u200b\u2060]+|[\s\ufeff\u200b\u2060]+$")
#: A value between quotation marks.
_QUOTED: Final = re.compile(r"""(?s)["'`\xab\xbb\u2018-\u201f].*["'`\xab\xbb\u2018-\u201f]""")
#: Kubernetes sets these in every container for a Service whose name begins with `credhook`.
_KUBERNETES_VARIABLES: Final = re.compile(r"CREDHOOK_(\w+_)?(SERVICE_(HOST|PORT)\w*|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)")


V = TypeVar("V", bound=str | SecretStr | None)


def matching(pattern: str, message: str) -> AfterValidator:
    """Return a validator: the whole text should match the pattern. An optional setting may be None."""

    def check(value: V) -> V:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if text is not None and not re.fullmatch(pattern, text):
            raise ValueError(message)
        return value

    return AfterValidator(check)


def _is_file(path: Path) -> Path:
    with suppress(OSError):  # A whole certificate, for example, is too long for a path.
        if path.is_file():
            return path
    raise ValueError("should be the path of a file")


#: The path of an existing file.
ExistingFile = Annotated[Path, AfterValidator(_is_file)]


def check_certificate(certfile: Path | None, keyfile: Path | None, part: str) -> None:
    """Try to load a PEM certificate chain, if there is one, with its key, which may be in the same file.

    `part`: the middle of the names of the settings, `CREDHOOK_…_CERTFILE` and `CREDHOOK_…_KEYFILE`.

    Raises:
        ValueError: the files do not match, or cannot be read. The message names the setting.
    """
    if certfile is None and keyfile is not None:
        raise ValueError(f"CREDHOOK_{part}_CERTFILE: should be set where CREDHOOK_{part}_KEYFILE is")
    if certfile is not None:
        try:
            # Without a password here, OpenSSL would ask the terminal for the password of an encrypted key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certfile, keyfile, password="")
        except OSError as error:
            raise ValueError(
                f"CREDHOOK_{part}_CERTFILE: {certfile} should be a readable PEM certificate chain, with its key, not "
                f"encrypted, in the same file or in CREDHOOK_{part}_KEYFILE{f' ({keyfile})' if keyfile else ''} "
                f"({type(error).__name__})"
            ) from None


def valid_until(certfile: Path) -> datetime:
    """Return when the first certificate of the file expires, in UTC. Peers see that certificate.

    Raises:
        OSError, ValueError: the file cannot be read, or holds no certificate.
    """
    # Most processes have no certificate and save the memory.
    from cryptography import x509

    return x509.load_pem_x509_certificates(certfile.read_bytes())[0].not_valid_after_utc


def _checked_redis(value: SecretStr) -> SecretStr:
    RedisAddress.parse(value.get_secret_value())
    return value


#: Marks a setting that holds several values with blanks between them. Line breaks count as blanks.
_WORDS: Final = "several values"


class _SecretFiles(SecretsSettingsSource):
    """Reads settings from the files of a folder. A file that cannot be read is an error that names it."""

    def __call__(self) -> dict[str, Any]:
        with _error_of(_FOLDER, self.secrets_dir, "folder"):
            return super().__call__()

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        name = str(field.validation_alias)
        with _error_of(name, f"{self.secrets_dir}/{name}", "file of UTF-8 text"):
            text, key, is_complex = super().get_field_value(field, field_name)
        return text or None, key, is_complex


@contextmanager
def _error_of(name: str, path: object, kind: str) -> Iterator[None]:
    """Turn an error or a warning of pydantic-settings into an error of setting `name`, without any part of the file."""
    try:
        with warnings.catch_warnings(action="error", category=UserWarning):
            yield
    except (OSError, UnicodeError, SettingsError, UserWarning) as error:
        if isinstance(error.__cause__, ValidationError):
            raise error.__cause__ from None
        reason = str(error) if isinstance(error, UserWarning | SettingsError) else type(error).__name__
        shown = {"path": str(path), "kind": kind, "reason": reason}
        message = PydanticCustomError("secret", "{path} should be a readable {kind} ({reason})", shown)
        details = InitErrorDetails(type=message, loc=(name,), input=None)
        raise ValidationError.from_exception_data("Settings", [details]) from None


def names_set() -> set[str]:
    """Return the names of all environment variables that have a value, and of the files that hold secrets.

    Raises:
        ValidationError: the folder of secrets cannot be read.
    """
    folder = os.environ.get(_FOLDER)
    with _error_of(_FOLDER, folder, "folder"):
        files = {path.name.upper() for path in Path(folder).iterdir() if path.is_file()} if folder else set()
    return files | {name for name, value in os.environ.items() if value}


def join_dev_session(*, unless: Literal["REDIS_URL", "CREDHOOK_API_URL"]) -> None:
    """Take the settings of the `credhook dev` that runs in the current folder, unless the setting `unless` has a value.

    Settings that have a value are left alone. With CREDHOOK_API_URL, REDIS_URL is not taken, because an application
    that needs the API alone may have a REDIS_URL of its own.
    """
    taken = names_set()
    if unless in taken:
        return
    sessions = list[tuple[float, Path, str]]()
    for path in Path().glob(".credhook-*/env"):
        with suppress(FileNotFoundError):  # The session ends at this moment.
            if (status := path.stat()).st_uid == os.getuid():
                sessions.append((status.st_mtime, path, path.read_text(encoding="utf-8")))
    if sessions:
        _, session, text = max(sessions)
        for setting in shlex.split(text):
            name, _, value = setting.partition("=")
            if name.startswith(("CREDHOOK_", unless)) and name not in taken:
                os.environ[name] = value
        ended = "delete its folder if `dev` has ended"
        sys.stderr.write(f"credhook: with the settings of `credhook dev`, {session}; {ended}\n")


class Settings(BaseSettings):
    """Settings from the environment. The variable of a field is `CREDHOOK_` and its name, unless the field names it.

    A value is cleaned once, before it is checked, so that the process uses the text that was checked.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        env_ignore_empty=True,
        hide_input_in_errors=True,
        # A process needs the names of all settings, but only the validators of its own settings.
        defer_build=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Name the variables of the fields. An alias generator would run when validators are built."""
        super().__pydantic_init_subclass__(**options)
        for name, field in cls.model_fields.items():
            field.validation_alias = field.validation_alias or f"CREDHOOK_{name.upper()}"

    @classmethod
    def settings_customise_sources(cls, settings_cls: type[BaseSettings], *_: Any, **sources: Any) -> tuple[Any, ...]:
        """Return the sources of values: the environment, then files that are named as the variables."""
        files = _SecretFiles(settings_cls, os.environ.get(_FOLDER) or None)
        return sources["init_settings"], sources["env_settings"], files

    @model_validator(mode="before")
    @classmethod
    def _strip(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Remove what editors, shells and YAML leave around a value. An empty value counts as not set."""
        texts = {name: _AROUND.sub("", value) if isinstance(value, str) else value for name, value in values.items()}
        return {name: value for name, value in texts.items() if value != ""}

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_hidden_characters(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str):
            return value
        if _QUOTED.fullmatch(value):
            raise ValueError("should have no quotation marks around it")
        if _WORDS in cls.model_fields[str(info.field_name)].metadata:
            value = " ".join(value.split())
        if hidden := next((character for character in value if not character.isprintable()), ""):
            raise ValueError(f"should be one line of visible characters, without U+{ord(hidden):04X}")
        return value


class LogSettings(Settings):
    """Settings of log lines."""

    log: Literal["console", "json"] | None = Field(
        None,
        description="`console` or `json`. Default: `console` on a terminal, `json` elsewhere.",
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
    ] = Field("info", description="`debug`, `info`, `warning` or `error`.")


class QueueSettings(Settings):
    """The name that all processes and endpoints of one deployment share."""

    queue: str = Field(
        "credhook",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Name of the RQ queue between receiver and workers. Each deployment needs its own queue.",
    )


class StoreSettings(QueueSettings):
    """The settings that all processes share: Redis, queue, retention, admin listener."""

    redis_url: Annotated[SecretStr, AfterValidator(_checked_redis)] = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        validation_alias="REDIS_URL",
        description="The Redis that holds the store and the queue: `redis://`, `rediss://`, `unix://`, or "
        "`redis+sentinel://host:port,host:port/service/db`.",
    )
    sentinel_username: str | None = Field(None, description="User of Sentinels that have users.")
    sentinel_password: SecretStr | None = Field(
        None, description="Password of the Sentinels, if it is not the one in `REDIS_URL`."
    )
    redis_certfile: ExistingFile | None = Field(None, description="PEM certificate chain for a Redis that asks for it.")
    redis_keyfile: ExistingFile | None = Field(
        None, description="PEM private key of that chain, if not in the same file."
    )
    retention: int = Field(
        7 * 86_400,
        ge=3_600,
        le=3_650 * 86_400,
        description="Seconds that a settled event is remembered, and its duplicates recognised.",
    )
    admin: Annotated[str | None, matching(r".+:[1-9]\d{0,4}", "should be host:port")] = Field(
        None,
        description="`host:port` of the listener for health, readiness by name, and metrics. Default: off.",
    )

    @model_validator(mode="after")
    def _redis_certificate_is_usable(self) -> Self:
        check_certificate(self.redis_certfile, self.redis_keyfile, "REDIS")
        if self.redis_certfile and not self._redis.tls:
            raise ValueError("CREDHOOK_REDIS_CERTFILE: is used over TLS alone; REDIS_URL should be rediss://")
        if (self.sentinel_username or self.sentinel_password) and not self._redis.service:
            raise ValueError(
                "CREDHOOK_SENTINEL_PASSWORD: is for Sentinels alone; REDIS_URL should be redis+sentinel://"
            )
        if self.sentinel_username and not self.sentinel_password:
            raise ValueError("CREDHOOK_SENTINEL_PASSWORD: should be set where CREDHOOK_SENTINEL_USERNAME is")
        return self

    @property
    def _redis(self) -> RedisAddress:
        address = RedisAddress.parse(self.redis_url.get_secret_value())
        return replace(
            address,
            certfile=self.redis_certfile,
            keyfile=self.redis_keyfile,
            sentinel_username=self.sentinel_username,
            sentinel_password=self.sentinel_password.get_secret_value() if self.sentinel_password else None,
        )

    @property
    def redis_address(self) -> str:
        """Return the address of Redis as it may be shown, without a password."""
        address = str(self._redis)
        return str(self.redis_url) if "@" in address else address  # An unencoded password may be in it: show stars.

    @field_serializer("redis_url")
    def _without_password(self, _: SecretStr) -> str:
        return self.redis_address

    def open_store(self) -> "AsyncStore":
        """Return the store, which connects at its first command."""
        from credhook.store.connection import open_redis
        from credhook.store.store import Store

        return Store(open_redis(self._redis), self.queue, retention=self.retention)

    def open_store_sync(self, **options: Any) -> "SyncStore":
        """Return the store for code that is not asynchronous; `options` are redis-py's."""
        from credhook.store.connection import open_redis_sync
        from credhook.store.store import Store

        return Store(open_redis_sync(self._redis, **options), self.queue, retention=self.retention)


class ReceiverSettings(StoreSettings):
    """Everything `credhook receiver` reads."""

    host: str = Field("127.0.0.1", validation_alias="HOST", description="Address that the receiver binds.")
    port: int = Field(8000, ge=0, le=65_535, validation_alias="PORT", description="Port that the receiver binds.")
    tls_certfile: ExistingFile | None = Field(
        None,
        description="PEM certificate chain; with it the receiver speaks HTTPS itself. Default: a proxy does.",
    )
    tls_keyfile: ExistingFile | None = Field(
        None,
        description="PEM private key of the certificate, if it is not in the same file.",
    )
    idle_seconds: float = Field(
        5.0,
        ge=1,
        le=3_600,
        description="Seconds that a connection may wait for its next request. Where a proxy or balancer reuses "
        "connections, it should keep them for less.",
    )
    webhook_path: Annotated[
        str,
        matching(r"(/[A-Za-z0-9._~-]+)+", "should begin with / and hold letters, digits and . _ ~ - between slashes"),
    ] = Field("/webhooks", description="Path that deliveries are posted to.")
    webhook_secrets: Annotated[SecretStr | None, _WORDS] = Field(
        None,
        description="Space-separated `whsec_…` (HMAC) and `whpk_…` (ed25519 public) keys; all are accepted, "
        "so that keys can be rotated.",
    )
    path_secret: Annotated[
        SecretStr | None,
        _WORDS,
        matching(
            r"[A-Za-z0-9_-]{22,128}( [A-Za-z0-9_-]{22,128})*",
            "should be 22 to 128 letters, digits, - and _; "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one",
        ),
    ] = Field(
        None,
        description="Unguessable last path segment, `/webhooks/<secret>`, for a sender that does not sign: "
        "22 or more letters, digits, `-` and `_`. Several may be set, separated by spaces; all are accepted.",
    )
    insecure: bool = Field(
        False,
        description="`1` starts the receiver with neither keys nor a path secret. For local trials only.",
    )
    tolerance: int = Field(
        300,
        ge=1,
        le=86_400,
        description="Seconds that a signature's timestamp may lie in the past or the future; less than half of "
        "`CREDHOOK_RETENTION`.",
    )
    max_body: int = Field(
        65_536,
        ge=1_024,
        le=1_048_576,
        description="Bytes that a delivery's body may have.",
    )
    durability: Annotated[
        str, matching(r"strict|standard|replicated(:[1-9])?", "should be strict, standard, replicated or replicated:N")
    ] = Field(
        "strict",
        description="What a 202 means: `strict` (on disk), `replicated` (on a replica; `replicated:2` on two) or "
        "`standard` (in memory).",
    )

    @field_validator("webhook_secrets")
    @classmethod
    def _keys_are_readable(cls, value: SecretStr | None) -> SecretStr | None:
        from credhook.webhook_keys import parse_key  # It imports cryptography, which other processes do not need.

        for number, text in enumerate(value.get_secret_value().split() if value else (), 1):
            try:
                parse_key(text)
            except ValueError as wrong:  # Name the key by its number, without any part of it.
                raise ValueError(f"key {number}: {wrong}") from None
        return value

    @model_validator(mode="after")
    def _strangers_are_refused(self) -> Self:
        # A timestamp may also lie in the future, so a delivery may be valid for twice the tolerance.
        if 2 * self.tolerance >= self.retention:
            raise ValueError(
                f"CREDHOOK_TOLERANCE: should be less than half of CREDHOOK_RETENTION, which is {self.retention} s: "
                "a captured delivery could be sent again once its id is forgotten"
            )
        if not (self.keys or self.path_secret or self.insecure):
            raise ValueError(
                "CREDHOOK_WEBHOOK_SECRETS: should hold at least one key, or CREDHOOK_PATH_SECRET a secret, "
                "to refuse strangers; CREDHOOK_INSECURE=1 starts without either"
            )
        check_certificate(self.tls_certfile, self.tls_keyfile, "TLS")
        return self

    @property
    def keys(self) -> tuple["Key", ...]:
        """Return the keys that verify signatures."""
        from credhook.webhook_keys import parse_key

        return tuple(map(parse_key, self.webhook_secrets.get_secret_value().split())) if self.webhook_secrets else ()


def _http_url(value: str) -> str:
    """Refuse a URL that cannot be called, and drop the trailing slash so that paths can be appended."""
    return checked_url(value, "http", "https").rstrip("/")


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
    _WORDS,
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
        description="Whole URL of the identity provider's token endpoint.",
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
        description="Scopes to request for the token, separated by spaces. Default: the server decides.",
    )
    audience: str | None = Field(
        None,
        description="Audience to request for the token, if the server needs it.",
    )
    resource: Annotated[tuple[ResourceUri, ...], NoDecode, _WORDS, _separated_by(None)] = Field(
        (),
        description="Resources to request for the token: absolute URIs (RFC 8707), separated by spaces.",
    )
    client_certfile: ExistingFile | None = Field(
        None,
        description="PEM certificate chain for the platform and its token endpoint, if they ask for it.",
    )
    client_keyfile: ExistingFile | None = Field(
        None,
        description="PEM private key of that chain, not encrypted, if it is not in the same file.",
    )
    issuance_path: DetailPath = Field(
        ISSUANCE.path,
        description="Path of an issuance's details below the API URL. The default is a guess: nothing specifies it.",
    )
    presentation_path: DetailPath = Field(
        PRESENTATION.path,
        description="Path of a presentation's details below the API URL. The default is a guess, too.",
    )
    fetch_timeout: float = Field(
        10.0,
        gt=0,
        le=3_600,
        allow_inf_nan=False,
        description="Seconds that one request to the platform may take, an hour at most.",
    )
    http_client: Literal["libcurl", "httpx"] = Field(
        "libcurl",
        description="What sends requests to the platform: `libcurl`, or `httpx` for its instrumentation. httpx opens a "
        "connection for each request.",
    )
    match_ids: bool = Field(
        True,
        description="`0` accepts details that carry another id than the requested id, "
        "from a platform that writes ids in another form there.",
    )

    @model_validator(mode="after")
    def _certificate_is_usable(self) -> Self:
        check_certificate(self.client_certfile, self.client_keyfile, "CLIENT")
        if trusted := os.environ.get("SSL_CERT_FILE"):
            try:
                ssl.create_default_context(cafile=trusted)
            except OSError:
                raise ValueError(f"SSL_CERT_FILE: {trusted} should be a readable file of PEM certificates") from None
        if (folders := os.environ.get("SSL_CERT_DIR")) and not any(map(os.path.isdir, folders.split(os.pathsep))):
            raise ValueError(f"SSL_CERT_DIR: {folders} should be a folder of PEM certificates")
        return self


class EndpointSettings(QueueSettings):
    """Settings of our endpoint on the platform. `credhook endpoints plan`, `apply` and `doctor` need them."""

    public_url: Annotated[str, AfterValidator(lambda value: checked_url(value, "https"))] = Field(
        description="The receiver's https URL as the platform reaches it, path and path secret included.",
    )


def public_url() -> str | None:
    """Return CREDHOOK_PUBLIC_URL, or None where it is not set.

    Raises:
        ValidationError: it is no https URL.
    """
    return EndpointSettings().public_url if "CREDHOOK_PUBLIC_URL" in names_set() else None


def _json_object(value: object) -> object:
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        if isinstance(parsed := json.loads(value), dict):
            return parsed
    raise ValueError('should be a JSON object: {"accounts.open_account": {"timeout": 90}}')


class HandlerSettings(Settings):
    """Settings of the handlers to load. `credhook handlers` needs no other."""

    handlers: Annotated[tuple[str, ...], NoDecode, _WORDS, _separated_by(",")] = Field(
        (),
        description="`module` or `module:object`, comma-separated. "
        "Default: every `credhook.handlers` entry point that is installed.",
    )
    handler_options: Annotated[dict[str, Any], NoDecode, BeforeValidator(_json_object)] = Field(
        {},
        description="JSON with options of single handlers that replace those in the code: `timeout`, `retries`, "
        '`concurrency`, `rate`. Such as `{"accounts.open_account": {"timeout": 90, "rate": "10/m"}}`.',
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
        description="Attempts of one handler at one event, or of the fetch of its details, before it is given up. The "
        "default ends after 8 hours on average.",
    )
    concurrency: int = Field(
        100,
        ge=1,
        le=1_000,
        description="Events that one worker process has in flight, at most.",
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
        "its supervisor sees it die, or after 6 seconds of silence (0.4 of the lease if that is longer). With less "
        "than 6, a blocked event loop loses its claims before its process is replaced.",
    )
    rate: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Requests that all workers together send to the platform in any second, at most. While Redis does "
        "not answer, they send none. Default: no limit until the platform answers 429, and then a rate found by trial.",
    )
    snapshot_key: Annotated[
        SecretStr | None,
        _WORDS,
        # 32 hexadecimal digits are 128 bits.
        matching(r"\S{32,}( \S{32,})*", "should be keys of 32 or more characters, separated by spaces"),
    ] = Field(
        None,
        description="Keeps presented data sealed in Redis, for a day at most, until every event of the presentation is "
        "done: 32 or more random characters. Several may be set, separated by spaces: the first seals, all open. "
        "Default: data is kept in the process's memory alone.",
    )


def _origin(value: str) -> str:
    if not (re.fullmatch(r"https://[^\s/?#@]+/?", value) and urlsplit(value).hostname):
        raise ValueError("should be an https:// URL without a path")
    return value.rstrip("/").lower()


class ConsoleSettings(StoreSettings):
    """Settings of `credhook console`. Its endpoints page also reads the settings of `credhook endpoints`."""

    password: Annotated[
        SecretStr | None,
        matching(r"(?s).{16,}", "should be 16 or more random characters, such as `openssl rand -hex 16` prints"),
    ] = Field(
        None,
        validation_alias="CREDHOOK_CONSOLE_PASSWORD",
        description="Password of the console: 16 or more random characters. Default: a new password at each start, in "
        "a link that the console prints.",
    )
    url: Annotated[str, AfterValidator(_origin)] | None = Field(
        None,
        validation_alias="CREDHOOK_CONSOLE_URL",
        description="The https URL of the console behind a proxy. Default: this machine's own addresses.",
    )


def in_force(settings: BaseSettings) -> dict[str, Any]:
    """Return the settings that differ from their defaults, by their variables, for the log. Secrets are stars."""
    shown, fields = settings.model_dump(mode="json"), type(settings).model_fields
    changed = [name for name, field in fields.items() if getattr(settings, name) != field.get_default()]
    return {str(fields[name].validation_alias): shown[name] for name in changed}


def settings_errors(invalid: ValidationError) -> list[str]:
    """Return a line for each wrong setting: its variable and what it should be. Its value may be a secret."""
    lines = []
    for error in invalid.errors(include_input=False, include_url=False):
        message = error["msg"].removeprefix("Value error, ")
        if error["type"] != "value_error":  # The words are pydantic's. They name neither unit nor form.
            message = "is not set, or empty" if error["type"] == "missing" else message
            message = ". ".join(filter(None, [message, _description(str(error["loc"][0]))]))
        lines.append(": ".join([*map(str, error["loc"][:1]), message]))
    return lines


def _description(variable: str, of: type[Settings] = Settings) -> str:
    """Return the first clause about a setting, or ""."""
    for field in of.model_fields.values():
        if field.validation_alias == variable:
            return re.split("[.;] ", field.description or "")[0].rstrip(".")
    return next(filter(None, (_description(variable, child) for child in of.__subclasses__())), "")


#: Variables that `credhook dev` sets for the processes that it starts. `credhook trigger` reads the second variable.
_DEV_VARIABLES: Final = frozenset({"CREDHOOK_DEV", "CREDHOOK_SANDBOX_URL"})


def known_settings(of: type[Settings] = Settings) -> frozenset[str]:
    """Return every variable with our prefix that a process reads."""
    names = {str(field.validation_alias) for field in of.model_fields.values()}
    return _DEV_VARIABLES.union(names, *map(known_settings, of.__subclasses__()))


def unknown_settings(environment: Iterable[str]) -> list[str]:
    """Return the variables that have our prefix but are not settings."""
    ours = {name: name.upper() for name in environment if name.upper().startswith("CREDHOOK_")}
    settings = known_settings()
    return sorted(
        name for name, upper in ours.items() if upper not in settings and not _KUBERNETES_VARIABLES.fullmatch(upper)
    )


def correction(name: str) -> str:
    """Return a message that a variable is not a setting, with the closest setting."""
    near = difflib.get_close_matches(name.upper(), sorted(known_settings()), n=1, cutoff=0.8)
    return f"{name} is not a setting; " + (f"did you mean {near[0]}?" if near else "deploy/README.md lists them")
