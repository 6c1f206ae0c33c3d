"""How much of a process strangers may take: bytes, seconds and connections."""

import resource
from dataclasses import dataclass
from typing import Final

#: Bytes of a request's line and headers. The platform's have about 400, with what a proxy adds about 1,500.
MAX_HEAD: Final = 16_384

#: Lines of headers, and of trailers: what Apache allows. Each costs about 130 bytes beside its own.
MAX_LINES: Final = 100

#: Requests that may wait behind one on the same connection. No sender of webhooks is known to do that; each takes
#: about 3 KiB before anything of it is answered.
MAX_PIPELINED: Final = 8

#: Bytes that may come at once without being counted: whole deliveries, which are gone before the next is read.
SMALL: Final = 4_096

#: File descriptors that are not for connections: Redis, the admin listener's own connections, logs, the event loop.
_RESERVED: Final = 96

#: Bytes of a connection's buffer in the system: enough for any delivery that is known, and for a sender far away.
_LEAST_BUFFER: Final = 16_384
_MOST_BUFFER: Final = 262_144

#: Connections that a process needs to be of any use.
_FEWEST: Final = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """What all connections of one listener may take.

    Attributes:
        connections: how many there may be.
        buffered: bytes of requests that are not finished, of all of them together.
        body: bytes of one request's body.
        header_timeout: seconds for a TLS handshake, and for a request's headers.
        body_timeout: seconds for a request's body.
        idle_timeout: seconds without a request.
    """

    connections: int
    buffered: int
    body: int
    header_timeout: float
    body_timeout: float
    idle_timeout: float

    @property
    def received_at_once(self) -> int:
        """Bytes that the system may keep of one connection until we read them: many deliveries, or half a long one."""
        return min(max(_LEAST_BUFFER, self.body // 8), _MOST_BUFFER)

    @property
    def on_the_wire(self) -> int:
        """Bytes that may follow a request's headers: a body, in chunks of a few bytes each, and trailers."""
        return 2 * self.body + MAX_HEAD


#: Of a listener that operators and Prometheus use.
ADMIN: Final = Limits(
    connections=64, buffered=1_048_576, body=16_384, header_timeout=5.0, body_timeout=5.0, idle_timeout=5.0
)


def affordable(connections: int, *, descriptors: int | None = None) -> int:
    """So many connections, or fewer if the process may not open that many files, as the system says."""
    if descriptors is None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return connections
    return max(_FEWEST, min(connections, descriptors - _RESERVED))
