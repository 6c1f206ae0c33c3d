"""Send requests over the network, within bounds, by libcurl, which works in the event loop's own thread.

libcurl bounds what comes before and after a body: heads, interim answers and trailers of one request take at most
300 KiB and 5,000 lines. If a kept connection turns out to be dead, libcurl sends the request again over a new one.
`HttpxTransport` is the other implementation.
"""

import asyncio
import ctypes
import fcntl
import functools
import math
import os
import re
import socket
import termios
import time
import urllib.request
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pycurl

from credhook.worker.api.http.environment import authorities, proxy_for
from credhook.worker.api.http.exchange import (
    BY_ERRNO,
    BY_VERDICT,
    HEADERS,
    LONGEST_REFUSAL,
    Request,
    Response,
    Unanswered,
    Unsendable,
    is_of_tls,
)

#: Seconds for which an idle connection is kept: servers close theirs after 5 s and more.
KEPT: Final = 4.0
#: Seconds for which the resolver may go on with a name after its last request has ended.
_LOOKUP_SECONDS: Final = 60.0
#: Maximum connections of one transport, as many as a process may have events under way.
MAX_CONNECTIONS: Final = 1_000
#: Sockets that a transport remembers, most of them closed, before it forgets them all.
_MAX_SOCKETS: Final = 4_000
#: An origin, without credentials.
_ORIGIN: Final = re.compile(r"https?://[^/?#@\s\\]+(?=[/?#]|\Z)", re.IGNORECASE)
#: The answer of FIONREAD if nothing has come.
_NOTHING: Final = bytes(4)
#: The word for an error code of libcurl, unless `_cause_of` knows more.
_CAUSES: Final = {
    pycurl.E_UNSUPPORTED_PROTOCOL: "protocol",  # HTTP/0.9.
    pycurl.E_COULDNT_RESOLVE_PROXY: "proxy",
    pycurl.E_COULDNT_RESOLVE_HOST: "name_resolution",
    pycurl.E_COULDNT_CONNECT: "proxy",  # If the system has no error: the proxy's scheme is unknown.
    pycurl.E_FTP_WEIRD_SERVER_REPLY: "protocol",  # Of HTTP servers, too.
    pycurl.E_PARTIAL_FILE: "closed",
    pycurl.E_OPERATION_TIMEDOUT: "timeout",
    pycurl.E_SSL_CONNECT_ERROR: "tls",
    pycurl.E_GOT_NOTHING: "closed",
    pycurl.E_SEND_ERROR: "closed",
    pycurl.E_RECV_ERROR: "protocol",
    pycurl.E_SSL_CERTPROBLEM: "tls",
    pycurl.E_PEER_FAILED_VERIFICATION: "certificate",
    pycurl.E_BAD_CONTENT_ENCODING: "protocol",
    pycurl.E_SSL_CACERT_BADFILE: "certificate",
    97: "proxy",  # CURLE_PROXY: a SOCKS proxy refused.
    100: "protocol",  # CURLE_TOO_LARGE: a head or trailers over their bound.
}
#: OpenSSL's words if a connection ends without its farewell.
_CUT_OFF: Final = "unexpected eof while reading"
#: Reading a member of an enumeration takes 1 us in Python 3.11.
_PROXY_REFUSED: Final = HTTPStatus.PROXY_AUTHENTICATION_REQUIRED
#: OpenSSL's words for its verdict, in libcurl's message. They quote nothing of the certificate.
_VERDICT: Final = re.compile(r"OpenSSL verify result: ([A-Za-z0-9 ,'-]{1,100}) \(\d+\)")


def proxy_options(origin: str) -> dict[int, Any]:
    """Return libcurl's options for the proxy of this origin. By itself, libcurl takes port 1080.

    Raises:
        ValueError: The origin is none.
    """
    proxy = proxy_for(origin)
    scheme = proxy.lower().partition("://")[0] if "://" in proxy else "http"
    return {
        pycurl.PROXY: os.fsencode(proxy),
        pycurl.PROXYPORT: 80 if scheme == "http" else 0,
        pycurl.NOPROXY: b"",  # Otherwise libcurl would read NO_PROXY itself.
    }


def _trust_options() -> dict[int, Any]:
    """Return libcurl's options for our authorities, for the platform and for the proxy. None removes an option."""
    file, folder = (place and os.fsencode(place) for place in authorities())
    return {pycurl.CAINFO: file, pycurl.CAPATH: folder, pycurl.PROXY_CAINFO: file, pycurl.PROXY_CAPATH: folder}


