"""What the console is told by its environment, beside where the ledger is."""

import re
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from credhook.settings import LedgerSettings

#: Characters that a token has at least; 22 of base64 are 128 bits.
_SHORTEST_TOKEN: Final = 22


def _token(value: SecretStr | None) -> SecretStr | None:
    if value is not None and len(value.get_secret_value()) < _SHORTEST_TOKEN:
        raise ValueError(
            f"should be {_SHORTEST_TOKEN} or more random characters, such as `openssl rand -hex 16` prints"
        )
    return value


def _origin(value: str | None) -> str | None:
    if value is not None and not (re.fullmatch(r"https://[^\s/?#@]+/?", value) and urlsplit(value).hostname):
        raise ValueError("should be an https:// URL without a path")
    return value.rstrip("/").lower() if value is not None else None


class ConsoleSettings(LedgerSettings):
    """All that `credhook console` reads; its page of endpoints reads those of `credhook endpoints` besides."""

    token: Annotated[SecretStr | None, AfterValidator(_token)] = Field(
        None,
        validation_alias="CREDHOOK_CONSOLE_TOKEN",
        description="What one logs in to the console with: 22 or more random characters. Default: the console prints a "
        "link on its terminal, which is good for one login.",
    )
    url: Annotated[str | None, AfterValidator(_origin)] = Field(
        None,
        validation_alias="CREDHOOK_CONSOLE_URL",
        description="The https URL at which browsers reach the console, where a proxy stands before it. Default: this "
        "machine's own addresses.",
    )
    session: int = Field(
        43_200,
        ge=60,
        le=30 * 86_400,
        validation_alias="CREDHOOK_CONSOLE_SESSION",
        description="Seconds that a login to the console lasts.",
    )
