"""Why a request had no answer, in one word for logs and state. Pure: an exception goes in, a word comes out.

    name_resolution   the host's name is not known
    refused           nothing listens there
    unreachable       no way leads there
    reset             the connection was torn down
    closed            the other end hung up before its answer was whole
    certificate       its certificate is not trusted, or is for another name
    tls               it does not speak TLS as we do
    timeout           not in time
    proxy             the proxy on the way refused, or is none that can be used
    protocol          what came is no HTTP

aiohttp wraps what the operating system says in several ways, so the whole chain is looked at.
"""

import errno
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import aiohttp

from credhook.worker.api.http.proxies import ProxyFailed, UnsupportedProxy

#: The more precise classes first.
_BY_CLASS: Final = (
    (socket.gaierror, "name_resolution"),
    (ssl.SSLCertVerificationError, "certificate"),
    (ssl.SSLEOFError, "closed"),
    (ssl.SSLZeroReturnError, "closed"),
    (ssl.SSLError, "tls"),
    (TimeoutError, "timeout"),
    (ConnectionRefusedError, "refused"),
    (aiohttp.ClientHttpProxyError, "proxy"),
    (aiohttp.ClientProxyConnectionError, "proxy"),
    (UnsupportedProxy, "proxy"),
)

_BY_NUMBER: Final = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.ECONNABORTED: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.ENETDOWN: "unreachable",
    errno.EADDRNOTAVAIL: "unreachable",
}

#: How asyncio reports a host of several addresses, none of which could be connected to: numbers in a text.
_NUMBER_IN_TEXT: Final = re.compile(r"\[Errno (\d+)\]")

#: How aiohttp says that a body has ended too early.
_CUT_OFF: Final = "not completed"


def cause_of(error: BaseException) -> str:
    """The word for this error; empty where none of them fits."""
    chain = list(_chain(error))
    if any(isinstance(each, ProxyFailed) for each in chain):  # Whatever became of it: in time, it had led nowhere.
        return "proxy"
    for each in chain:
        word = _of_system(each)
        if word:
            return word
    return _of_client(error)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it, the last first."""
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
        led_to_it = each.__cause__ or each.__context__
        if led_to_it is not None:
            waiting.append(led_to_it)


def _of_system(error: BaseException) -> str:
    """What the operating system or the TLS library says."""
    for kind, word in _BY_CLASS:
        if isinstance(error, kind):
            return word
    if not isinstance(error, OSError):
        return ""
    return _without_number(error) if error.errno is None else _BY_NUMBER.get(error.errno, "")


def _without_number(error: OSError) -> str:
    """What asyncio and uvloop say themselves."""
    numbers = _NUMBER_IN_TEXT.findall(str(error))
    if numbers:
        return _BY_NUMBER.get(int(numbers[0]), "")
    return "closed" if isinstance(error, ConnectionError) else ""


def _of_client(error: BaseException) -> str:
    """What the client says where nobody below it did."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientResponseError):
        return "closed" if _CUT_OFF in str(error) else "protocol"
    return ""
