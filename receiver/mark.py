"""How a receiver process can be told from others by what it answers to anybody, who learns nothing by it.

Each error object of ours has an id, half random and half a keyed digest of that. The key is in Redis, beside
what the receiver announces: whoever can read it there, as `credhook doctor` does, knows which process has answered. To
anybody else it is an id like any other.
"""

import secrets
from dataclasses import dataclass, field
from hashlib import blake2s
from typing import Final
from uuid import UUID, uuid4

_HALF: Final = 8


@dataclass(frozen=True, slots=True)
class Mark:
    """One process's key, 32 hexadecimal digits."""

    key: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    def new_id(self) -> str:
        """An id for an error object, different each time."""
        return str(self._id(uuid4().bytes[:_HALF]))

    def made(self, text: str) -> bool:
        """Whether this process has made that id."""
        try:
            return UUID(text) == self._id(UUID(text).bytes[:_HALF])
        except ValueError:
            return False

    def _id(self, chance: bytes) -> UUID:
        digest = blake2s(chance, key=self.key.encode(), digest_size=_HALF).digest()
        return UUID(bytes=chance + digest, version=4)


#: This process's.
MARK: Final = Mark()
