"""The platform's API for the benchmark: `python stub.py PORT SECONDS` answers each request after SECONDS.

It speaks HTTP without TLS, to loopback only, and says at `/seen` what it was asked, so that nobody must be believed.
Standard library, uvloop and httptools only: it must never be what is waited for.
"""

import asyncio
import json
import sys
import time
from typing import Any, Final

import httptools
import uvloop

DETAILS: Final = b"/me-creds/api/credentials/"
TOKEN: Final = b"/token"
SEEN: Final = b"/seen"

_HEAD: Final = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"

_CREDENTIAL: Final = {"id": "cred_7f1d0c52a6e94b3c8d11a2f0", "status": "issued", "revocable": True}

_GRANT: Final = b'{"access_token": "token", "token_type": "Bearer", "expires_in": 3600}'


#: An issuance as clients of the platform have seen it; `%s` is its id.
_ISSUANCE: Final = json.dumps(
    {
        "data": {
            "id": "%s",
            "createdAt": "2026-11-20T09:14:07.120Z",
            "updatedAt": "2026-11-20T09:15:42.871Z",
            "status": "completed",
            "exchange": "openid4vc",
            "format": "sd-jwt-vc",
            "credentials": [_CREDENTIAL] * 2,
            "offerUri": "openid-credential-offer://?credential_offer_uri=https%%3A%%2F%%2Fplatform.example%%2Foffers%%2F0",
            "offerQrUri": "https://platform.example/offers/0/qr",
        }
    }
).encode()


class Seen:
    """Counts of requests, of their resources and of answers, and the times of the first and the last."""

    def __init__(self) -> None:
        self.requests = self.answered = 0
        self.resources = set[bytes]()
        self.first = self.last = 0.0

    def report(self) -> bytes:
        counts = {"requests": self.requests, "resources": len(self.resources), "answered": self.answered}
        return json.dumps(counts | {"seconds": self.last - self.first}).encode()


class Api(asyncio.Protocol):
    """One connection. Answers keep the order of their requests, since each waits for as long as any other."""

    def __init__(self, seen: Seen, latency: float) -> None:
        self._seen, self._latency = seen, latency
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_message_complete(self) -> None:
        url, self._url = self._url, b""
        if url.startswith(DETAILS):
            resource = url[len(DETAILS) :]
            self._seen.first = self._seen.first or time.monotonic()
            self._seen.requests += 1
            self._seen.resources.add(resource)
            if self._latency:
                asyncio.get_running_loop().call_later(self._latency, self._describe, resource)
            else:
                self._describe(resource)
        elif url == SEEN:
            self._send(b"200 OK", self._seen.report())
        elif url == TOKEN:
            self._send(b"200 OK", _GRANT)
        else:
            self._send(b"404 Not Found", b'{"errors": [{"status": "404"}]}')

    def _describe(self, resource: bytes) -> None:
        self._send(b"200 OK", _ISSUANCE % resource)
        self._seen.answered += 1
        self._seen.last = time.monotonic()

    def _send(self, status: bytes, body: bytes) -> None:
        self._transport.write(_HEAD % (status, len(body)) + body)


async def serve(port: int, latency: float) -> None:
    seen = Seen()
    server = await asyncio.get_running_loop().create_server(
        lambda: Api(seen, latency), "127.0.0.1", port, backlog=1_024
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2])))
