"""The public URL as a sender sees it: whether it is reached, has a valid certificate, and leads to a receiver of ours.

A delivery without any header of ours is posted there. A receiver refuses it before it asks Redis, and the id in its
answer says which process it was (receiver/mark.py). Nothing is stored, and the log has one line more.
"""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from redis.exceptions import RedisError

from credhook.ops.doctor_redis import opened
from credhook.ops.facts import Receiver
from credhook.ops.finding import Finding, fail, ok, skipped
from credhook.ops.reading import read_receivers
from credhook.ops.settings import of_certificate
from credhook.ops.setup import Setup
from credhook.receiver.mark import Mark
from credhook.store.address import RedisAddress
from credhook.worker.api.http.trust import shared_ssl_context
from credhook.worker.commands.endpoints import shown

NAMES: Final = ("public_url.reached", "public_url.certificate", "public_url.receiver")

#: Seconds that connecting, and each part of the answer, may take.
_PATIENCE: Final = 5.0
#: Bytes of an answer that are read.
_LONGEST: Final = 65_536
#: What a receiver that takes deliveries at this path says to one without headers.
_TAKEN: Final = 400
_NOT_FOUND: Final = 404

#: By OpenSSL's number for what is wrong with a certificate, what to do.
_EXPIRED: Final = 10
_OTHER_HOST: Final = 62
_OTHER_ADDRESS: Final = 64
_RENEW: Final = "renew the certificate of whatever ends TLS there, the proxy or the receiver"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the URL answered; `id` is that of the error object in the body, or ""."""

    status: int
    id: str


def check_public_url(setup: Setup) -> Iterator[Finding]:
    """All of them, each only after the one before."""
    if setup.endpoint.settings is None:
        yield from (skipped(name, "CREDHOOK_PUBLIC_URL is not set here, or wrong") for name in NAMES)
        return
    url = setup.endpoint.settings.public_url
    parts = urlsplit(url)
    connection = http.client.HTTPSConnection(
        str(parts.hostname), parts.port or 443, timeout=_PATIENCE, context=shared_ssl_context()
    )
    try:
        connection.connect()
        yield ok("public_url.reached", f"{shown(url)} is reached from here")
        yield of_certificate("public_url.certificate", _ends(connection), _RENEW, setup.now(), setup.days)
    except ssl.SSLCertVerificationError as error:
        yield ok("public_url.reached", f"{shown(url)} is reached from here")
        yield of_bad_certificate(error.verify_code, error.verify_message)
        yield skipped("public_url.receiver", "nothing is sent to whom the certificate does not prove")
        return
    except (OSError, http.client.HTTPException) as error:
        yield of_unreached("public_url.reached", shown(url), error)
        yield from (skipped(name, "the URL is not reached") for name in NAMES[1:])
        return
    try:
        answer = _ask(connection, parts.path or "/")
    except (OSError, http.client.HTTPException) as error:
        yield of_unreached("public_url.receiver", shown(url), error)
    else:
        yield of_answer(answer, *_receivers(setup))
    finally:
        connection.close()


def _ends(connection: http.client.HTTPSConnection) -> datetime:
    tls = connection.sock
    certificate = tls.getpeercert() if isinstance(tls, ssl.SSLSocket) else None
    ends = str((certificate or {}).get("notAfter", ""))
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), UTC)


def _ask(connection: http.client.HTTPSConnection, path: str) -> Answer:
    connection.request("POST", path, body=b"", headers={"User-Agent": "credhook-doctor", "Connection": "close"})
    response = connection.getresponse()
    body = response.read(_LONGEST)
    try:
        identity = json.loads(body)["errors"][0]["id"]
    except (ValueError, LookupError, TypeError):
        identity = ""
    return Answer(response.status, identity if isinstance(identity, str) else "")


def _receivers(setup: Setup) -> tuple[Sequence[Receiver] | None, str]:
    """Those that have announced themselves, None if Redis cannot be asked; and the queue that is ours."""
    if setup.ledger.settings is None:
        return None, ""
    settings = setup.ledger.settings
    try:
        with opened(RedisAddress.parse(settings.redis_url.get_secret_value())) as redis:
            return read_receivers(redis), settings.queue
    except (RedisError, OSError):
        return None, settings.queue


def of_unreached(name: str, url: str, error: Exception) -> Finding:
    """Why nothing answered there."""
    if isinstance(error, socket.gaierror):
        why, remedy = "its host's name is not known here", "check CREDHOOK_PUBLIC_URL and its DNS record"
    elif isinstance(error, TimeoutError):
        why, remedy = "it does not answer in time", "check the firewall; from within, a public address may lead nowhere"
    elif isinstance(error, ConnectionRefusedError):
        why, remedy = "nothing listens there", "start the proxy, or check CREDHOOK_PUBLIC_URL's port"
    elif isinstance(error, ssl.SSLError):
        why, remedy = "it does not speak TLS", "let the proxy end TLS there, or set CREDHOOK_TLS_CERTFILE"
    else:
        why, remedy = f"the connection broke ({type(error).__name__})", "see the log of the proxy"
    return fail(name, f"{url}: {why}", remedy)


def of_bad_certificate(code: int, message: str) -> Finding:
    """A certificate that a sender would refuse."""
    remedy = "use a certificate of an authority that the platform trusts, followed by its intermediate ones"
    if code == _EXPIRED:
        remedy = _RENEW
    elif code in {_OTHER_HOST, _OTHER_ADDRESS}:
        remedy = "use a certificate for CREDHOOK_PUBLIC_URL's host, or correct that"
    return fail("public_url.certificate", f"senders refuse the certificate: {message}", remedy)


def of_answer(answer: Answer, receivers: Sequence[Receiver] | None, queue: str) -> Finding:
    """Whether it was one of our receivers, where deliveries are taken; None stands for receivers not known."""
    name = "public_url.receiver"
    if not receivers:
        return skipped(name, "no receiver is known to compare with: Redis is not reached, or none has announced itself")
    who = next((one for one in receivers if Mark(one.mark).made(answer.id)), None)
    if who is None:
        what = f"what answers there, with {answer.status}, is no receiver of this Redis"
        return fail(name, what, "check CREDHOOK_PUBLIC_URL, the proxy's back end, and that REDIS_URL is the receiver's")
    if answer.status == _NOT_FOUND:
        what = f"it leads to the receiver on {who.host}, which takes no deliveries at this path"
        return fail(name, what, "let CREDHOOK_PUBLIC_URL end as CREDHOOK_WEBHOOK_PATH and CREDHOOK_PATH_SECRET do")
    if answer.status != _TAKEN:
        what = f"the receiver on {who.host} answers {answer.status}"
        return fail(name, what, "see delivery_refused in its log")
    if who.queue != queue:
        what = f"it leads to the receiver on {who.host}, whose queue is {who.queue} and not {queue}"
        return fail(name, what, "set CREDHOOK_QUEUE to the same everywhere, or CREDHOOK_PUBLIC_URL to another receiver")
    return ok(name, f"it leads to the receiver on {who.host}")
