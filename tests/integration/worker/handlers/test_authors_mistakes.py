"""The mistakes that authors of handlers make: what each of them is told, where it is, and what to do about it."""

import json
import re
from pathlib import Path

import pytest

from credhook.sandbox.local.environment import free_port
from support import plain
from support.process import commands
from support.store.accepting import record
from support.waiting import until
from support.worker.harness import Harness

HEAD = "from credhook import Handlers, Retry\n\nhandlers = Handlers('accounts')\n\n"
ONE = "@handlers.on('*')\nasync def one(event, context): ...\n"


def write(folder: Path, text: str) -> None:
    """Write the text as plugin.py, from line 5 on, among other modules."""
    (folder / "plugin.py").write_text(HEAD + text)
    (folder / "another.py").write_text(HEAD + ONE)
    (folder / "database.py").write_text("\n\nimport psycopg_of_nobody\n")
    (folder / "empty.py").write_text("")


def listed(folder: Path, handlers: str) -> commands.Done:
    """Run `credhook handlers list` with new modules in this folder."""
    environment = {"CREDHOOK_HANDLERS": handlers, "PYTHONPATH": str(folder)}
    return commands.invoke("handlers", "list", environment=environment, folder=folder)


@pytest.mark.parametrize(("text", "handlers", "said"), [
    pytest.param(
        "@handlers.on('openid4vc.issuance.complete')\nasync def f(event, context): ...\n", "plugin",
        r' plugin\.py:5: ValueError: \S+complete\' is no event type: write @handlers\.on\("\S+completed"\)', id="type",
    ),
    pytest.param(
        "@handlers.on\nasync def f(event, context): ...\n", "plugin",
        r' plugin\.py:5: ValueError: @handlers\.on names no event type: write @handlers\.on\("', id="no type at all",
    ),
    pytest.param(
        "@handlers.on()\nasync def f(event, context): ...\n", "plugin",
        r' plugin\.py:5: ValueError: @handlers\.on names no event type: write @handlers\.on\("', id="no type in on()",
    ),
    *(
        pytest.param(
            f"@handlers.{name}()\nasync def f(*_): ...\n", "plugin",
            rf" plugin\.py:5: TypeError: accounts: write @handlers\.{name} above one function, without parentheses$",
            id=f"{name}()",
        )
        for name in ("startup", "shutdown", "lifespan", "on_error", "on_give_up")
    ),
    pytest.param(
        "@handlers.on_give_up(timeout=5)\nasync def f(*_): ...\n", "plugin",
        r" plugin\.py:5: TypeError: accounts: write @handlers\.on_give_up above one function, without", id="options",
    ),
    pytest.param(
        "@handlers.on('*', 'openid4vc.issuance.failed')\n" + ONE, "plugin",
        r' plugin\.py:5: ValueError: "\*" stands for all ten event types: name no other beside it', id="all and one",
    ),
    pytest.param(
        "async def f(): yield\n\nhandlers.lifespan(f())\n", "plugin",
        r" plugin\.py:7: TypeError: accounts: a async_generator is no lifespan function: pass the function itself$",
        id="called lifespan",
    ),
    pytest.param(
        "@handlers.startup\ndef f(): ...\n\n@handlers.lifespan\nasync def g(): yield\n", "plugin",
        r" plugin\.py:8: ValueError: 'accounts' already has a startup function, at \S+/plugin\.py:5; a lifespan",
        id="lifespan beside startup",
    ),
    pytest.param(
        "@handlers.on(['openid4vc.issuance.failed', 'openid4vc.issuance.expire'])\n" + ONE, "plugin",
        r'write @handlers\.on\("openid4vc\.issuance\.failed", "openid4vc\.issuance\.expired"\)', id="a list",
    ),
    pytest.param(
        ONE + ONE, "plugin",
        r" plugin\.py:7: ValueError: 'accounts' already has a handler 'one', at \S+/plugin\.py:5; rename", id="twice",
    ),
    pytest.param(
        "@handlers.on('openid4vc.issuance.failed')\n" + ONE, "plugin",
        r" plugin\.py:5: ValueError: accounts\.one is registered already: name all its types in one", id="stacked",
    ),
    pytest.param(
        "handlers.on('*')(len(''))\n", "plugin", r" plugin\.py:5: TypeError: a int is no handler: pass the function",
        id="called",
    ),
    pytest.param(
        ONE, "plugin,another", "another: another plugin is called 'accounts'; rename it", id="two plugins of a name"
    ),
    pytest.param(
        "import database\n", "plugin",
        r"plugin: database\.py:3: ModuleNotFoundError: No module named 'psycopg_of_nobody'$", id="import error",
    ),
    pytest.param(
        "def connect():\n    raise OSError('no route\\nto host')\n\nconnect()\n", "plugin",
        r" plugin\.py:6: OSError: no route to host$", id="error on import",
    ),
    pytest.param("def f(:\n", "plugin", r" plugin\.py:5: SyntaxError: ", id="syntax error"),
    pytest.param("raise SystemExit(3)\n", "plugin", r" plugin\.py:5: SystemExit: 3", id="exit on import"),
    pytest.param("", "empty", r"empty \(\S+/empty\.py\) has no Handlers object; add handlers =", id="no Handlers"),
    pytest.param(
        "more = Handlers('more')\n", "plugin", "more than one Handlers object; it offers plugin:handlers,plugin:more",
        id="more than one",
    ),
    pytest.param(ONE, "plugins", "there is no module 'plugins'; name one", id="missing module"),
    pytest.param(ONE, "plugins.more", r"there is no module 'plugins\.more'; name one", id="missing package"),
    pytest.param(ONE, ":handlers", "there is no module ''; name one", id="no module"),
    pytest.param("raise OSError\n", "plugin", r" plugin\.py:5: OSError$", id="error without a message"),
    pytest.param(ONE, "./plugin.py", r"there is no module '\./plugin\.py'; name one", id="a file"),
    pytest.param(
        ONE, "queue", r"queue \(\S+/queue\.py\) has no Handlers object; rename your queue\.py: another", id="taken name"
    ),
    pytest.param(ONE, "plugin:one", r"plugin:one: plugin \(\S+ has no Handlers object one; it offers", id="attribute"),
])  # fmt: skip
def test_load_errors_are_one_line(text: str, handlers: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, text)
    (tmp_path / "queue.py").write_text(text)  # Python has a module of that name, which is imported already.
    done = listed(tmp_path, handlers)
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: handlers")
    assert re.search(said, line), line
    assert done.returncode == 2


