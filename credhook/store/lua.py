"""Assemble the scripts for Redis: a `.lua` file of credhook/store/scripts, with the fragments that it includes.

The line `--! include now.lua` is replaced by that file, once per script. `$DONE` is replaced by that constant as
a Lua literal: a quoted text, a number, or a set of texts.
"""

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Final

from credhook import store
from credhook.events import EVENT_TYPES, REPEATABLE, URGENT
from credhook.store import job

#: The constants of the store and of its jobs, and its states: `$ACCEPTED` and so on.
_CONSTANTS: Final[dict[str, str | int | Iterable[str]]] = {
    **{
        name: value
        for name, value in {**vars(store), **vars(job)}.items()
        if name.isupper() and isinstance(value, str | int)
    },
    **{state.name: state for state in store.State},
    "STATES": store.State,
    "EVENT_TYPES": EVENT_TYPES,
    "REPEATABLE_TYPES": REPEATABLE,
    "URGENT_TYPES": URGENT,
}

_MARK: Final = re.compile(r"^--! *(.*)$|\$([A-Z_]+)", re.MULTILINE)


class BadScript(Exception):
    """A script cannot be put together; the message names the file and what is wrong with it."""


def load(path: str, **constants: str) -> str:
    """Return the script in that file, `name.lua`, with all that it includes; `constants` are further ones.

    Raises:
        BadScript: a file is missing, or names something that does not exist.
    """
    known, included = {**_CONSTANTS, **constants}, {path}

    def put_together(path: str, wanted_by: str) -> str:
        def replaced(mark: re.Match[str]) -> str:
            line, name = mark.groups()
            if name in known:
                return _literal(known[name])
            keyword, _, other = (line or "").partition(" ")
            if keyword != "include":
                raise BadScript(f"{path}: the loader does not know {mark[0]}")
            if other in included:
                return ""
            included.add(other)
            return put_together(other, f", which {path} includes")

        try:
            text = _read(path)
        except FileNotFoundError:
            raise BadScript(f"there is no file {path}{wanted_by}") from None
        return _MARK.sub(replaced, text)

    return put_together(path, "")


@cache
def _read(path: str) -> str:
    return files("credhook.store").joinpath("scripts", path).read_text(encoding="utf-8")


def _literal(value: str | int | Iterable[str]) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, int):
        return str(value)
    return f"{{{', '.join(f'[{_literal(each)}] = true' for each in value)}}}"
