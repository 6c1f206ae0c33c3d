"""Our Lua: every file is used, and no script calls a function that it lacks."""

import re
from typing import get_args

import pytest

from credhook.store import lua
from credhook.store.store import Script
from support.checkout import ROOT

SCRIPTS = ROOT / "credhook" / "store" / "scripts"
#: What a parenthesis may follow without being a function of ours.
LUAS_OWN = {
    "and", "elseif", "error", "function", "if", "ipairs", "next", "not", "or", "pairs", "pcall", "return", "select",
    "setmetatable", "tonumber", "tostring", "type", "unpack", "while",
}  # fmt: skip
LOADED: list[Script] = list(get_args(Script))


def test_every_file_is_a_script_or_included_by_one() -> None:
    files = {path.stem: path.read_text() for path in SCRIPTS.iterdir()}
    included = re.findall(r"^--! include (\w+)\.lua$", "\n".join(files.values()), re.MULTILINE)
    assert sorted(files) == sorted([*LOADED, *set(included)])


@pytest.mark.parametrize("name", LOADED)
def test_a_script_has_every_function_that_it_calls(name: Script) -> None:
    """Redis would notice a missing one only at the call."""
    does = re.sub(r"--.*", "", lua.load(name))
    called = set(re.findall(r"(?<![\w.:])([a-z_]\w*)\(", does))
    assert called <= LUAS_OWN | set(re.findall(r"\blocal (?:function )?(\w+)", does))