class _Answer:
    """What has come of an answer."""

    def __init__(self) -> None:
        #: The lines of all heads, each with its status line, and of trailers.
        self.lines: list[bytes] = []
        self._chunks: list[bytes] = []
        self._size = 0
        #: True if the body exceeded its limit, so that the rest was not read.
        self.is_cut = False

    def clear(self) -> None:
        """Forget everything."""
        self.lines.clear()
        self._chunks.clear()
        self._size, self.is_cut = 0, False

    def take_chunk(self, chunk: bytes) -> int | None:
        """Keep a part of the body. After too much of it, return a number of bytes that ends the transfer."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > LONGEST_REFUSAL:
            self.is_cut = self._size > Response(int(self._head()[0].split()[1]), {}, b"").limit
        return -1 if self.is_cut else None

    def whole(self, status: int, hang_up: Callable[[], None]) -> Response:
        """Return the answer. Nothing reads the headers of a success, which take longer to parse than all the rest.

        Raises:
            Unanswered: Its head is not whole.
            BodyRefused: It is longer than it may be.
        """
        head = self._head()
        if b"\r\n" not in head and b"\n" not in head:
            raise Unanswered("curl", "closed")
        response = Response(status, {}, b"", hang_up)
        if not response.is_success:
            fields = (line.decode("latin-1").partition(":") for line in reversed(head))
            response.headers = {name.lower(): value.strip() for name, _, value in fields}
        return response.with_body(b"".join(self._chunks))

    def _head(self) -> list[bytes]:
        """Return the last head, after those of interim answers, with trailers."""
        if self.lines[-1] == b"\r\n" and self.lines.count(b"\r\n") == 1:
            return self.lines  # There is one head, and no trailer, in nearly all answers.
        head: list[bytes] = []
        for line in self.lines:
            if line[:5] == b"HTTP/":
                head = []
            head.append(line)
        return head


class _Sockets(dict[tuple[str, str, int, int], int]):
    """The sockets of connections, by addresses and ports."""

    def check(self, opened: list[int], *connection: Any) -> int:
        """Allow a request over this connection, for which the sockets in `opened` were opened, if any.

        A kept connection is refused if something has come over it, which would be taken for the answer. libcurl itself
        looks only at connections that were idle for a second.
        """
        if opened:
            if len(self) >= _MAX_SOCKETS:
                self.clear()
            self.update((connection, number) for number in opened if _port_of(number) == connection[-1])
        elif connection not in self or fcntl.ioctl(self[connection], termios.FIONREAD, _NOTHING) != _NOTHING:
            return int(pycurl.PREREQFUNC_ABORT)
        return int(pycurl.PREREQFUNC_OK)


def _port_of(number: int) -> int:
    """Return the local port of a socket, or 0 if the socket is closed."""
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
        return int(copy.getsockname()[1])
    return 0


def _add_socket(opened: list[int], number: int, _: object) -> int:
    opened.append(number)
    return int(pycurl.SOCKOPT_OK)


class _Handle:
    """A handle of libcurl for one origin."""

    def __init__(self, options: Mapping[int, Any], sockets: _Sockets) -> None:
        # The callbacks do not refer to the handle: it goes with its last reference, not with the next collection.
        self.curl = pycurl.Curl()
        for option, value in options.items():
            if value is None:
                self.curl.unsetopt(option)
            else:
                self.curl.setopt(option, value)
        self.answer = _Answer()
        self.curl.setopt(pycurl.HEADERFUNCTION, self.answer.lines.append)
        self.curl.setopt(pycurl.WRITEFUNCTION, self.answer.take_chunk)
        self._opened: list[int] = []
        self.curl.setopt(pycurl.SOCKOPTFUNCTION, functools.partial(_add_socket, self._opened))
        self.curl.setopt(pycurl.PREREQFUNCTION, functools.partial(sockets.check, self._opened))
        self._headers: Mapping[str, str] = {}

    def set_up(self, request: Request) -> None:
        """Set up a request.

        Raises:
            ValueError, pycurl.error: It cannot be sent. The message can quote the URL.
        """
        self._opened.clear()
        self.curl.setopt(pycurl.URL, request.url)
        if request.headers is not self._headers:  # Requests with the same token share their headers.
            self.curl.setopt(pycurl.HTTPHEADER, _header_lines(request.headers))
            self._headers = request.headers
        if request.method != "GET":
            self.curl.setopt(pycurl.CUSTOMREQUEST, request.method)
        if request.body is not None or request.method in {"POST", "PUT", "PATCH"}:
            self.curl.setopt(pycurl.POSTFIELDS, request.body or b"")
        if not request.repeatable:  # Over a kept connection, libcurl might send it twice.
            self.curl.setopt(pycurl.FRESH_CONNECT, True)

    async def perform(self, multi: pycurl.AsyncCurlMulti) -> None:
        """Send the request, and wait for the end of its answer.

        Raises:
            pycurl.error: There is no whole answer.
        """
        try:
            await multi.add_handle(self.curl)
        except pycurl.error as error:
            if error.args[0] != pycurl.E_ABORTED_BY_CALLBACK:
                raise
            self.curl.setopt(pycurl.FRESH_CONNECT, True)  # Nothing was sent over the kept connection.
            await multi.add_handle(self.curl)
            self.curl.setopt(pycurl.FRESH_CONNECT, False)


def _is_plain(request: Request) -> bool:
    """Return True if its handle can send other requests later. A handle keeps a body in memory."""
    return request.method == "GET" and request.body is None and request.repeatable


def _header_lines(headers: Mapping[str, str]) -> list[str]:
    """Return headers as libcurl takes them.

    Raises:
        ValueError: One of them is no line of ASCII. libcurl would send a line break as it is.
    """
    if not all(text.isascii() and text.isprintable() for header in headers.items() for text in header):
        raise ValueError("no header")
    names = {name.lower() for name in headers}
    unwanted = [f"{name}:" for name in ("Accept", "Content-Type", "Expect") if name.lower() not in names]
    return [*(f"{name}: {value}" if value else f"{name};" for name, value in headers.items()), *unwanted]


class CurlTransport:
    """A transport over kept connections, for one event loop. A forked child makes connections of its own.

    Args:
        timeout: Seconds that sending may take as a whole: connecting, waiting, reading.
        certfile: PEM file with our certificate for TLS.
        keyfile: PEM file with its key, if that is not in the same file.
        keep: Seconds for which an idle connection is kept.
        max_connections: Further requests wait for a connection, which is part of their time.
    """

    def __init__(
        self,
        timeout: float,
        *,
        certfile: Path | None = None,
        keyfile: Path | None = None,
        keep: float = KEPT,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.timeout = timeout
        self._keep, self._max_connections = keep, max_connections
        self._options = {
            pycurl.TIMEOUT_MS: math.ceil(timeout * 1_000),
            pycurl.MAXAGE_CONN: math.ceil(keep),
            pycurl.NOSIGNAL: 1,
            pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
            pycurl.PATH_AS_IS: 1,
            pycurl.ACCEPT_ENCODING: "",  # Decode. Our own header asks for no compression.
            pycurl.USERAGENT: HEADERS["User-Agent"],  # For proxies.
        }
        if certfile is not None:
            self._options |= {pycurl.SSLCERT: os.fsencode(certfile), pycurl.SSLKEY: os.fsencode(keyfile or certfile)}
        self._options_for = functools.cache(lambda origin: self._options | _trust_options() | proxy_options(origin))
        #: Handles by origin, ready for the next GET.
        self._ready: defaultdict[str, list[_Handle]] = defaultdict(list)
        self._sockets = _Sockets()
        self._multi: pycurl.AsyncCurlMulti | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._used_at = 0.0
        #: Until when closing may wait for the resolver, which would block the event loop.
        self._resolving_until = 0.0
        _TRANSPORTS.add(self)

    async def send(self, request: Request) -> Response:
        """See `Transport`.

        Raises:
            RuntimeError: The first request was sent on another event loop.
        """
        self._bind(asyncio.get_running_loop())
        origin = _ORIGIN.match(request.url)
        if origin is None:
            raise Unsendable("ValueError")
        ready = self._ready[origin[0]] if _is_plain(request) else []
        try:
            handle = ready.pop() if ready else _Handle(self._options_for(origin[0]), self._sockets)
            handle.set_up(request)
            multi = self._multi or self._open()
        except (ValueError, pycurl.error) as error:  # It can quote the URL and the token.
            raise Unsendable(type(error).__name__) from None
        try:
            await handle.perform(multi)
        except pycurl.error as error:
            code = error.args[0]
            if code == pycurl.E_URL_MALFORMAT:
                raise Unsendable("ValueError") from None
            if not handle.answer.is_cut:
                verdict = _VERDICT.search(handle.curl.errstr())
                cause, reason = _cause_of(handle.curl, code), verdict[1] if verdict else ""
                raise Unanswered(f"curl {code}", cause, reason) from None
        finally:
            self._used_at = time.monotonic()
            if not handle.curl.getinfo(pycurl.NAMELOOKUP_TIME) and not handle.curl.getinfo(pycurl.REQUEST_SIZE):
                self._resolving_until = self._used_at + _LOOKUP_SECONDS
            if multi is not self._multi:
                self._retire(multi)
        status = handle.curl.getinfo(pycurl.RESPONSE_CODE)
        if status == _PROXY_REFUSED and handle.curl.getinfo(pycurl.USED_PROXY):
            raise Unanswered("curl 56", "proxy")
        response = handle.answer.whole(status, functools.partial(self._retire, multi))
        handle.answer.clear()
        ready.append(handle)
        return response

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            if self._loop is not None:
                raise RuntimeError("AsyncApi belongs to another event loop: make one on each loop, or use Api")
            self._loop = loop

    async def aclose(self) -> None:
        """Close the connections. Requests that are under way over them fail."""
        multi = self._multi
        if multi is not None:
            futures = multi.futures()
            for future in futures:
                if not future.done():  # pycurl would cancel it, as if our own task were cancelled.
                    future.set_exception(pycurl.error(pycurl.E_PARTIAL_FILE, "closed"))
            await asyncio.gather(*futures, return_exceptions=True)
            if time.monotonic() < self._resolving_until:
                self.forget()  # The end of the process does not wait for the resolver.
            self._retire(multi)

    def _open(self) -> pycurl.AsyncCurlMulti:
        self._multi = multi = pycurl.AsyncCurlMulti()
        multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, self._max_connections)
        multi.setopt(pycurl.M_MAXCONNECTS, self._max_connections)  # By default, four for each request under way.
        asyncio.get_running_loop().call_later(self._keep, self._close_idle, multi)
        return multi

    def _close_idle(self, multi: pycurl.AsyncCurlMulti) -> None:
        """Close all connections if none was used for some time. libcurl looks for old ones at the next request only."""
        now = time.monotonic()
        pause = self._keep if multi.futures() else max(self._used_at + self._keep, self._resolving_until) - now
        if self._multi is not multi:
            return
        if pause > 0:
            asyncio.get_running_loop().call_later(pause, self._close_idle, multi)
        else:
            self._retire(multi)

    def _retire(self, multi: pycurl.AsyncCurlMulti) -> None:
        """Start no request over these connections any more. libcurl has no way to close one of them."""
        if multi.closed or multi.futures():
            pass  # The last of these requests closes them.
        elif (pause := self._resolving_until - time.monotonic()) > 0:
            asyncio.get_running_loop().call_later(pause, self._retire, multi)
        else:
            with suppress(StopIteration):
                multi.aclose().send(None)  # It awaits nothing, and this may be a callback.
        if self._multi is multi:
            self._multi = None

    def forget(self) -> None:
        """Leave the connections open, and never free them.

        In a forked child, freeing would end TLS on sockets that its parent uses.
        """
        if self._multi is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._multi))
            self._multi = None
        self._loop = None


_TRANSPORTS: Final = weakref.WeakSet[CurlTransport]()


def _forget_all() -> None:
    for transport in list(_TRANSPORTS):
        transport.forget()


os.register_at_fork(after_in_child=_forget_all)


def _cause_of(curl: pycurl.Curl, code: int) -> str:
    """Return the word for an error of libcurl."""
    word, errno = _CAUSES.get(code, ""), curl.getinfo(pycurl.OS_ERRNO)
    if code == pycurl.E_COULDNT_CONNECT and errno:
        word = BY_ERRNO.get(errno, "unreachable")
    elif code == pycurl.E_COULDNT_CONNECT and not urllib.request.getproxies_environment():
        word = "socket"
    elif code in {pycurl.E_SSL_CONNECT_ERROR, pycurl.E_SEND_ERROR, pycurl.E_RECV_ERROR}:
        if BY_ERRNO.get(errno) == "reset":
            word = "reset"
        elif _CUT_OFF in curl.errstr():
            word = "closed"
        elif curl.getinfo(pycurl.APPCONNECT_TIME) and not curl.getinfo(pycurl.RESPONSE_CODE):
            word = "tls"  # Servers refuse our certificate after the handshake.
    elif code == pycurl.E_PEER_FAILED_VERIFICATION:
        verdict = curl.getinfo(pycurl.SSL_VERIFYRESULT) or curl.getinfo(pycurl.PROXY_SSL_VERIFYRESULT)
        word = BY_VERDICT.get(verdict, "certificate_unfit")
    is_past_proxy = curl.getinfo(pycurl.REQUEST_SIZE) or curl.getinfo(pycurl.HTTP_CONNECTCODE) == HTTPStatus.OK
    return "proxy" if curl.getinfo(pycurl.USED_PROXY) and not is_past_proxy and not is_of_tls(word) else word