#: An object that refuses to be looked into, as Django's settings do before they are set up.
LAZY = """
class Lazy:
    @property
    def __class__(self):
        raise RuntimeError("not set up")

settings = Lazy()
"""


def test_lazy_object_of_a_plugin_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, LAZY + ONE)
    done = listed(tmp_path, "plugin")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("options", "said"), [
    ('{"accounts.one": {"timeout": 90, "rate": "10/m"}}', ""),
    ("timeout=90", 'should be a JSON object: {"accounts.open_account": {"timeout": 90}}'),
    ('{"accounts.onne": {"timeout": 90}}', "accounts.onne is not loaded; did you mean accounts.one?"),
    ('{"one": {"timeout": 90}}', "one is not loaded; there is accounts.one"),
    ('{"accounts.one": {"after": "x"}}', "accounts.one: after: is no option; there is timeout, retries, concurrency"),
    ('{"accounts.one": {"retry": 90}}', "accounts.one: retry: is no option; there is timeout, retries, "),
    ('{"accounts.one": {"timeout": 0}}', "accounts.one: timeout: should be a number of seconds over 0"),
])  # fmt: skip
def test_options_of_the_environment_are_checked_and_shown(options: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, ONE)
    environment = {"CREDHOOK_HANDLERS": "plugin", "PYTHONPATH": str(tmp_path), "CREDHOOK_HANDLER_OPTIONS": options}
    done = commands.invoke("handlers", "list", environment=environment, folder=tmp_path)
    if said:
        (line,) = done.stderr.splitlines()
        assert f"CREDHOOK_HANDLER_OPTIONS: {said}" in line
        assert done.returncode == 2
    else:
        assert done.stdout.splitlines()[1].endswith("timeout=90 rate=10/m")


def test_a_plugin_without_handlers_is_one_warning(tmp_path: Path) -> None:
    write(tmp_path, "")
    done = listed(tmp_path, "plugin")
    (line,) = done.stderr.splitlines()
    words = "plugin_without_handlers", '"accounts"', '"plugin"', "@handlers.on"
    assert [word for word in words if word not in line] == []
    assert done.returncode == 0


