"""The mistakes that authors of handlers make: what each of them is told, where it is, and what to do about it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import commands
import pytest

HEAD = "from credhook import Handlers, Retry\n\nhandlers = Handlers('accounts')\n\n"


@dataclass(frozen=True)
class Mistake:
    """What an author has written, and the line that answers it.

    Attributes:
        files: path → text.
        said: patterns, each of which the line matches.
        handlers: what CREDHOOK_HANDLERS names.
    """

    files: dict[str, str]
    said: tuple[str, ...]
    handlers: str = "plugin"


def plugin(text: str) -> dict[str, str]:
    """As plugin.py, from line 5 on."""
    return {"plugin.py": HEAD + text}


ONE = "@handlers.on('*')\nasync def one(event, context): ...\n"

#: What stops the start.
AT_LOAD = {
    "wrong type": Mistake(
        plugin("@handlers.on('openid4vc.issuance.complete')\nasync def f(event, context): ...\n"),
        (r"/plugin\.py:5: 'openid4vc\.issuance\.complete' is no", r"did you mean 'openid4vc\.issuance\.completed'\?"),
    ),
    "type that resembles none": Mistake(
        plugin("@handlers.on('x')\nasync def f(event, context): ...\n"),
        (r"/plugin\.py:5: 'x' is no event type", r"credhook\.EVENT_TYPES"),
    ),
    "no type at all": Mistake(
        plugin("@handlers.on\nasync def f(event, context): ...\n"),
        (r"/plugin\.py:5: ", r'@handlers\.on\("openid4vc\.issuance\.offered"\)'),
    ),
    "types in a list": Mistake(
        plugin("@handlers.on(['*'])\nasync def f(event, context): ...\n"),
        (r"/plugin\.py:5: on\(\) takes event types",),
    ),
    "one argument": Mistake(
        plugin("@handlers.on('*')\nasync def f(event): ...\n"),
        (r"/plugin\.py:5: accounts\.f should take two arguments, \(event, context\)",),
    ),
    "generator": Mistake(
        plugin("@handlers.on('*')\nasync def f(event, context):\n    yield\n"),
        (r"/plugin\.py:5: accounts\.f is a generator", "leave out the yield"),
    ),
    "duplicate handler": Mistake(
        plugin(ONE + ONE),
        (r"/plugin\.py:7: 'accounts' already has a handler 'one', at \S+/plugin\.py:5; rename",),
    ),
    "duplicate plugin": Mistake(
        plugin(ONE) | {"another.py": HEAD + ONE},
        (r"two plugins are called 'accounts', at \S+/plugin\.py:3 and \S+/another\.py:3; rename",),
        handlers="plugin,another",
    ),
    "plugin named twice": Mistake(
        plugin(ONE), ("accounts is named twice; name each once",), handlers="plugin,plugin:handlers"
    ),
    "import error": Mistake(
        plugin("import database\n") | {"database.py": "\n\nimport psycopg_of_nobody\n"},
        (
            r"handlers plugin: \S+/database\.py:3: ModuleNotFoundError: No module named 'psycopg_of_nobody'; install",
            r"by way of \S+/plugin\.py:5 <module>, \S+/database\.py:3 <module>\)$",
        ),
    ),
    "error on import": Mistake(
        plugin("def connect():\n    raise OSError('no route\\nto host')\n\nconnect()\n"),
        (
            r"/plugin\.py:6: OSError: no route to host",
            r"by way of \S+/plugin\.py:8 <module>, \S+/plugin\.py:6 connect\)$",
        ),
    ),
    "syntax error": Mistake(plugin("def f(:\n"), (r"/plugin\.py:5: SyntaxError: ",)),
    "exit on import": Mistake(plugin("raise SystemExit(3)\n"), (r"/plugin\.py:5: SystemExit: ", "__main__")),
    "no Handlers object": Mistake({"plugin.py": "\n"}, ("plugin holds no Handlers object; it should have one",)),
    "more than one": Mistake(
        plugin("more = Handlers('more')\n"), ("more than one Handlers object; it offers plugin:handlers,plugin:more",)
    ),
    "missing module": Mistake(
        plugin(ONE), (r"there is no module 'plugins'; did you mean plugin\?",), handlers="plugins"
    ),
    "file instead of a module": Mistake(plugin(ONE), (r"'\./plugin\.py'; did you mean plugin\?",), "./plugin.py"),
    "missing module that resembles none": Mistake(plugin(ONE), ("there is no module 'x'", "here are .*plugin"), "x"),
    "missing attribute": Mistake(
        plugin(ONE), ("plugin has no 'handler'; it offers plugin:handlers",), "plugin:handler"
    ),
    "another attribute": Mistake(
        plugin(ONE), ("'one' is no Handlers object but of type function; it offers plugin:handlers",), "plugin:one"
    ),
}


def written(folder: Path, mistake: Mistake) -> Path:
    for path, text in mistake.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.mark.parametrize("mistake", AT_LOAD.values(), ids=AT_LOAD)
def test_what_cannot_be_loaded_is_said_in_one_line(mistake: Mistake, tmp_path: Path) -> None:
    environment = {"CREDHOOK_HANDLERS": mistake.handlers}
    done = commands.credhook("handlers", "list", environment=environment, folder=written(tmp_path, mistake))
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: handlers")
    assert [pattern for pattern in mistake.said if not re.search(pattern, line)] == [], line
    assert done.returncode == 2


def test_a_plugin_that_nothing_wants_is_said_once(tmp_path: Path) -> None:
    folder = written(tmp_path, Mistake({"plugin.py": HEAD}, ()))
    done = commands.credhook("handlers", "list", environment={"CREDHOOK_HANDLERS": "plugin"}, folder=folder)
    (line,) = done.stderr.splitlines()
    for word in ("plugin_without_handlers", '"accounts"', "/plugin.py:3", "@handlers.on"):
        assert word in line
    assert done.returncode == 0


#: Files and variables where no handlers are named, and what is said of each; nothing of the last.
MEANT: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "misspelt variable": ({}, {"CREDHOOK_HANDLER": "plugin"}, "CREDHOOK_HANDLER: it should be CREDHOOK_HANDLERS"),
    "empty variable": ({}, {"CREDHOOK_HANDLERS": " , "}, "CREDHOOK_HANDLERS: it is set, and names nothing"),
    "handlers.py": ({"handlers.py": ""}, {}, "handlers.py: CREDHOOK_HANDLERS=handlers loads it"),
    "a module of another name": (plugin(ONE), {}, "plugin.py: CREDHOOK_HANDLERS=plugin loads it"),
    "package": (
        {"pyproject.toml": '[project.entry-points."credhook.handlers"]\naccounts = "accounts:handlers"\n'},
        {},
        "pyproject.toml: the package is not installed here: pip install -e .",
    ),
    ".env": ({".env": "CREDHOOK_HANDLERS=plugin\n"}, {}, ".env: nothing reads it by itself"),
    "nothing": ({"setup.py": "import os\n", "pyproject.toml": "[project]\n"}, {"PATH": "/bin"}, ""),
}


@pytest.mark.parametrize(("files", "environment", "said"), MEANT.values(), ids=MEANT)
def test_handlers_that_were_meant_but_are_not_named_are_warned_of(
    files: dict[str, str], environment: dict[str, str], said: str, tmp_path: Path
) -> None:
    done = commands.credhook("handlers", "list", environment=environment, folder=written(tmp_path, Mistake(files, ())))
    (line,) = [json.loads(one) for one in done.stderr.splitlines() if one.startswith("{")]
    assert (line["event"], line["level"]) == ("handlers_not_named", "warning" if said else "info")
    assert said in line["hint"]
    assert said or "CREDHOOK_HANDLERS=module" in line["hint"]
    assert "log.event" in done.stdout
    assert done.returncode == 0
