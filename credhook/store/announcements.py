"""What the processes of a fleet say of themselves in Redis, and how long that holds.

A hash for the workers of each queue (`Keys.handlers`), and one for all receivers (`RECEIVERS`). Each value is
"<since> <renewed> <what is said, as JSON>", both in ms; what is not renewed is forgotten.
"""

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Any, Final, NamedTuple

from credhook.store import LATEST, lua

#: Renews one, forgets the dead, and replies with the others; see there.
ANNOUNCE: Final = lua.load("announce.lua")
#: Seconds that an announcement lasts unless it is renewed, at least.
LASTS: Final = 60.0

#: Bytes of a digest of a setting: enough to see that two processes differ.
_DIGEST: Final = 2

_FORM: Final = re.compile(rb"(\d{1,15}) (\d{1,15}) (.+)", re.DOTALL)


class Announced(NamedTuple):
    """What one process says.

    Attributes:
        since: when it said so first, in ms since the epoch, as Redis sees it.
        renewed: when it said so last.
        said: the JSON.
    """

    since: int
    renewed: int
    said: bytes


def announced(values: Mapping[Any, Any]) -> Iterator[Announced]:
    """Read such a hash; what somebody else has written there is passed over. Pure."""
    for value in values.values():
        match = _FORM.fullmatch(value) if isinstance(value, bytes) else None
        if match and int(match[1]) <= int(match[2]) <= LATEST:
            yield Announced(int(match[1]), int(match[2]), match[3])


def digests(settings: Mapping[str, object]) -> dict[str, str]:
    """Of settings that all processes should have alike, none of them secret: by which one sees that some differ. Pure.

    Args:
        settings: variable → its value.
    """
    return {
        name: blake2b(json.dumps(value).encode(), digest_size=_DIGEST).hexdigest() for name, value in settings.items()
    }


def version() -> str:
    """The version of this package."""
    try:
        return version_of("credhook")
    except PackageNotFoundError:  # Started from a folder that is installed nowhere.
        return "unknown"
