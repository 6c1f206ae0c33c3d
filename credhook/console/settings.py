"""Settings of the console."""

import re
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from credhook.settings import StoreSettings

#: Least characters of a token; 22 characters of base64 are 128 bits.
_MIN_TOKEN_CHARACTERS: Final = 22


def _token(value: SecretStr | None) -> SecretStr | None:
    if value is not None and len(value.get_secret_value()) < _MIN_TOKEN_CHARACTERS:
        raise ValueError(
            f"should be {_MIN_TOKEN_CHARACTERS} or more random characters, such as `openssl rand -hex 16` prints"
        )
    return value


def _origin(value: str | None) -> str | None:
    if value is not None and not (re.fullmatch(r"https://[^\s/?#@]+/?", value) and urlsplit(value).hostname):
        raise ValueError("should be an https:// URL without a path")
    return value.rstrip("/").lower() if value is not None else None


class ConsoleSettings(StoreSettings):
    """Settings of `credhook console`. Its endpoints page also reads the settings of `credhook endpoints`."""

    token: Annotated[SecretStr | None, AfterValidator(_token)] = Field(
        None,
        validation_alias="CREDHOOK_CONSOLE_TOKEN",
        description="Password of the console: 22 or more random characters. Default: the console prints a one-time "
        "login link.",
    )
    url: Annotated[str | None, AfterValidator(_origin)] = Field(
        None,
        validation_alias="CREDHOOK_CONSOLE_URL",
        description="The https URL of the console behind a proxy. Default: this machine's own addresses.",
    )
    session: int = Field(
        43_200,
        ge=60,
        le=30 * 86_400,
        validation_alias="CREDHOOK_CONSOLE_SESSION",
        description="Seconds that a login lasts.",
    )
