"""Our Lua: every file says what it is for and what it takes, is used, and compiles in a real Redis."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from redis import Redis

from credhook.store import lua
from credhook.store.store import Script

SCRIPTS = Path(__file__).parents[2] / "credhook" / "store" / "scripts"
#: What a parenthesis may follow without being a function of ours.
LUAS_OWN = {
    "and", "elseif", "error", "function", "if", "ipairs", "next", "not", "or", "pairs", "pcall", "return", "select",
    "tonumber", "tostring", "type", "unpack", "while",
}  # fmt: skip
LUA = {path.stem: path.read_text() for path in SCRIPTS.iterdir()}
INCLUDED = sorted(
    {name for text in LUA.values() for name in re.findall(r"^--! include (\w+)\.lua$", text, re.MULTILINE)}
)
LOADED: list[Script] = list(get_args(Script))


def header(text: str) -> str:
    """The comment that a file begins with, up to the first line that is none."""
    return re.match(r"(?:--(?: .*)?\n)*", text)[0]  # type: ignore[index]  # It matches the empty text as well.


def without_comments(text: str) -> str:
    return re.sub(r"--.*", "", text)


def test_every_file_is_a_script_or_included_by_one() -> None:
    assert sorted(LUA) == sorted([*LOADED, *INCLUDED])


@pytest.mark.parametrize("name", LOADED)
def test_a_script_says_what_it_takes_and_what_it_replies(name: Script) -> None:
    says, does = header(LUA[name]), without_comments(lua.load(name))
    assert "\n-- Reply: " in says
    for word in ("KEYS", "ARGV"):
        assert (f"\n-- {word}: " in says) == bool(re.search(rf"\b{word}\b", does)), word


@pytest.mark.parametrize("name", LOADED)
def test_a_script_has_every_function_that_it_calls(name: Script) -> None:
    """Redis would notice a missing one only at the call."""
    does = without_comments(lua.load(name))
    called = set(re.findall(r"(?<![\w.:])([a-z_]\w*)\(", does))
    assert called <= LUAS_OWN | set(re.findall(r"\blocal (?:function )?(\w+)", does))


@pytest.mark.parametrize("name", LOADED)
def test_a_script_compiles(name: Script, redis_client: Redis) -> None:
    assert redis_client.script_load(lua.load(name))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of scripts."""
    monkeypatch.setattr(lua, "files", lambda _: tmp_path)
    (tmp_path / "scripts").mkdir()
    lua.load.cache_clear()
    yield tmp_path / "scripts"
    lua.load.cache_clear()


def test_a_file_comes_once_before_whoever_wants_it(files: Path) -> None:
    (files / "a.lua").write_text("local a")
    (files / "b.lua").write_text("--! include a.lua\nlocal b")
    (files / "main.lua").write_text("--! include b.lua\n--! include a.lua\nreturn b")
    assert lua.load("main").split() == ["local", "a", "local", "b", "return", "b"]


def test_constants_are_literals(files: Path) -> None:
    (files / "main.lua").write_text("return {$PREFIX, $WAITING, $LATEST_MS, '^a$', $URGENT_TYPES}")
    types = "{['openid4vc.verification.verified'] = true, ['openid4vc.verification.data'] = true}"
    expected = f"return {{'credhook:', 'waiting', 253402300799999, '^a$', {types}}}"
    assert lua.load("main") == expected
