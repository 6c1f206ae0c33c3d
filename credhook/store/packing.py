"""How commands become bytes: in C, as redis-py has it for connections that are not asynchronous.

What a worker writes in groups has thousands of arguments. For each of them redis-py's own code in Python joins anew all
that went before, which was a fifteenth of what an event costs, measured.
"""

from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.connection import HiredisRespSerializer

_SERIALIZER: Final = HiredisRespSerializer()


class Packed(AbstractConnection):
    """Packs its commands by hiredis."""

    def pack_command(self, *args: Any) -> list[bytes]:
        """The bytes of a command.

        Raises:
            DataError: an argument is neither text, bytes, nor a number.
        """
        packed: list[bytes] = _SERIALIZER.pack(*args)
        return packed
