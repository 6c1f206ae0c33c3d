"""A sender of our own for the receiver's tests: Standard Webhooks in ten lines, sharing nothing with the receiver."""

import base64
import hashlib
import hmac
import json
import time

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER_SECRET = "whsec_" + base64.b64encode(bytes(range(32, 64))).decode()


def body(event_type: str = "openid4vc.issuance.completed", resource_id: str = "iss_1") -> bytes:
    name = "openId4VcIssuanceId" if ".issuance." in event_type else "openId4VcPresentationId"
    return json.dumps({"eventType": event_type, "payload": {name: resource_id}}).encode()


def sign(webhook_id: str, timestamp: str, content: bytes, secret: str = SECRET) -> str:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, f"{webhook_id}.{timestamp}.".encode() + content, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def headers(webhook_id: str, content: bytes, *, secret: str = SECRET, at: float | None = None) -> dict[str, str]:
    timestamp = str(int(time.time() if at is None else at))
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": sign(webhook_id, timestamp, content, secret),
        "content-type": "application/json",
    }
