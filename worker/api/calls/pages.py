"""Pages of a list, and the way from one to the next. Pure. Specification: Response envelope."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

R = TypeVar("R")

#: Characters of a link, beyond which it is none.
_LONGEST: Final = 4_096


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """Part of a list.

    Attributes:
        items: what it shows.
        following: the query that leads to the next page, for the same list; None on the last one.
    """

    items: tuple[R, ...]
    following: str | None


def following(document: object) -> str | None:
    """The query of `links.next`; None where there is no such link.

    Of a link only the query is followed, on the list's own path: no answer can lead anywhere else.

    Raises:
        ValueError: the link is none.
    """
    links = document.get("links") if isinstance(document, dict) else None
    link: Any = links.get("next") if isinstance(links, Mapping) else None
    if link is None:
        return None
    if not isinstance(link, str) or len(link) > _LONGEST:
        raise ValueError("links.next is no link")
    query = urlencode(parse_qsl(urlsplit(link).query, keep_blank_values=True))
    if not query:
        raise ValueError("links.next has no query")
    return query
