"""What of an issuance or presentation tells how it stands. Whatever else a list shows of it is dropped unread."""

from typing import ClassVar

from pydantic import ConfigDict

from credhook.worker.api.models.base import ObservedTimestamp, Stateful


class ListedResource(Stateful):
    """An issuance or a presentation, without the personal data that a list may show of it."""

    model_config = ConfigDict(extra="ignore")

    shown: ClassVar = ("id", "status")

    id: str
    created_at: ObservedTimestamp | None = None
    updated_at: ObservedTimestamp | None = None
