"""`credhook events export`: an event as a test case. `credhook.testing.load_event` reads it."""

import asyncio
import json
import re
from typing import Any, Final

import click

from credhook.events import EVENT_TYPES, resource_of
from credhook.settings import WorkerSettings
from credhook.store.history import records
from credhook.worker.api.client import AsyncApi, Sender
from credhook.worker.api.errors import ApiError, with_hint
from credhook.worker.api.models import Issuance, Presentation, data_of
from credhook.worker.attempt.details import Snapshots, from_bytes
from credhook.worker.commands.api import RETRY_SECONDS
from credhook.worker.commands.options import AN_ID, no_event, open_store

#: Fields of an issuance, a presentation and a credential without personal data. All other fields are redacted.
_NOT_PERSONAL: Final = {
    *("id", "status", "format", "exchange", "type", "isValid", "revocable", "presentationTemplateId"),
    *("createdAt", "updatedAt", "expiresAt"),
}
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")


@click.command()
@click.argument("webhook_id", type=AN_ID)
def export(webhook_id: str) -> None:
    """Print an event as a test case without personal data: JSON for credhook.testing.load_event.

    The details come from the sealed snapshot, or from the platform as it describes them now. Ids, states, times and the
    names of attributes stay. Every other value is replaced by a value of the same type.
    """
    settings = WorkerSettings()
    with open_store() as store:
        record = next(records(store, [webhook_id]), None)
    if record is None:
        raise no_event(store, webhook_id)
    if record["type"] not in EVENT_TYPES:
        raise click.ClickException(f"this version does not know the event type {record['type']}")
    try:
        details = asyncio.run(_details(settings, webhook_id, record["type"], record["resource_id"]))
    except ApiError as error:
        raise click.ClickException(f"the platform does not return the details: {with_hint(error)}") from error
    case = {name: record[name] for name in ("type", "resource_id", "webhook_id", "received_at")}
    case["attempt"] = max(1, record["attempts"] or 1)
    content = data_of(details.raw)
    case["details"] = redacted({**content, "id": details.id} if isinstance(content, dict) else {"id": details.id})
    click.echo(json.dumps(case, indent=2))


async def _details(
    settings: WorkerSettings, webhook_id: str, event_type: str, resource_id: str
) -> Issuance | Presentation:
    store = settings.open_store()
    async with store.redis:
        sealed = await Snapshots(store, settings.snapshot_key).find(webhook_id, resource_id)
    if sealed:
        return from_bytes(sealed, event_type, resource_id)
    async with AsyncApi(Sender.from_settings(settings, retry_seconds=RETRY_SECONDS)) as api:
        details: Issuance | Presentation = await getattr(api, resource_of(event_type).namespace).get(resource_id)
        return details


def redacted(details: dict[str, Any]) -> dict[str, Any]:
    """Return the details without personal data."""
    shown = {
        name: value if name in _NOT_PERSONAL and isinstance(value, str | bool | None) else _blank(value)
        for name, value in details.items()
    }
    if isinstance(credentials := details.get("credentials"), list):
        shown["credentials"] = [redacted(item) if isinstance(item, dict) else _blank(item) for item in credentials]
    return shown


def _blank(value: Any) -> Any:
    """Return a neutral value of the same type."""
    if isinstance(value, dict):
        return {name: _blank(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_blank(item) for item in value]
    if isinstance(value, str):
        return "2000-01-01" if _DATE.fullmatch(value) else "redacted" if value else ""
    return value if value is None else type(value)()
