"""What every process that works on the ledger is told by its environment."""

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from credhook.store.address import RedisAddress


def _checked_redis(value: SecretStr) -> SecretStr:
    RedisAddress.parse(value.get_secret_value())
    return value


def _address(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r".+:[1-9]\d{0,4}", value):
        raise ValueError("should be host:port")
    return value


class LedgerSettings(BaseSettings):
    """Where the events are kept, for how long, and who may watch: what the settings of all processes share."""

    model_config = SettingsConfigDict(frozen=True, env_ignore_empty=True, hide_input_in_errors=True)

    redis_url: Annotated[SecretStr, AfterValidator(_checked_redis)] = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        validation_alias="REDIS_URL",
        description="The Redis that holds ledger and queue: `redis://`, `rediss://`, `unix://`, or "
        "`redis+sentinel://host:port,host:port/service/db`.",
    )
    queue: str = Field(
        "credhook",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        validation_alias="CREDHOOK_QUEUE",
        description="Name of the RQ queue between receiver and workers.",
    )
    retention: int = Field(
        7 * 86_400,
        ge=3_600,
        le=3_650 * 86_400,
        validation_alias="CREDHOOK_RETENTION",
        description="Seconds that a settled event is remembered, and its duplicates recognised.",
    )
    admin: Annotated[str | None, AfterValidator(_address)] = Field(
        None,
        validation_alias="CREDHOOK_ADMIN",
        description="`host:port` of the listener for health, readiness by name, and metrics. Default: off.",
    )


def in_force(settings: BaseSettings) -> dict[str, Any]:
    """The settings that differ from their defaults, by their variables, as they may be logged.

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
    """Stars; but the address, if it is Redis's."""
    try:
        address = str(RedisAddress.parse(value.get_secret_value()))
    except ValueError:
        return str(value)
    return str(value) if "@" in address else address  # A password with a character that should have been encoded.


def _shown_url(value: str) -> str:
    parts = urlsplit(value)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if "@" not in parts.path else f"{parts.scheme}://…"
