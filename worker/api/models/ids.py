"""The values that go into a path: checked here, percent-encoded by the operation that carries them."""

import re
from unicodedata import category

#: Identifiers of the platform, in every shape seen: `cmfw…`, `iss_…`, UUIDs, `author:code`, DIDs.
_RESOURCE_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")

#: Characters of a username or an external identifier. No rule is published; this keeps URLs within reason.
_LONGEST_NAME = 256

#: Unicode categories that have no place in a path: control characters, and surrogates that cannot be encoded.
_UNFIT = {"Cc", "Cs"}


def resource_id(value: str) -> str:
    """Return the id of a platform resource, unchanged.

    Raises:
        ValueError: It is not 1 to 128 of `A-Z a-z 0-9 . _ ~ : -`, or it is `.` or `..`, which climb a path.
    """
    if not _RESOURCE_ID.fullmatch(value) or value in {".", ".."}:
        raise ValueError("should be 1 to 128 of the characters A-Z a-z 0-9 . _ ~ : - and neither . nor ..")
    return value


def path_name(value: str) -> str:
    """Return a username or an external identifier, unchanged. It may hold `@`, `/`, `+` and spaces.

    Every one of these travels percent-encoded, inside one segment. Some servers and proxies decode `%2F` and
    then resolve `..`; a name with a part that climbs is therefore refused as well.

    Raises:
        ValueError: It is empty, longer than 256 characters, holds control characters, or has a part that is
            `.` or `..`.
    """
    if not 0 < len(value) <= _LONGEST_NAME:
        raise ValueError("should be 1 to 256 characters")
    if any(category(character) in _UNFIT for character in value):
        raise ValueError("should hold no control characters")
    if not {".", ".."}.isdisjoint(re.split(r"[/\\]", value)):
        raise ValueError("should not have . or .. as a part")
    return value
