"""Several receiver processes on one port: the parent holds the socket, its children accept from it.

The socket outlives a child that dies: connections that wait in it are taken by the others. The children share nothing
else; Redis makes them behave as one.
"""

import socket
import sys
from collections.abc import Callable, Mapping
from subprocess import Popen

from credhook.metrics.places import environment_of
from credhook.supervisor import Supervisor


class ReceiverSupervisor(Supervisor[Popen[bytes]]):
    """The receiver processes, replaced when they die, until a signal ends them all."""

    kind = "receiver"
    hint = "see the lines above; after code -9, whether the machine is short of memory"
    grace = 10.0  # Their own limit is below it.
    tries = 3

    def __init__(
        self,
        listener: socket.socket,
        number: int,
        environment: Mapping[str, str],
        *,
        buried: Callable[[int], None] = lambda _: None,
    ) -> None:
        """All accept from the `listener`; `buried` is called with the place of each process that has ended."""
        super().__init__(number)
        self._listener = listener
        self._environment = environment
        self._buried = buried

    def start(self, place: int) -> Popen[bytes]:
        """Another that accepts from the socket."""
        fds = (self._listener.fileno(), self.lifeline)
        command = [sys.executable, "-P", "-m", "credhook.receiver", "--fd", str(fds[0]), "--lifeline", str(fds[1])]
        environment = environment_of(self._environment, place)
        return Popen(command, pass_fds=fds, env=environment)  # noqa: S603  The program is this one.

    def ended(self, child: Popen[bytes], code: int, place: int) -> None:  # noqa: ARG002  As the supervisor calls it.
        """Have it told."""
        self._buried(place)

    def drain(self) -> int:
        """Close the socket first, so that nobody new is let in."""
        self._listener.close()
        return super().drain()
