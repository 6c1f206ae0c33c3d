"""Our Lua: every file says what it is for and what it takes, is used, and compiles in a real Redis."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from credhook.store import lua

ROOT = Path(__file__).parents[2]
#: Python that still holds Lua.
#: What a parenthesis may follow without being a function of ours.
LUAS_OWN = {
    "and", "elseif", "error", "function", "if", "ipairs", "next", "not", "or", "pairs", "pcall", "return", "select",
    "tonumber", "tostring", "type", "unpack", "while",
}  # fmt: skip


def ours(suffix: str) -> dict[str, str]:
    """Path → text of each of our files that ends so."""
    tops = ("credhook", "receiver", "worker", "sandbox")
    paths = (path for top in tops for path in (ROOT / top).rglob(f"*{suffix}"))
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def address(path: str) -> str:
    """How a file is named where it is loaded or included."""
    folder, _, name = path.rpartition("/")
    return f"credhook.{folder.replace('/', '.')}/{name}".replace("credhook.credhook.", "credhook.")


PYTHON = ours(".py")
LUA = {Path(path).name: text for path, text in ours(".lua").items()}
INCLUDED = sorted({other for text in LUA.values() for other in re.findall(r"^--! include (\S+)$", text, re.MULTILINE)})
#: Script → module that loads it, and the name that it has there.
LOADED = {
    found[2]: (address(path).removesuffix(".py").replace("/", "."), found[1])
    for path, text in PYTHON.items()
    for found in re.finditer(r'^(\w+): Final = lua\.load\("([^"]+)"', text, re.MULTILINE)
}


def script(path: str) -> str:
    module, name = LOADED[path]
    loaded: str = getattr(importlib.import_module(module), name)
    return loaded


def header(text: str) -> str:
    """The comment that a file begins with, up to the first line that is none."""
    return re.match(r"(?:--(?: .*)?\n)*", text)[0]  # type: ignore[index]  # It matches the empty text as well.


def without_comments(text: str) -> str:
    return re.sub(r"--.*", "", text)


def test_every_file_is_loaded_by_a_module_or_included_by_a_script() -> None:
    assert sorted(LUA) == sorted([*LOADED, *INCLUDED])


@pytest.mark.parametrize("path", LOADED)
def test_a_script_says_what_it_takes_and_what_it_replies(path: str) -> None:
    says, does = header(LUA[path]), without_comments(script(path))
    assert "\n-- Reply: " in says
    for word in ("KEYS", "ARGV"):
        assert (f"\n-- {word}: " in says) == bool(re.search(rf"\b{word}\b", does)), word


@pytest.mark.parametrize("path", INCLUDED)
def test_a_fragment_says_what_it_defines(path: str) -> None:
    (names,) = re.findall(r"^-- Defines: ([^.]+)\.$", header(LUA[path]), re.MULTILINE)
    top = re.findall(r"^local (?:function )?(\w+(?:, \w+)*)", LUA[path], re.MULTILINE)
    assert set(re.findall(r"\w+", names)) <= {name for line in top for name in line.split(", ")}


@pytest.mark.parametrize("path", LOADED)
def test_a_script_has_every_function_that_it_calls(path: str) -> None:
    """Redis would notice a missing one only at the call."""
    does = without_comments(script(path))
    called = set(re.findall(r"(?<![\w.:])([a-z_]\w*)\(", does))
    assert called <= LUAS_OWN | set(re.findall(r"\blocal (?:function )?(\w+)", does))


@pytest.mark.parametrize("path", LOADED)
def test_a_script_compiles(path: str, redis_client: Redis) -> None:
    assert redis_client.script_load(script(path))


def test_no_python_holds_lua() -> None:
    held = {
        path
        for path, text in PYTHON.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.search(r"redis\.p?call\(|\b(?:KEYS|ARGV)\[", node.value)
    }
    assert held == set()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of scripts."""
    monkeypatch.setattr(lua, "files", lambda _: tmp_path)
    lua._read.cache_clear()
    (tmp_path / "scripts").mkdir()
    yield tmp_path / "scripts"
    lua._read.cache_clear()


def test_a_file_comes_once_before_whoever_wants_it(files: Path) -> None:
    (files / "a.lua").write_text("local a")
    (files / "b.lua").write_text("--! include a.lua\nlocal b")
    (files / "main.lua").write_text("--! include b.lua\n--! include a.lua\nreturn b")
    assert lua.load("main.lua").split() == ["local", "a", "local", "b", "return", "b"]


def test_constants_are_literals(files: Path) -> None:
    (files / "main.lua").write_text("return {$PREFIX, $WAITING, $MORE, $LATEST_MS, '^a$', $URGENT_TYPES}")
    types = "{['openid4vc.verification.verified'] = true, ['openid4vc.verification.data'] = true}"
    expected = f"return {{'credhook:', 'waiting', 'more', 253402300799999, '^a$', {types}}}"
    assert lua.load("main.lua", MORE="more") == expected


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--! include none.lua", "there is no file none.lua, which main.lua includes"),
        ("--! includes main.lua", "main.lua: the loader does not know --! includes main.lua"),
        ("return $NONE", "main.lua: the loader does not know $NONE"),
    ],
)
def test_what_does_not_exist_is_named(files: Path, line: str, says: str) -> None:
    (files / "main.lua").write_text(f"local a\n{line}\n")
    with pytest.raises(lua.BadScript) as raised:
        lua.load("main.lua")
    assert str(raised.value) == says


@pytest.mark.parametrize("path", ["credhook.worker.queue/none.lua", "credhook.nowhere/none.lua"])
def test_a_missing_script_is_named(path: str) -> None:
    with pytest.raises(lua.BadScript, match=f"^there is no file {re.escape(path)}$"):
        lua.load(path)
