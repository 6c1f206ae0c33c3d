"""What the modules of the plugin share: its name, its settings and its client."""

import os
from collections.abc import AsyncIterator

import httpx
from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from credhook import Handlers

handlers = Handlers[httpx.AsyncClient]("reminders")


class Settings(BaseSettings):
    """REMINDERS_URL and REMINDERS_TOKEN: variables, or files of these names in the folder of secrets."""

    model_config = SettingsConfigDict(env_prefix="REMINDERS_", hide_input_in_errors=True)
    url: str
    token: SecretStr


@handlers.lifespan
async def connected() -> AsyncIterator[httpx.AsyncClient]:
    """Keep the connections to the application."""
    settings = Settings(_secrets_dir=os.environ.get("CREDENTIALS_DIRECTORY"))
    headers = {"authorization": f"Bearer {settings.token.get_secret_value()}"}
    async with httpx.AsyncClient(base_url=settings.url, headers=headers, timeout=10) as client:
        yield client
