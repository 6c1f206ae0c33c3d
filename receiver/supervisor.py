"""Run several receiver processes on one port. The supervisor holds the socket, and the processes accept from it.

The socket outlives a process that dies: other processes accept the waiting connections. Redis is all that they share.
"""

import socket
import sys
from collections.abc import Callable, Mapping
from subprocess import Popen

from credhook.supervisor import Supervisor, environment_of


class ReceiverSupervisor(Supervisor[Popen[bytes]]):
    """Replaces receiver processes that die, until a signal ends them all."""

    kind = "receiver"
    hint = "see the lines above; after code -9, check if the machine is short of memory"
    grace = 10.0  # The receivers' own limit is lower.
    tries = 3

    def __init__(
        self,
        listener: socket.socket,
        number: int,
        environment: Mapping[str, str],
        *,
        on_exit: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__(number, on_exit=on_exit)
        self._listener = listener
        self._environment = environment

    def start(self, place: int) -> Popen[bytes]:
        """Start a receiver on the socket."""
        fds = (self._listener.fileno(), self.lifeline)
        command = [sys.executable, "-P", "-m", "credhook.receiver", "--fd", str(fds[0]), "--lifeline", str(fds[1])]
        environment = environment_of(self._environment, place)
        return Popen(command, pass_fds=fds, env=environment)  # noqa: S603  The program is this one.

    def drain(self) -> int:
        """Close the socket first, so that no new connection is accepted."""
        self._listener.close()
        return super().drain()