#: A handler's line, the events that are logged of it, how often for two deliveries, and patterns of their fields.
MISTAKES: list[tuple[str, dict[str, tuple[int, dict[str, str]]]]] = [
    ("asyncio.sleep(0)", {
        "coroutine_not_awaited": (2, {"coroutine": "sleep", "at": "LINE$", "hint": "write await before the call"}),
        "handler_failed": (2, {"error": "CoroutineNotAwaited", "at": "DEF'"}),
    }),
    ("return event.details", {
        "handler_returned": (1, {"at": "DEF$", "returned": "Issuance", "hint": "raise Retry or GiveUp"}),
    }),
    ("Retry(after=30)", {
        "decision_not_raised": (1, {"at": "DEF$", "decision": "Retry", "hint": r"raise before Retry\("}),
    }),
    ("await asyncio.sleep(600)", {
        "handler_failed": (2, {"error": "HandlerTimeout", "hint": "CREDHOOK_HANDLER_TIMEOUT", "at": "LINE f3'"}),
    }),
    ("call = asyncio.sleep(0); call.ended", {
        "coroutine_not_awaited": (2, {"coroutine": "sleep", "at": "DEF$", "handler": r"accounts\.f4"}),
        "handler_failed": (2, {"error": "^AttributeError$", "at": "LINE f4'"}),
    }),
    ("{'FR': 1}[{'country': 'Jane'}['country']]", {
        "handler_failed": (2, {"error": "^KeyError$", "at": r"^\['\S+LINE f5'\]$"}),
    }),
]  # fmt: skip


def test_run_errors_name_place_and_remedy(harness: Harness) -> None:
    """The line of handler `f0` is 8 and its `def` is 7, three lines further on for each of the others."""
    bodies = [f"async def f{number}(event, context):\n    {line}\n" for number, (line, _) in enumerate(MISTAKES)]
    write(harness.folder, "import asyncio\n" + "".join(f"@handlers.on('*')\n{body}" for body in bodies))
    settings = {"CREDHOOK_HANDLER_TIMEOUT": "1", "CREDHOOK_MAX_ATTEMPTS": "1", "CREDHOOK_LEASE": "15"}
    with harness.worker(**settings) as worker:
        for name in ("m1", "m2"):  # One after the other.
            harness.happens(name)
            harness.reaches(name, "dead")
        assert worker.stop() == 0
    lines = [json.loads(one) for one in worker.text.splitlines()]
    for number, (_, events) in enumerate(MISTAKES):
        here, definition = rf"/plugin\.py:{8 + 3 * number}", rf"/plugin\.py:({6 + 3 * number}|{7 + 3 * number})"
        for event, (times, fields) in events.items():
            said = [one for one in lines if one["event"] == event and one.get("handler", "f0").endswith(f"f{number}")]
            assert len(said) == times, (event, said)
            for name, pattern in fields.items():
                assert re.search(pattern.replace("LINE", here).replace("DEF", definition), str(said[0][name])), said[0]
    assert "Jane" not in worker.text


def test_failed_start_up_names_its_place_and_keeps_events_waiting(harness: Harness) -> None:
    failing = "@handlers.startup\ndef connect():\n    if not Path('up').exists():\n        raise OSError('Jane Doe')\n"
    write(harness.folder, "from pathlib import Path\n" + failing + ONE)
    admin = f"127.0.0.1:{free_port()}"
    with harness.worker(CREDHOOK_ADMIN=admin) as worker:
        harness.happens("m1")
        until(lambda: worker.text.count('"startup_failed"') >= 3, what="a third try")
        assert record(harness.redis, "m1")["state"] == "accepted"
        assert "0 of its 1 processes have started" in plain.get(f"http://{admin}/readyz").text
        (harness.folder / "up").write_text("")
        harness.reaches("m1", "done")
        assert worker.stop() == 0
    line = next(json.loads(one) for one in worker.text.splitlines() if '"startup_failed"' in one)
    assert (line["plugin"], line["error"], line["retry_in"]) == ("accounts", "OSError", 1.0)
    assert re.search(r"/plugin\.py:9 connect$", line["at"][-1])
    assert "Its handlers wait" in line["hint"]
    assert "Jane" not in worker.text
