"""Signed deliveries, no two alike, as requests that are ready to be sent: a file of records of one size.

Receivers accept a signature for five minutes on either side of its timestamp.
"""

import base64
import hashlib
import hmac
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

_KEY: Final = bytes(range(32))
SECRET: Final = "whsec_" + base64.b64encode(_KEY).decode()

_BODY: Final = '{"eventType": "openid4vc.issuance.completed", "payload": {"openId4VcIssuanceId": "iss_%024x"}}'

#: The order of the headers puts the signature into the middle. LuaJIT, by which wrk sends the requests, hashes a string
#: by a few of its bytes only. Those in the middle must vary, or all requests meet in one bucket.
_REQUEST: Final = (
    "POST /webhooks HTTP/1.1\r\n"
    "host: localhost\r\n"
    "user-agent: platform-webhooks/1.0\r\n"
    "accept: */*\r\n"
    "content-type: application/json\r\n"
    "content-length: %d\r\n"
    "webhook-signature: v1,%s\r\n"
    "webhook-timestamp: %d\r\n"
    "webhook-id: %s\r\n"
    "\r\n"
    "%s"
)


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Some requests of a file.

    Attributes:
        path: the file.
        size: bytes of each request.
        first: the place of the first one in the file, counted in requests.
        count: how many.
    """

    path: Path
    size: int
    first: int
    count: int

    def split(self, count: int) -> tuple["Deliveries", "Deliveries"]:
        """Return the first `count` of them, and the others."""
        count = min(count, self.count)
        return replace(self, count=count), replace(self, first=self.first + count, count=self.count - count)

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.first * self.size)
            return file.read(self.count * self.size)


def sign(path: Path, count: int) -> Deliveries:
    """Write `count` deliveries to a file. The ids depend on the count alone, so each Redis sees a file only once."""
    timestamp = int(time.time())
    with path.open("wb") as file:
        file.writelines(_request(number, timestamp) for number in range(count))
    return Deliveries(path, path.stat().st_size // count, 0, count)


def _request(number: int, timestamp: int) -> bytes:
    webhook_id = f"msg_{number:024x}"
    body = _BODY % number
    digest = hmac.digest(_KEY, f"{webhook_id}.{timestamp}.{body}".encode(), hashlib.sha256)
    signature = base64.b64encode(digest).decode()
    return (_REQUEST % (len(body), signature, timestamp, webhook_id, body)).encode()
