"""Settings that all processes share, and error messages for wrong and unknown settings."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasGenerator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

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
        "CREDHOOK_MAX_CONNECTIONS",
        "CREDHOOK_PATH_SECRET",
        "CREDHOOK_PRESENTATION_PATH",
        "CREDHOOK_PUBLIC_URL",
        "CREDHOOK_QUEUE",
        "CREDHOOK_RATE",
        "CREDHOOK_REQUEST_TIMEOUT",
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


def _checked_redis(value: SecretStr) -> SecretStr:
    RedisAddress.parse(value.get_secret_value())
    return value


def _address(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r".+:[1-9]\d{0,4}", value):
        raise ValueError("should be host:port")
    return value


class Settings(BaseSettings):
    """Settings from the environment. The variable of a field is `CREDHOOK_` and its name, unless the field names it."""

    model_config = SettingsConfigDict(
        frozen=True,
        env_ignore_empty=True,
        hide_input_in_errors=True,
        alias_generator=AliasGenerator(validation_alias=lambda name: f"CREDHOOK_{name.upper()}"),
    )


class StoreSettings(Settings):
    """The settings that all processes share: Redis, queue, retention, admin listener."""

    redis_url: Annotated[SecretStr, AfterValidator(_checked_redis)] = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        validation_alias="REDIS_URL",
        description="The Redis that holds the store and the queue: `redis://`, `rediss://`, `unix://`, or "
        "`redis+sentinel://host:port,host:port/service/db`.",
    )
    queue: str = Field(
        "credhook",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Name of the RQ queue between receiver and workers.",
    )
    retention: int = Field(
        7 * 86_400,
        ge=3_600,
        le=3_650 * 86_400,
        description="Seconds that a settled event is remembered, and its duplicates recognised.",
    )
    admin: Annotated[str | None, AfterValidator(_address)] = Field(
        None,
        description="`host:port` of the listener for health, readiness by name, and metrics. Default: off.",
    )

    @property
    def redis_address(self) -> str:
        """Return the address of Redis as it may be shown, without a password."""
        return str(RedisAddress.parse(self.redis_url.get_secret_value()))

    def open_store(self) -> "AsyncStore":
        """Return the store, which connects at its first command."""
        from credhook.store.connection import open_redis
        from credhook.store.store import Store

        return Store(open_redis(self.redis_url.get_secret_value()), self.queue, retention=self.retention)

    def open_store_sync(self, **options: Any) -> "SyncStore":
        """Return the store for code that is not asynchronous; `options` are redis-py's."""
        from credhook.store.connection import open_redis_sync
        from credhook.store.store import Store

        redis = open_redis_sync(self.redis_url.get_secret_value(), **options)
        return Store(redis, self.queue, retention=self.retention)


def in_force(settings: BaseSettings) -> dict[str, Any]:
    """Return the settings that differ from their defaults, by their variables, for the log.

    Secrets are stars, URLs are without user, password and query.
    """
    set_ = ((field, getattr(settings, name)) for name, field in type(settings).model_fields.items())
    return {str(field.validation_alias): _shown(value) for field, value in set_ if value != field.get_default()}


def _shown(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return _shown_secret(value)
    if isinstance(value, tuple):
        return [_shown(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    return _shown_url(value) if isinstance(value, str) and "://" in value else value


def _shown_secret(value: SecretStr) -> str:
    """Return stars, or the address if the secret is the URL of Redis."""
    try:
        address = str(RedisAddress.parse(value.get_secret_value()))
    except ValueError:
        return str(value)
    return str(value) if "@" in address else address  # A password holds a character that should have been encoded.


def _shown_url(value: str) -> str:
    parts = urlsplit(value)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if "@" not in parts.path else f"{parts.scheme}://…"


def settings_errors(invalid: ValidationError) -> list[str]:
    """Return a line for each wrong setting: its variable and what it should be. Its value may be a secret."""
    lines = []
    for error in invalid.errors(include_input=False, include_url=False):
        message = error["msg"].removeprefix("Value error, ")
        if error["type"] == "missing":
            message = "is not set; deploy/README.md says what it should be"
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
