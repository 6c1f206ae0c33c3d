"""The values that go into a path: checked, and percent-encoded by the operation that carries them."""

import re
from unicodedata import category
from urllib.parse import quote

#: Identifiers of the platform, in every shape seen: `cmfw…`, `iss_…`, UUIDs, `author:code`, DIDs.
_RESOURCE_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")

#: What goes into a path as it is, as nearly all ids do. To find that out takes `quote` ten times as long.
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]+")

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


def path_segment(value: str) -> str:
    """The value as one segment of a path, percent-encoded."""
    return value if _UNRESERVED.fullmatch(value) else quote(value, safe="")
