"""Assemble the scripts for Redis: a `.lua` file of credhook/store/scripts, with the fragments that it includes.

The line `--! include keys.lua` is replaced by that file, once per script. `$DONE` is replaced by that constant as
a Lua literal: a quoted text, a number, or a set of texts.
"""

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Final

from credhook import events, store
from credhook.store import job

#: The constants of events, of the store and of its jobs, and its states: `$ACCEPTED` and so on.
_CONSTANTS: Final = {**vars(events), **vars(store), **vars(job), **store.State.__members__, "STATES": store.State}

_MARK: Final = re.compile(r"^--! include (\w+)\.lua$|\$([A-Z_]+)", re.MULTILINE)


@cache
def load(script: str) -> str:
    """Return the script in `<script>.lua`, with the fragments that it includes.

    Raises:
        FileNotFoundError, KeyError: it names a file or a constant that does not exist.
    """
    included = set[str]()

    def replacement(mark: re.Match[str]) -> str:
        name, constant = mark.groups()
        if constant:
            return _literal(_CONSTANTS[constant])
        if name in included:
            return ""
        included.add(name)
        text = files("credhook.store").joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")
        return _MARK.sub(replacement, text)

    return _MARK.sub(replacement, f"--! include {script}.lua")


def _literal(value: str | int | Iterable[str]) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, int):
        return str(value)
    return f"{{{', '.join(f'[{_literal(item)}] = true' for item in value)}}}"
