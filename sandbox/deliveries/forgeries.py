"""Deliveries that a receiver should refuse, made from a genuine one by somebody without the key."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, get_args

from credhook.sandbox.deliveries.deliveries import Delivery
from credhook.sandbox.deliveries.signing import Hmac, Key, headers
from credhook.sandbox.tenant.events import notice

#: Seconds by which a replayed delivery is too old for any tolerance.
STALE = 3600

Kind = Literal["wrongKey", "changedBody", "stale", "unsigned", "secondId"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Forgery:
    """A delivery that nobody announced."""

    kind: str
    delivery: Delivery
    headers: Sequence[tuple[str, str]] = field(repr=False)


def forgeries(count: int, genuine: Delivery, keys: Sequence[Key], now: datetime) -> list[Forgery]:
    """Return forgeries of a delivery, each of the next kind; without keys all that can be forged is the id."""
    kinds = [KINDS[number % len(KINDS)] if keys else "unsigned" for number in range(count)]
    return [_forge(kind, genuine, keys, int(now.timestamp())) for kind in kinds]


def _forge(kind: Kind, genuine: Delivery, keys: Sequence[Key], now: int) -> Forgery:
    made_up = f"forged_{secrets.token_hex(8)}"
    webhook_id = f"msg_{made_up}"
    forged = genuine.model_copy(
        update={
            "webhook_id": webhook_id,
            "resource_id": made_up,
            "body": notice(genuine.event_type, made_up),
            "attempts": 1,
        }
    )
    body = forged.body.encode()
    match kind:
        case "wrongKey":
            signed = headers([Hmac(secrets.token_bytes(32))], webhook_id, now, body)
        case "changedBody":
            signed = headers(keys, webhook_id, now, genuine.body.encode())
        case "stale":
            signed = headers(keys, webhook_id, now - STALE, body)
        case "unsigned":
            signed = headers([], webhook_id, now, body)
        case "secondId":
            captured = headers(keys, genuine.webhook_id, now, body)
            return Forgery(kind, forged, [("webhook-id", webhook_id), *captured.items()])
    return Forgery(kind, forged, list(signed.items()))
