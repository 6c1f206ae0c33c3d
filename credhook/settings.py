"""Settings that all processes share, checks of values, and error messages for wrong and unknown settings."""

import difflib
import os
import re
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeVar

from pydantic import (
    AfterValidator,
    AliasGenerator,
    Field,
    SecretStr,
    ValidationError,
    field_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from credhook.store.address import RedisAddress

if TYPE_CHECKING:
    from credhook.store.store import AsyncStore, SyncStore

#: Every variable with our prefix that any process reads. A process imports only its own settings, so all are listed.
KNOWN: Final = frozenset(
    [
        "CREDHOOK_ADMIN",
        "CREDHOOK_API_URL",
        "CREDHOOK_AUDIENCE",
        "CREDHOOK_CLIENT_CERTFILE",
        "CREDHOOK_CLIENT_ID",
        "CREDHOOK_CLIENT_KEYFILE",
        "CREDHOOK_CLIENT_SECRET",
        "CREDHOOK_CONCURRENCY",
        "CREDHOOK_CONSOLE_SESSION",
        "CREDHOOK_CONSOLE_TOKEN",
        "CREDHOOK_CONSOLE_URL",
        "CREDHOOK_DEV",
        "CREDHOOK_DURABILITY",
        "CREDHOOK_FETCH_TIMEOUT",
        "CREDHOOK_GRACE",
        "CREDHOOK_HANDLERS",
        "CREDHOOK_HANDLER_TIMEOUT",
        "CREDHOOK_INSECURE",
        "CREDHOOK_ISSUANCE_PATH",
        "CREDHOOK_LEASE",
        "CREDHOOK_LOG",
        "CREDHOOK_LOG_LEVEL",
        "CREDHOOK_MATCH_IDS",
        "CREDHOOK_MAX_ATTEMPTS",
        "CREDHOOK_MAX_BODY",
        "CREDHOOK_PATH_SECRET",
        "CREDHOOK_PRESENTATION_PATH",
        "CREDHOOK_PUBLIC_URL",
        "CREDHOOK_QUEUE",
        "CREDHOOK_RATE",
        "CREDHOOK_REDIS_CERTFILE",
        "CREDHOOK_REDIS_KEYFILE",
        "CREDHOOK_RESOURCE",
        "CREDHOOK_RETENTION",
        "CREDHOOK_SANDBOX_URL",
        "CREDHOOK_SCOPE",
        "CREDHOOK_SNAPSHOT_KEY",
        "CREDHOOK_TLS_CERTFILE",
        "CREDHOOK_TLS_KEYFILE",
        "CREDHOOK_TOKEN_AUTH",
        "CREDHOOK_TOKEN_URL",
        "CREDHOOK_TOLERANCE",
        "CREDHOOK_WEBHOOK_PATH",
        "CREDHOOK_WEBHOOK_SECRETS",
    ]
)
#: Kubernetes sets these in every container for a Service whose name begins with `credhook`.
_OF_KUBERNETES: Final = re.compile(r"CREDHOOK_(\w+_)?(SERVICE_(HOST|PORT)\w*|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)")


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
    with suppress(OSError):  # A certificate itself, say, is too long for a name.
        if path.is_file():
            return path
    raise ValueError("should be the path of a file")


#: The path of a file that is there.
ExistingFile = Annotated[Path, AfterValidator(_is_file)]


def check_certificate(certfile: Path | None, keyfile: Path | None, whose: str) -> None:
    """Try to load a PEM certificate chain, if there is one, with its key, which may be in the same file.

    `whose`: what stands in the names of the settings, `CREDHOOK_…_CERTFILE` and `CREDHOOK_…_KEYFILE`.

    Raises:
        ValueError: the files do not match, or cannot be read. The message names the setting.
    """
    if certfile is None and keyfile is not None:
        raise ValueError(f"CREDHOOK_{whose}_CERTFILE: should be set where CREDHOOK_{whose}_KEYFILE is")
    if certfile is not None:
        try:
            # An encrypted key is refused, not asked about.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certfile, keyfile, password="")
        except OSError as error:
            raise ValueError(
                f"CREDHOOK_{whose}_CERTFILE: {certfile} should be a readable PEM certificate chain, with its key, not "
                f"encrypted, in the same file or in CREDHOOK_{whose}_KEYFILE{f' ({keyfile})' if keyfile else ''} "
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


def credentials() -> dict[str, Path]:
    """Return the files of the folder that `CREDENTIALS_DIRECTORY` names, as systemd does, by their names in upper case.

    Raises:
        ValidationError: the folder cannot be read.
    """
    folder = os.environ.get(variable := "CREDENTIALS_DIRECTORY")
    try:
        return {path.name.upper(): path for path in Path(folder).iterdir() if path.is_file()} if folder else {}
    except OSError as error:
        raise _unreadable(variable, f"{folder} should be a readable folder", error) from None


def _credential(name: str, path: Path) -> str:
    """Return the text of a credential. Editors end a file with a line break, which is no part of the secret."""
    try:
        return path.read_bytes().decode().rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        raise _unreadable(name, f"{path} should be a readable file of UTF-8 text", error) from None


def _unreadable(name: str, should: str, error: Exception) -> ValidationError:
    """Return the error. It holds no part of a file, which an error of decoding does."""
    message = PydanticCustomError("credential", "{should} ({error})", {"should": should, "error": type(error).__name__})
    return ValidationError.from_exception_data("Settings", [InitErrorDetails(type=message, loc=(name,), input=None)])


class Settings(BaseSettings):
    """Settings from the environment. The variable of a field is `CREDHOOK_` and its name, unless the field names it."""

    model_config = SettingsConfigDict(
        frozen=True,
        env_ignore_empty=True,
        hide_input_in_errors=True,
        alias_generator=AliasGenerator(validation_alias=lambda name: f"CREDHOOK_{name.upper()}"),
    )

    @classmethod
    def settings_customise_sources(cls, settings_cls: type[BaseSettings], *_: Any, **sources: Any) -> tuple[Any, ...]:
        """Return the sources of values: what the environment lacks may be in a credential of the variable's name."""
        files, names = EnvSettingsSource(settings_cls), {str(f.validation_alias) for f in cls.model_fields.values()}
        read = {name: _credential(name, path) for name, path in credentials().items() if name in names}
        files.env_vars = {name.lower(): text for name, text in read.items() if text}
        return sources["init_settings"], sources["env_settings"], files


class QueueSettings(Settings):
    """The name that all processes and endpoints of one deployment share."""

    queue: str = Field(
        "credhook",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Name of the RQ queue between receiver and workers. Each deployment needs one of its own.",
    )


class StoreSettings(QueueSettings):
    """The settings that all processes share: Redis, queue, retention, admin listener."""

    redis_url: Annotated[SecretStr, AfterValidator(_checked_redis)] = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        validation_alias="REDIS_URL",
        description="The Redis that holds the store and the queue: `redis://`, `rediss://`, `unix://`, or "
        "`redis+sentinel://host:port,host:port/service/db`.",
    )
    redis_certfile: ExistingFile | None = Field(None, description="PEM certificates for a Redis that asks for one.")
    redis_keyfile: ExistingFile | None = Field(None, description="Its PEM private key, if it is not in the same file.")
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
            raise ValueError("CREDHOOK_REDIS_CERTFILE: is shown over TLS alone; REDIS_URL should be rediss://")
        return self

    @property
    def _redis(self) -> RedisAddress:
        address = RedisAddress.parse(self.redis_url.get_secret_value())
        return replace(address, certfile=self.redis_certfile, keyfile=self.redis_keyfile)

    @property
    def redis_address(self) -> str:
        """Return the address of Redis as it may be shown, without a password."""
        address = str(self._redis)
        return str(self.redis_url) if "@" in address else address  # A password was not encoded.

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
        if error["type"] == "missing":
            message = "is not set, or empty; deploy/README.md says what it should be"
        lines.append(": ".join([*map(str, error["loc"][:1]), message]))
    return lines


def unknown_settings(environment: Iterable[str]) -> list[str]:
    """Return the variables that have our prefix but are not settings."""
    ours = {name: name.upper() for name in environment if name.upper().startswith("CREDHOOK_")}
    return sorted(name for name, upper in ours.items() if upper not in KNOWN and not _OF_KUBERNETES.fullmatch(upper))


def correction(name: str) -> str:
    """Return a message that a variable is not a setting, with the closest setting."""
    near = difflib.get_close_matches(name.upper(), sorted(KNOWN), n=1, cutoff=0.8)
    return f"{name} is not a setting; " + (f"did you mean {near[0]}?" if near else "deploy/README.md lists them")
